"""`mocker-replay rerun`: a recorded realtime run, done again; same or where it first differs.

It decides what is printed and which exit code is returned; the comparison is `mocker_replay.replay.rerun`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mocker_replay.log.wall import StepTaken
    from mocker_replay.replay.rerun_result import Difference, RerunResult

_LABEL_WIDTH = 16


def rerun(
    log: Annotated[str, typer.Argument(help="Event log of a realtime run, plain, .gz or .zst; - is standard input.")],
    timing_model: Annotated[
        str | None,
        typer.Option(help="MODULE:NAME of the timing model, where the run used a Python object that has moved."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but a difference and errors.")] = False,
) -> int:
    """Give the recorded steps of LOG to fresh machines in virtual time and require the same events.

    The result goes to standard output: what was compared, or the first difference. Exit codes: 0 the same, 1 different,
    2 no realtime log, truncated or damaged, or bad usage.
    """
    from mocker_replay.cli.timing_model import own_timing_model, search_working_directory
    from mocker_replay.replay.rerun import rerun as rerun_log

    search_working_directory()
    result = rerun_log(log, timing_model=None if timing_model is None else own_timing_model(timing_model))
    if json:
        import orjson

        sys.stdout.write(orjson.dumps(result.to_mapping(), option=orjson.OPT_INDENT_2).decode() + "\n")
    elif result.difference is not None or not quiet:
        sys.stdout.write("".join(f"{label:<{_LABEL_WIDTH}}{text}\n" for label, text in _text(result)))
    return int(result.exit_code)


def _text(result: RerunResult) -> Iterator[tuple[str, str]]:
    log = result.log.encode(errors="backslashreplace").decode()
    if result.difference is None:
        yield "same", f"{log}: {result.num_lines:,} lines from {result.num_steps:,} steps"
        yield "level", result.level
        yield "clock", result.clock
        yield "end", str(result.end) if result.stopped is None else f"{result.end} ({result.stopped})"
        yield "digest", str(result.digest)
        return
    yield "differs", f"{log}:{result.difference.line_number}: seq {result.difference.seq}: {result.difference.rule}"
    yield from _difference_text(result.difference)
    yield "same before", f"{result.num_lines:,} lines from {result.num_steps:,} steps"
    if result.damage is not None:
        yield "the log itself", result.damage


def _difference_text(difference: Difference) -> Iterator[tuple[str, str]]:
    for found in difference.fields():
        yield "field", f"{found.field}: log {_plain(found.logged)}, rerun {_plain(found.rerun)}"
    yield "log", _plain(difference.logged) if difference.logged is not None else "no line"
    yield "rerun", _plain(difference.rerun) if difference.rerun is not None else "no line"
    if difference.worker is not None:
        started = "before its first pass" if difference.pass_id == -1 else f"pass {difference.pass_id}"
        yield "worker", f"{difference.worker}, {started}"
    for at, step in enumerate(difference.steps):
        yield "" if at else "its last steps", _step_text(step)


def _step_text(step: StepTaken) -> str:
    text = f"at {step.reading_ms} ms {step.stimulus}"
    if step.stimulus == "lane_counts":
        return f"{text}: {step.num_cancels} cancellations, {step.num_commands} commands"
    if step.request >= 0:
        return f"{text}: row {step.request}{', output in flight dropped' if step.discard else ''}"
    return text


def _plain(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()
