"""`mocker-replay timeline`: a log as a trace file for Perfetto or Chrome.

It decides what is said about it; the slices are made by `mocker_replay.log.timeline`.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mocker_replay.cli.console import plain
from mocker_replay.errors import ExitCode
from mocker_replay.outputs import refuse_overwriting


def timeline(
    log: Annotated[str, typer.Argument(help="Event log, best of level passes or above; - is standard input.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Trace file to write, .gz and .zst compressed, or -.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but errors.")] = False,
) -> int:
    """Write LOG as a trace file: a track for each rank and request, and counters. Open it at ui.perfetto.dev.

    Exit codes: 0 written, 2 no event log, truncated or damaged, or bad usage; nothing is written then.
    """
    from mocker_replay.log.timeline import write_timeline

    refuse_overwriting("--output", output, {"the log": log})
    counts = write_timeline(log, output)
    if not quiet and output != "-":
        sys.stdout.write(
            f"{plain(output)}: {counts.requests:,} requests in {counts.phases:,} "
            f"phases, {counts.passes:,} passes of ranks, {counts.counters:,} counter values\n"
        )
    return int(ExitCode.OK)
