"""The command around the verbs: help, version, mistakes in typing, streams that cannot be written."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mocker_replay import __version__
from mocker_replay.cli.app import VERBS, overview, run_main
from mocker_replay.errors import ExitCode, Fault, InvariantError, TraceError

COMMAND = [sys.executable, "-m", "mocker_replay"]
TINY = str(Path(__file__).parents[2] / "traces" / "tiny.jsonl")


def test_help_names_every_verb_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == overview()
    assert all(verb in out and line in out for verb, line in VERBS.items())
    assert all(f"\n  {code.value} " in out for code in ExitCode)


def test_help_is_light() -> None:
    """The overview must not import what only a verb needs; 150 ms of CPU is the bound, a loaded machine included."""
    code = (
        "import sys, resource; from mocker_replay.cli.app import run_main; run_main(['--help'])\n"
        "heavy = {'typer', 'click', 'rich', 'numpy', 'orjson', 'pydantic'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["--version"]) == 0
    assert capsys.readouterr().out == f"mocker-replay {__version__}\n"


def test_without_arguments_the_overview_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", overview())


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["rn"], "error: no such verb: rn; did you mean run?\nhint: mocker-replay --help\n"),
        (["--versio"], "error: no such option: --versio; did you mean --version?\nhint: mocker-replay --help\n"),
        (["zzz"], "error: no such verb: zzz\nhint: mocker-replay --help\n"),
    ],
)
def test_mistyped(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", text)


@pytest.mark.parametrize(
    ("argv", "texts"),
    [
        (["run", "t.jsonl", "--blok-size", "4"], ["error: ", "--block-size", "hint: mocker-replay run --help"]),
        (["run", "t.jsonl", "--block-size", "x"], ["error: ", "--block-size", "integer"]),
        (["run"], ["error: Missing argument", "TRACE"]),
    ],
)
def test_options_typed_wrong(argv: list[str], texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(text in err for text in texts), err


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def verb(_verb: str, _argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("mocker_replay.cli.command.run_verb", verb)


def test_errors_become_text_and_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [Fault("t.jsonl", 3, "timestamp", "x", "must be a number"), Fault("t.jsonl", 4, "", "", "is no object")]
    raising(monkeypatch, TraceError(faults, omitted=7))
    assert run_main(["run"]) == 2
    assert capsys.readouterr().err == (
        "error: t.jsonl:3: timestamp: must be a number (got x)\n"
        "error: t.jsonl:4: is no object\n"
        "hint: 7 further faults are not listed\n"
    )
    raising(monkeypatch, InvariantError("the engine stands still at 12.0 ms"))
    assert run_main(["run"]) == 3
    assert capsys.readouterr().err == "error: the engine stands still at 12.0 ms\n"
    raising(monkeypatch, KeyboardInterrupt())
    assert run_main(["run"]) == 130
    raising(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        run_main(["run"])


@pytest.mark.parametrize("error", ["errors.ClosedPipe()", "BrokenPipeError()"])
def test_a_closed_pipe_is_no_fault(error: str) -> None:
    """Nor is what still stands in the buffer, which Python would try to write at exit."""
    code = (
        "import mocker_replay.cli.command as command, mocker_replay.errors as errors\n"
        "from mocker_replay.cli.app import main\n"
        "def verb(name, argv):\n"
        "    print('half a line', end='')\n"
        f"    raise {error}\n"
        "command.run_verb = verb\n"
        "main(['run'])\n"
    )
    assert into_a_closed_pipe([sys.executable, "-c", code]) == (0, "")


def into_a_closed_pipe(argv: list[str]) -> tuple[int, str]:
    read_end, write_end = os.pipe()
    os.close(read_end)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(argv, stdout=write_end, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(write_end)
    return done.returncode, done.stderr


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"]])
def test_help_into_a_closed_pipe(argv: list[str]) -> None:
    assert into_a_closed_pipe([*COMMAND, *argv]) == (0, "")


@pytest.mark.parametrize("argv", [
    ["run", TINY], ["run", TINY, "--json"], ["run", TINY, "--sla-ttft-ms", "1e3"], ["check", TINY],
    ["check", TINY, "--json"], ["compare", TINY, "--variant", '{"name": "a"}', "--variant", '{"name": "b"}'],
])  # fmt: skip
def test_results_into_a_closed_pipe(argv: list[str]) -> None:
    """Whether the words are read plainly or by Typer."""
    assert into_a_closed_pipe([*COMMAND, *argv]) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"]])
def test_a_full_disk_under_standard_output(argv: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *argv], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: standard output: No space left on device\n"


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_a_stream_that_is_closed_hides_no_exit_code(closed: tuple[int, ...], tmp_path: Path) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    sample = Path(__file__).resolve().parent.parent / "golden" / "event_log" / "sample.jsonl"
    other = tmp_path / "other.jsonl"
    other.write_bytes(sample.read_bytes().replace(b'"blocks_held":2', b'"blocks_held":3'))
    for argv, code in (
        (["diff", sample, other, "--verify"], 1),
        (["audit", sample, "--json"], None),
        (["audit", "none"], 2),
    ):
        command = [*COMMAND, *map(str, argv)]
        done = subprocess.run(command, capture_output=True, preexec_fn=close, check=False)
        assert code is None or done.returncode == code
        assert b"Traceback" not in done.stdout + done.stderr
