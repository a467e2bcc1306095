"""The command `mocker-replay`: which verbs there are, and how an error leaves the process.

A verb's module is imported only when the verb is used, and the overview needs neither Typer nor Rich. Nothing of a
replay is decided here.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import os
import signal
import sys
from collections.abc import Sequence

from mocker_replay import __version__
from mocker_replay.errors import ClosedPipe, ExitCode, MockerReplayError, OutputError, UsageError

# Each verb and its line in the overview. The function of that name in the module of that name does the work.
VERBS = {
    "run": "Replay a trace and print a summary.",
    "check": "Find every fault of a trace in one pass and profile it.",
    "convert": "Write a trace, transformed if asked for, in its canonical form.",
    "synth": "Write a synthetic workload as a trace.",
    "compare": "Run variants of an engine on one trace and judge what differs.",
    "golden": "Record runs, check fresh ones against them, update what has changed.",
    "diff": "Name the first event in which two logs differ, and compare their figures.",
    "audit": "Check an event log on its own: every rule it breaks, and where.",
    "explain": "Say why one request of a log took its time, in parts that add up.",
    "timeline": "Write a log as a trace file for Perfetto or Chrome.",
    "rerun": "Run the log of a realtime run again and require the same events.",
}
PROGRAM = "mocker-replay"
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_OVERVIEW = """\
Usage: {program} [--version] [-h | --help] VERB ...

  Replay LLM request traces through mock inference engines.

Verbs:
{verbs}

  {program} VERB --help tells more about each.

Exit codes:
  0    as expected
  1    a golden or a threshold differs
  2    bad usage, configuration or trace
  3    engine stuck or invariant broken
  4    some requests failed or were rejected
  130  interrupted, partial results are kept
"""


def overview() -> str:
    """What `mocker-replay --help` prints."""
    verbs = "\n".join(f"  {name:<10}{line}" for name, line in VERBS.items())
    return _OVERVIEW.format(program=PROGRAM, verbs=verbs)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command and leave the process with its exit code."""
    # NumPy's linear algebra is not used; its threads would be started all the same, and spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Most of what an import makes stays: looking through it for cycles again and again takes a tenth of a short run.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    code = run_main(sys.argv[1:] if argv is None else list(argv))
    # All is written and said; one Ctrl-C more must not turn the exit code into a signal of the interpreter's end.
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def run_main(argv: list[str]) -> int:
    """Run the command; errors become text on standard error and an exit code."""
    from mocker_replay.cli.console import complain

    _have_streams()
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except (BrokenPipeError, ClosedPipe):
        return _leave_quietly()
    except OSError as exc:  # a full disk under standard output, or rights that are missing
        complain(OutputError(f"{exc.filename or 'standard output'}: {exc.strerror or exc}"))
        _drop_stdout()
        return int(ExitCode.USAGE)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except MockerReplayError as exc:
        complain(exc)
        return int(exc.exit_code)


def _have_streams() -> None:
    """Where the caller has closed a stream, what is written there is shown to nobody; the exit code still tells."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _dispatch(argv: list[str]) -> int:
    if not argv:
        sys.stderr.write(overview())
        return int(ExitCode.USAGE)
    verb = argv[0]
    if verb in VERBS:
        from mocker_replay.cli.command import run_verb

        return run_verb(verb, argv[1:])
    if verb in ("-h", "--help"):
        sys.stdout.write(overview())
    elif verb == "--version":
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
    else:
        raise UsageError(_unknown(verb))
    return int(ExitCode.OK)


def _unknown(word: str) -> str:
    kind = "option" if word.startswith("-") else "verb"
    near = difflib.get_close_matches(word, [*VERBS, "--help", "--version"], n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"no such {kind}: {word}{meant}\nhint: {PROGRAM} --help"


def _leave_quietly() -> int:
    """The reader of standard output has gone: that is its right."""
    _drop_stdout()
    return int(ExitCode.OK)


def _drop_stdout() -> None:
    """What is still buffered must not be written at exit, where it could only fail again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
