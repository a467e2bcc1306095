"""What must hold when any bytes are read as a trace in any format.

Either the trace is refused with a TraceError or a UsageError, or its facts agree with its batches. Nothing else may
come out: no other exception, no change noticed in a file that did not change, no batch out of proportion.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import zstandard

from mocker_replay.errors import TraceError, UsageError
from mocker_replay.trace import FORMATS, RowBatch, TraceFacts, open_trace
from mocker_replay.trace.detection import AUTO
from mocker_replay.trace.graph import TraceGraph
from mocker_replay.trace.graph_source import GraphSource

READ_AS: Final = (AUTO, *FORMATS)
HEAD_BYTES: Final = 4  # format, options, how it is kept, rows of a batch
MAX_BATCH_IDS: Final = 1 << 28
OUT_OF_FILE_ORDER: Final = ("dynamo", "applied_compute_agentic")  # sorted by time; several turns a line


class Broken(AssertionError):
    """A rule that did not hold."""


def case_of(data: bytes) -> tuple[str, dict[str, Any], list[bytes], int]:
    """Format, options, files and rows of a batch that some bytes stand for."""
    head, text = data[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0"), data[HEAD_BYTES:]
    name = READ_AS[head[0] % len(READ_AS)]
    bits = head[1]
    options: dict[str, Any] = {
        "trace_block_size": (None, 16, 1, 512)[bits & 3],
        "closed_loop": bool(bits & 4),
        "missing_timestamps": ("refuse", "zero", "previous", "zero")[bits >> 3 & 3],
        "surplus_hash_ids": ("ignore", "refuse")[bits >> 5 & 1],
        "missing_hash_ids": ("refuse", "private")[bits >> 6 & 1],
    }
    if bits & 128:
        options |= {"timestamp_unit": ("ms", "s", "us")[head[3] % 3]}
        options |= {"estimate_prefix": ("none", "0.5:3", "1:1", None)[head[3] >> 2 & 3]}
        options |= {"failed_rows": ("drop", "keep", "refuse", None)[head[3] >> 4 & 3]}
    return name, options, _files(text, head[2]), 1 + head[3] % 5


def _files(text: bytes, way: int) -> list[bytes]:
    """The text as it is kept: plain, compressed, in two files."""
    if way & 3 == 1:
        return [gzip.compress(text[: way >> 2], 1, mtime=0) + gzip.compress(text[way >> 2 :], 1, mtime=0)]
    if way & 3 == 2:
        return [zstandard.compress(text, 1)]
    if way & 3 == 3:
        cut = text.find(b"\n", way >> 2) + 1 or len(text)
        return [text[:cut], text[cut:]]
    return [text]


def check(data: bytes, folder: Path) -> str:
    """Read what some bytes stand for; says `refused` or `read`.

    Raises:
        Broken: a rule does not hold. Any other exception is a find too.
    """
    name, options, files, max_rows = case_of(data)
    paths = [folder / f"part{number}.jsonl" for number in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    try:
        source = open_trace(paths, trace_format=name, **options)
    except (TraceError, UsageError) as error:
        return _refused(error)
    with source:
        try:
            facts = source.scan()
        except (TraceError, UsageError) as error:
            return _refused(error)
        if facts.graph is not None:
            assert isinstance(source, GraphSource)
            _require_sound_graph(facts, source.graph())
        else:
            _require_agreement(facts, source.batches(max_rows), max_rows, closed_loop=options["closed_loop"])
    return "read"


def _refused(error: TraceError | UsageError) -> str:
    if not str(error):
        raise Broken("a refusal that says nothing")
    return "refused"


def _require_agreement(facts: TraceFacts, batches: Iterable[RowBatch], max_rows: int, *, closed_loop: bool) -> None:
    num_rows = input_tokens = output_tokens = last_line = 0
    first_ms, last_ms, sessions = math.inf, -math.inf, -1
    try:
        for batch in batches:
            _require(0 < len(batch) <= max_rows and batch.first_row == num_rows, "rows are dense")
            _require(len(batch.hash_ids) <= MAX_BATCH_IDS, "a batch is in proportion")
            needed = -(-batch.input_tokens // facts.trace_block_size)
            _require(bool((np.diff(batch.hash_offsets) == needed).all()), "one id a block")
            _require(len(batch.hash_ids) == batch.hash_offsets[-1], "ids end with the rows")
            _require(bool((batch.input_tokens > 0).all() and (batch.output_tokens >= 0).all()), "lengths are legal")
            if facts.format not in OUT_OF_FILE_ORDER:
                _require(bool((np.diff(batch.lines) > 0).all() and batch.lines[0] > last_line), "lines go up")
            firsts = batch.timestamp_ms[batch.turn == 0]
            _require(closed_loop or bool(np.isfinite(firsts).all()), "an open loop knows its arrivals")
            _require(bool((batch.delay_ms >= 0).all() and np.isfinite(batch.delay_ms).all()), "delays are legal")
            num_rows += len(batch)
            last_line = int(batch.lines[-1])
            input_tokens += int(batch.input_tokens.sum())
            output_tokens += int(batch.output_tokens.sum())
            sessions = max(sessions, int(batch.session.max()))
            if not np.isnan(firsts).all():
                first_ms, last_ms = min(first_ms, float(np.nanmin(firsts))), max(last_ms, float(np.nanmax(firsts)))
    except (TraceError, UsageError) as error:
        raise Broken(f"faultless when it was scanned, but then: {error}") from error
    told = (facts.num_rows, facts.total_input_tokens, facts.total_output_tokens, facts.num_sessions)
    _require((num_rows, input_tokens, output_tokens, sessions + 1) == told, "sums agree")
    if facts.min_first_timestamp_ms is not None:
        span = (facts.min_first_timestamp_ms, facts.max_first_timestamp_ms)
        _require((first_ms, last_ms) == span, "the span agrees")
    _require(len(facts.digest) == 64, "there is a digest")


def _require_sound_graph(facts: TraceFacts, graph: TraceGraph) -> None:
    told = (facts.num_rows, facts.total_input_tokens, facts.total_output_tokens)
    sums = (len(graph), int(graph.input_tokens.sum()), int(graph.output_tokens.sum()))
    _require(sums == told, "sums agree")
    needed = -(-graph.input_tokens // graph.block_size)
    _require(bool((np.diff(graph.hash_offsets) == needed).all()), "one id a block")
    _require(len(graph.hash_ids) == graph.hash_offsets[-1] <= MAX_BATCH_IDS, "ids end with the requests, in proportion")
    _require(graph.request_ids == sorted(set(graph.request_ids), key=str.encode), "ids ascend")
    target = np.repeat(np.arange(len(graph)), np.diff(graph.edge_offsets))
    _require(len(target) == len(graph.edge_source), "edges end with the requests")
    _require(bool((graph.play[target] == graph.play[graph.edge_source]).all()), "edges stay in their play")
    _require(bool((graph.edge_delay_ms >= 0).all() and np.isfinite(graph.edge_delay_ms).all()), "delays are legal")
    waiting = np.diff(graph.edge_offsets)
    ready = np.flatnonzero(waiting == 0).tolist()
    for done in ready:  # grows while it is walked
        for at in target[graph.edge_source == done].tolist():
            waiting[at] -= 1
            if waiting[at] == 0:
                ready.append(at)
    _require(len(ready) == len(graph), "there is no cycle")
    _require(len(facts.digest) == 64, "there is a digest")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise Broken(rule)
