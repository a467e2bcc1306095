"""`mocker-replay convert`: a trace, as it is read and transformed, written in its canonical form.

It decides what is told and where the bytes go; rows are written by `mocker_replay.trace.mooncake_writer`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mocker_replay.cli import flags
from mocker_replay.cli.console import plain, warn
from mocker_replay.cli.reading import open_by_flags
from mocker_replay.cli.run import transforms_of
from mocker_replay.errors import ExitCode, Fault, UsageError
from mocker_replay.outputs import refuse_overwriting

if TYPE_CHECKING:
    from mocker_replay.trace import TraceFacts, TraceSource
    from mocker_replay.trace.mooncake_writer import MooncakeWriter

_LABEL_WIDTH: Final = 12


def convert(
    ctx: typer.Context,
    trace: flags.Traces,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="Trace to write, .gz and .zst compressed, or -.")
    ],
    trace_format: flags.TraceFormat = "auto",
    trace_block_size: flags.TraceBlockSize = None,
    timestamp_unit: flags.TimestampUnit = "ms",
    closed_loop: flags.ClosedLoop = False,
    missing_timestamps: flags.MissingTimestamps = "refuse",
    surplus_hash_ids: flags.SurplusHashIds = "refuse",
    missing_hash_ids: flags.MissingHashIds = "refuse",
    estimate_prefix: flags.EstimatePrefix = None,
    failed_rows: flags.FailedRows = None,
    max_text_gib: flags.MaxTextGib = None,
    weka_nested_timestamp_basis: flags.WekaNestedTimestampBasis = None,
    trace_shared_prefix_ratio: flags.TraceSharedPrefixRatio = None,
    trace_num_prefix_groups: flags.TraceNumPrefixGroups = None,
    transform: flags.Transforms = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but warnings and errors.")] = False,
) -> int:
    """Write TRACE as canonical Mooncake JSON lines, which replay to the same run; graphs become agentic Mooncake.

    What was assumed and done goes to standard error. OUT appears only when it is whole; one that is there is replaced,
    TRACE itself never. Exit codes: 0 written, 2 faults or bad usage; nothing is written then.
    """
    from mocker_replay.outputs import open_output
    from mocker_replay.trace.mooncake_writer import MooncakeWriter
    from mocker_replay.trace.transforms import transformed

    faults: list[Fault] = []
    transforms = transforms_of(transform, faults)
    if faults:
        raise UsageError.of(faults)
    for path in trace:
        refuse_overwriting("--output", output, {"the trace": path})
    source = transformed(open_by_flags(trace, ctx.params), transforms)
    try:
        facts = source.scan()
        if facts.format == "mooncake-delta":
            raise UsageError("a trace of deltas cannot be written as rows that do not depend on what was answered")
        writer = MooncakeWriter()
        with open_output(output) as sink:
            _write(_lines_of(source, facts, writer), sink, output)
    finally:
        source.close()
    warn(facts.warnings)
    if not quiet:
        sys.stderr.write("".join(f"{label:<{_LABEL_WIDTH}}{text}\n" for label, text in _told(facts, writer, output)))
    replay_flags = _replay_flags(facts, closed_loop=closed_loop)
    if replay_flags:
        print(f"replay it with: mocker-replay run {plain(output)} {' '.join(replay_flags)}", file=sys.stderr)
    return int(ExitCode.OK)


def _lines_of(source: TraceSource, facts: TraceFacts, writer: MooncakeWriter) -> Iterator[bytes]:
    """The canonical file, some lines at a time: rows as Mooncake, a graph of requests as agentic Mooncake."""
    if facts.graph is None:
        for batch in source.batches():
            yield writer.lines(batch)
        return
    from mocker_replay.trace.agentic_writer import agentic_lines
    from mocker_replay.trace.graph_source import GraphSource

    assert isinstance(source, GraphSource), "the facts say that there is a graph"
    graph_source = facts.graph.source
    yield from agentic_lines(source.graph(), source_format=graph_source["format"], source_digest=graph_source["digest"])


def _write(lines: Iterator[bytes], sink: Any, output: str) -> None:
    from mocker_replay.log.compression import open_encoder

    encoder = open_encoder(sink, output)
    for text in lines:
        encoder.write(text)
    encoder.close()


def _told(facts: TraceFacts, writer: MooncakeWriter, output: str) -> Iterator[tuple[str, str]]:
    """What was assumed and done, a line each."""
    first_ms = facts.min_first_timestamp_ms
    origin = "no arrival times" if first_ms is None else f"the earliest arrival at {first_ms:.15g} ms"
    lineage = facts.lineage
    num_read = facts.num_rows if lineage is None else lineage.source_rows
    digest = facts.digest if lineage is None else lineage.source_digest
    yield "read", f"{plain(facts.name)}: {num_read:,} rows, {facts.format}, digest {digest}"
    assumed = () if facts.assumptions is None else facts.assumptions.texts()
    yield (
        "assumed",
        "; ".join((f"timestamps in {facts.timestamp_unit}, {facts.trace_block_size} tokens a hash id", *assumed)),
    )
    if lineage is not None:
        for step, num_rows in zip(lineage.steps, lineage.rows_after, strict=True):
            yield "transform", f"{step}: {num_rows:,} rows"
        yield "transformed", f"digest {facts.digest}"
    name = "standard output" if output == "-" else plain(output)
    sessions = f"{facts.num_sessions:,} session" + ("" if facts.num_sessions == 1 else "s")
    if facts.graph is not None:
        graph = facts.graph
        yield (
            "wrote",
            f"{name}: {facts.num_rows:,} requests in {graph.num_plays:,} plays, {graph.num_edges:,} edges, {origin}",
        )
        return
    yield "wrote", f"{name}: {writer.num_rows:,} rows in {sessions}, timestamps in ms, {origin}"
    if writer.num_inexact:
        what = f"{writer.num_inexact:,} times that no decimal gives back are one unit in the last place off"
        yield "inexact", what


def _replay_flags(facts: TraceFacts, *, closed_loop: bool) -> list[str]:
    """What `run` must be told to replay the file as meant, beyond its defaults."""
    from mocker_replay.trace.opening import MOONCAKE_BLOCK_SIZE

    found = []
    if facts.graph is not None:
        return ["--execution-model", "NAME"]
    if facts.trace_block_size != MOONCAKE_BLOCK_SIZE:
        found += ["--trace-block-size", str(facts.trace_block_size)]
    if closed_loop or facts.min_first_timestamp_ms is None:
        found += ["--replay-concurrency", "SESSIONS"]
    return found
