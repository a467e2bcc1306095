"""Open a trace, in a named format or in the one it is in.

Decides which format names exist, checks the reading options and those that a format has no use for. Never reads rows.
A reader is imported when a trace of its format is opened: a run pays for one of them only.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, get_args

from msgspec import Struct

from mocker_replay.config.prefix_estimate import ESTIMATE_RULE, NO_SHARING, read_estimate
from mocker_replay.config.prefix_groups import sharing_fault
from mocker_replay.errors import TraceError, UsageError
from mocker_replay.trace.base import (
    MAX_TOKENS,
    FailedRows,
    MissingHashIds,
    MissingTimestamps,
    NestedTimestampBasis,
    RowBatch,
    SurplusHashIds,
    TimestampUnit,
    TraceFacts,
    TraceSource,
)
from mocker_replay.trace.decompression import TextLimit
from mocker_replay.trace.detection import AUTO, HEAD_BYTES, detect, hint_for, require_one
from mocker_replay.trace.graph import TraceGraph
from mocker_replay.trace.graph_source import GraphSource
from mocker_replay.trace.line_file import LineFile, Lines, TracePath
from mocker_replay.trace.mooncake import MooncakeTrace
from mocker_replay.trace.mooncake_row import MooncakeRules

PARQUET_MAGIC: Final = b"PAR1"
MOONCAKE_BLOCK_SIZE: Final = 512
QWEN_BLOCK_SIZE: Final = 16
TABLE_BLOCK_SIZE: Final = 64  # of prompts without hash ids, where any size will do
MAX_TEXT_GIB: Final = 1 << 20
_CHOICES: Final = {
    "timestamp_unit": get_args(TimestampUnit),
    "missing_timestamps": get_args(MissingTimestamps),
    "surplus_hash_ids": get_args(SurplusHashIds),
    "missing_hash_ids": get_args(MissingHashIds),
}
WEKA: Final = "weka"


class ReadingOptions(Struct, frozen=True):
    """How a trace is to be read, whatever its format; the fields are those of `open_trace`."""

    trace_block_size: int | None = None
    timestamp_unit: TimestampUnit = "ms"
    closed_loop: bool = False
    missing_timestamps: MissingTimestamps = "refuse"
    surplus_hash_ids: SurplusHashIds = "ignore"
    missing_hash_ids: MissingHashIds = "refuse"
    estimate_prefix: str | None = None
    failed_rows: FailedRows | None = None
    max_text_gib: int | None = None
    weka_nested_timestamp_basis: NestedTimestampBasis | None = None
    trace_shared_prefix_ratio: float | None = None
    trace_num_prefix_groups: int | None = None


class OpenTrace(TraceSource, Protocol):
    """A trace that gives its file back when it is left."""

    def __enter__(self) -> OpenTrace: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


Opener = Callable[[Lines, ReadingOptions], OpenTrace]


_SHARING: Final = ("trace_shared_prefix_ratio", "trace_num_prefix_groups")
_BASIS: Final = "weka_nested_timestamp_basis"


def _open_mooncake(file: Lines, options: ReadingOptions) -> OpenTrace:
    return _opened_mooncake(file, options, is_delta=False)


def _open_delta(file: Lines, options: ReadingOptions) -> OpenTrace:
    return _opened_mooncake(file, options, is_delta=True)


def _opened_mooncake(file: Lines, options: ReadingOptions, *, is_delta: bool) -> OpenTrace:
    _require_no_use(options, "mooncake", ("estimate_prefix", "failed_rows", *_SHARING, _BASIS))
    size = options.trace_block_size
    rules = MooncakeRules(
        trace_block_size=MOONCAKE_BLOCK_SIZE if size is None else size,
        timestamp_unit=options.timestamp_unit,
        closed_loop=options.closed_loop,
        missing_timestamps=options.missing_timestamps,
        surplus_hash_ids=options.surplus_hash_ids,
        missing_hash_ids=options.missing_hash_ids,
        is_delta=is_delta,
    )
    return MooncakeTrace(file, rules)


def _open_agentic(file: Lines, options: ReadingOptions) -> OpenTrace:
    _require_usual(options, "agentic_mooncake", ("timestamp_unit", "missing_timestamps", "missing_hash_ids"))
    _require_no_use(options, "agentic_mooncake", ("estimate_prefix", "failed_rows", *_SHARING, _BASIS))
    from mocker_replay.trace.agentic_mooncake import AgenticMooncakeTrace

    return AgenticMooncakeTrace(file, options.trace_block_size)


def _open_dynamo(file: Lines, options: ReadingOptions) -> OpenTrace:
    _require_usual(options, "dynamo", ("timestamp_unit", "missing_timestamps", "missing_hash_ids"))
    _require_no_use(options, "dynamo", ("estimate_prefix", "failed_rows", *_SHARING, _BASIS))
    from mocker_replay.trace.dynamo import DynamoRules, DynamoTrace

    return DynamoTrace(file, DynamoRules(options.trace_block_size, options.surplus_hash_ids))


def _open_applied(file: Lines, options: ReadingOptions) -> OpenTrace:
    name = "applied_compute_agentic"
    _require_usual(options, name, ("timestamp_unit", "missing_timestamps", "missing_hash_ids"))
    _require_no_use(options, name, ("estimate_prefix", "failed_rows", _BASIS))
    from mocker_replay.trace.applied import AppliedRules, AppliedTrace

    size = options.trace_block_size
    rules = AppliedRules(
        trace_block_size=MOONCAKE_BLOCK_SIZE if size is None else size,
        shared_prefix_ratio=float(options.trace_shared_prefix_ratio or 0.0),
        num_prefix_groups=options.trace_num_prefix_groups or 0,
    )
    return AppliedTrace(file, rules)


def _open_weka(path: TracePath, options: ReadingOptions) -> OpenTrace:
    """A trace by its path: the names of its requests depend on it, and it may be a directory."""
    _require_usual(options, WEKA, ("timestamp_unit", "missing_timestamps"))
    _require_no_use(options, WEKA, ("estimate_prefix", "failed_rows", *_SHARING))
    if not isinstance(path, str | os.PathLike):
        if len(path) != 1:
            raise UsageError(f"a weka trace is one file or one directory, got {len(path)}")
        path = path[0]
    from mocker_replay.trace.weka import WekaTrace

    basis = options.weka_nested_timestamp_basis or "auto"
    return WekaTrace(path, basis, options.trace_block_size, TextLimit(options.max_text_gib))


def _opener_of(name: str) -> Opener:
    """Of a format that is a table of requests; `_FLAT` says where it is."""

    def open_flat(file: Lines, options: ReadingOptions) -> OpenTrace:
        from mocker_replay.trace.block_ids import PrefixEstimate
        from mocker_replay.trace.flat import FlatFormat, FlatRules, FlatTrace

        module, of_class = _FLAT[name]
        form: FlatFormat = getattr(importlib.import_module(f"mocker_replay.trace.{module}"), of_class)()
        useless = [*_SHARING, _BASIS, "estimate_prefix"] if form.has_hash_ids else [*_SHARING, _BASIS]
        useless += [] if form.tells_failures else ["failed_rows"]
        _require_no_use(options, form.name, useless)
        unit = options.timestamp_unit
        if unit not in ("ms", form.timestamp_unit):  # ms is what stands there when nobody said anything
            told = "dates and times" if form.timestamp_unit == "datetime" else f"in {form.timestamp_unit}"
            raise UsageError(f"timestamp_unit {unit} cannot be: the timestamps of {form.name} are {told}")
        size = options.trace_block_size
        default = QWEN_BLOCK_SIZE if form.has_hash_ids else TABLE_BLOCK_SIZE
        estimate = read_estimate(NO_SHARING if options.estimate_prefix is None else options.estimate_prefix)
        assert estimate is not None, "checked by open_trace"
        rules = FlatRules(
            trace_block_size=default if size is None else size,
            closed_loop=options.closed_loop,
            missing_timestamps=options.missing_timestamps,
            surplus_hash_ids=options.surplus_hash_ids,
            missing_hash_ids=options.missing_hash_ids,
            failed_rows=options.failed_rows or "drop",
            estimate=PrefixEstimate(*estimate),
        )
        return FlatTrace(file, form, rules)

    return open_flat


# Module and class of each.
_FLAT: Final = {
    "qwen": ("qwen", "QwenFormat"),
    "azure": ("azure", "AzureFormat"),
    "burstgpt": ("burstgpt", "BurstGptFormat"),
    "vllm_bench": ("vllm_bench", "VllmBenchFormat"),
    "sglang_bench": ("sglang_bench", "SglangBenchFormat"),
}
# Each format that is built, and how a trace of it is opened.
OPENERS: Final[dict[str, Opener]] = {
    "mooncake": _open_mooncake,
    "mooncake-delta": _open_delta,
    "mooncake_delta": _open_delta,
    "agentic_mooncake": _open_agentic,
    "agentic-mooncake": _open_agentic,
    "applied_compute_agentic": _open_applied,
    "dynamo": _open_dynamo,
    **{name: _opener_of(name) for name in _FLAT},
}
FORMATS: Final = (*OPENERS, WEKA)


def open_trace(
    path: TracePath,
    *,
    trace_format: str = "mooncake",
    trace_block_size: int | None = None,
    timestamp_unit: TimestampUnit = "ms",
    closed_loop: bool = False,
    missing_timestamps: MissingTimestamps = "refuse",
    surplus_hash_ids: SurplusHashIds = "ignore",
    missing_hash_ids: MissingHashIds = "refuse",
    estimate_prefix: str | None = None,
    failed_rows: FailedRows | None = None,
    max_text_gib: int | None = None,
    weka_nested_timestamp_basis: NestedTimestampBasis | None = None,
    trace_shared_prefix_ratio: float | None = None,
    trace_num_prefix_groups: int | None = None,
) -> OpenTrace:
    """Open a trace for reading.

    Args:
        path: a file, or "-" for standard input; several are read one after another, as one trace.
        trace_format: one of FORMATS, or "auto": the one that the first rows show.
        trace_block_size: prompt tokens that one hash id stands for. None: 512, for qwen 16, for formats without
            hash ids 64.
        timestamp_unit: unit of a Mooncake `timestamp`; `delay` is in ms whatever this says.
        closed_loop: arrivals are ignored, so a first turn needs no timestamp, but must not have a negative one.
        missing_timestamps: a first turn without timestamp is refused, arrives at "zero" of the trace's
            clock, or together with the nearest row above that has one ("previous"; 0 at the top).
        surplus_hash_ids: more than one hash id beyond the prompt's blocks is refused, or ignored with a
            warning. One beyond is always ignored with a warning.
        missing_hash_ids: fewer hash ids than prompt blocks are refused, or the blocks without one share
            nothing ("private").
        estimate_prefix: of a format without hash ids: "none", nothing is shared, or "RATIO:GROUPS". None is "none".
        failed_rows: calls that failed are left out ("drop"), kept as prompts without output, or refused. None is
            "drop".
        max_text_gib: most text of a compressed file or a pipe [GiB]. None: 16, and at most 250 times the file.
        weka_nested_timestamp_basis: the clock of a sub-agent's requests, that of the play ("absolute") or one that
            starts with the sub-agent ("relative"). None is "auto": relative if any request would start before.
        trace_shared_prefix_ratio, trace_num_prefix_groups: of applied_compute_agentic: sessions of one group share
            this part of their first prompts. None: nothing is shared.

    Raises:
        UsageError: an option out of its range or of no use to the format, or a format that is not built.
        TraceError: the file cannot be opened, is no text file, or (with "auto") fits no format or several.
    """
    options = ReadingOptions(
        trace_block_size, timestamp_unit, closed_loop, missing_timestamps, surplus_hash_ids, missing_hash_ids,
        estimate_prefix, failed_rows, max_text_gib, weka_nested_timestamp_basis, trace_shared_prefix_ratio,
        trace_num_prefix_groups,
    )  # fmt: skip
    if trace_format != AUTO:
        _require_built(trace_format)
    _require_range(options)
    return _opened(path, trace_format, options)


def _opened(path: TracePath, trace_format: str, options: ReadingOptions) -> OpenTrace:
    if trace_format == WEKA or (trace_format == AUTO and _is_directory(path)):
        return _open_weka(path, options)
    if trace_format in ("agentic_mooncake", "agentic-mooncake", "dynamo", "applied_compute_agentic"):
        _require_usual(options, trace_format, ("timestamp_unit", "missing_timestamps", "missing_hash_ids"))
    file = _lines_of(path, TextLimit(options.max_text_gib))
    try:
        detected = detect(file.head(HEAD_BYTES))
        if trace_format != AUTO:
            source = OPENERS[trace_format](file, options)
            hint = hint_for(trace_format, detected)
            return _Misdeclared(source, hint) if hint else source
        found = require_one(detected, file.shown_path)
        _require_built(found, f"{file.shown_path}: ")
        if found == WEKA:
            file.close()
            return _open_weka(path, options)
        return OPENERS[found](file, options)
    except BaseException:
        file.close()
        raise


def _is_directory(path: TracePath) -> bool:
    if not isinstance(path, str | os.PathLike):
        return len(path) == 1 and os.path.isdir(path[0])
    return os.path.isdir(path)


def _lines_of(path: TracePath, limit: TextLimit) -> Lines:
    """Parquet is known by its first bytes, as compressed text is."""
    file = LineFile(path, limit)
    if not file.starts_with(PARQUET_MAGIC):
        return file
    file.close()
    if len(file.paths) > 1 or file.path == "-":
        raise UsageError(f"{file.shown_path}: a Parquet file is read alone, and not from standard input")
    from mocker_replay.trace.parquet import ParquetLines

    return ParquetLines(file.path, limit)


class _Misdeclared:
    """A trace that plainly is in another format than the one it was said to be in: its faults come with a hint."""

    def __init__(self, source: OpenTrace, hint: str) -> None:
        self._source = source
        self._hint = hint

    def __enter__(self) -> _Misdeclared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def scan(self) -> TraceFacts:
        try:
            return self._source.scan()
        except TraceError as error:
            raise TraceError(error.faults, error.omitted, self._hint) from None

    def batches(self, max_rows: int = 1024) -> Iterator[RowBatch]:
        self.scan()
        return self._source.batches(max_rows)

    def graph(self) -> TraceGraph:
        """The graph of a trace whose facts say that it is one."""
        assert isinstance(self._source, GraphSource), "the facts say whether there is a graph"
        return self._source.graph()


def _require_built(trace_format: str, where: str = "") -> None:
    if trace_format not in FORMATS:
        raise UsageError(f"{where}trace_format must be one of {AUTO}, {', '.join(FORMATS)}, got {trace_format!r}")


def _require_range(options: ReadingOptions) -> None:
    size, gib = options.trace_block_size, options.max_text_gib
    if size is not None and (type(size) is not int or not 1 <= size <= MAX_TOKENS):
        raise UsageError(f"trace_block_size must be an integer from 1 to {MAX_TOKENS}, got {size}")
    if gib is not None and (type(gib) is not int or not 1 <= gib <= MAX_TEXT_GIB):
        raise UsageError(f"max_text_gib must be an integer from 1 to {MAX_TEXT_GIB}, got {gib}")
    for name, choices in _CHOICES.items():
        value = getattr(options, name)
        if value not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    if options.failed_rows is not None and options.failed_rows not in get_args(FailedRows):
        raise UsageError(f"failed_rows must be one of {', '.join(get_args(FailedRows))}, got {options.failed_rows!r}")
    if options.weka_nested_timestamp_basis not in (None, *get_args(NestedTimestampBasis)):
        told = ", ".join(get_args(NestedTimestampBasis))
        raise UsageError(
            f"weka_nested_timestamp_basis must be one of {told}, got {options.weka_nested_timestamp_basis!r}"
        )
    sharing = sharing_fault(options.trace_shared_prefix_ratio, options.trace_num_prefix_groups)
    if sharing is not None:
        raise UsageError(f"{sharing[0]} {sharing[1]}")
    estimate = options.estimate_prefix
    if estimate is not None and read_estimate(estimate) is None:
        raise UsageError(f"estimate_prefix {ESTIMATE_RULE}, got {estimate!r}")


def _require_no_use(options: ReadingOptions, trace_format: str, names: Sequence[str]) -> None:
    """Refuse an option that a trace of this format has no use for."""
    reasons = {
        "estimate_prefix": "it has hash ids",
        "failed_rows": "it does not tell which calls failed",
        _BASIS: "it has no sub-agents",
    } | dict.fromkeys(_SHARING, "it says itself what its prompts share")
    for name in names:
        if getattr(options, name) is not None:
            raise UsageError(f"{name} is of no use to a trace in the format {trace_format}: {reasons[name]}")


def _require_usual(options: ReadingOptions, trace_format: str, names: Sequence[str]) -> None:
    """Refuse settings that bend rows of other formats and would do nothing here."""
    usual = ReadingOptions()
    for name in names:
        if getattr(options, name) != getattr(usual, name):
            raise UsageError(f"{name} {getattr(options, name)} is of no use with trace_format {trace_format}")
