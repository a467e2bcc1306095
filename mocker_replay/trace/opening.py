"""Open a trace in a named format.

Decides which format names exist and checks the reading options. Never reads rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, get_args

from mocker_replay.errors import UsageError
from mocker_replay.trace.agentic_mooncake import AgenticMooncakeTrace
from mocker_replay.trace.base import (
    MAX_TOKENS,
    MissingHashIds,
    MissingTimestamps,
    SurplusHashIds,
    TimestampUnit,
)
from mocker_replay.trace.line_file import LineFile
from mocker_replay.trace.mooncake import MooncakeTrace
from mocker_replay.trace.mooncake_row import MooncakeRules

FORMATS: Final = ("mooncake", "mooncake-delta", "mooncake_delta", "agentic_mooncake", "agentic-mooncake")
# Formats of the reference that are not built: named, so that the refusal says so.
_PLANNED_FORMATS: Final = (
    "weka", "applied_compute_agentic", "dynamo",
)  # fmt: skip
_AGENTIC: Final = ("agentic_mooncake", "agentic-mooncake")
_DELTA: Final = ("mooncake-delta", "mooncake_delta")
_MOONCAKE_BLOCK_SIZE: Final = 512
_CHOICES: Final = {
    "timestamp_unit": get_args(TimestampUnit),
    "missing_timestamps": get_args(MissingTimestamps),
    "surplus_hash_ids": get_args(SurplusHashIds),
    "missing_hash_ids": get_args(MissingHashIds),
}


def open_trace(
    path: str | os.PathLike[str],
    *,
    trace_format: str = "mooncake",
    trace_block_size: int | None = None,
    timestamp_unit: TimestampUnit = "ms",
    closed_loop: bool = False,
    missing_timestamps: MissingTimestamps = "refuse",
    surplus_hash_ids: SurplusHashIds = "ignore",
    missing_hash_ids: MissingHashIds = "refuse",
) -> MooncakeTrace | AgenticMooncakeTrace:
    """Open a trace for reading.

    Args:
        path: a file, or "-" for standard input.
        trace_format: one of FORMATS.
        trace_block_size: prompt tokens that one hash id stands for; None: 512, or what the trace says itself.
        timestamp_unit: unit of `timestamp`; `delay` is in ms whatever this says.
        closed_loop: arrivals are ignored, so a first turn needs no timestamp, but must not have a negative one.
        missing_timestamps: a first turn without timestamp is refused, arrives at "zero" of the trace's
            clock, or together with the nearest row above that has one ("previous"; 0 at the top).
        surplus_hash_ids: more than one hash id beyond the prompt's blocks is refused, or ignored with a
            warning. One beyond is always ignored with a warning.
        missing_hash_ids: fewer hash ids than prompt blocks are refused, or the blocks without one share
            nothing ("private").

    Raises:
        UsageError: an option out of its range, or a format that is not built.
        TraceError: the file cannot be opened, or is no text file.
    """
    if trace_format in _PLANNED_FORMATS:
        raise UsageError(f"trace_format {trace_format!r} is not built yet; built: {', '.join(FORMATS)}")
    if trace_format not in FORMATS:
        raise UsageError(f"trace_format must be one of {', '.join(FORMATS)}, got {trace_format!r}")
    if trace_block_size is not None and (type(trace_block_size) is not int or not 1 <= trace_block_size <= MAX_TOKENS):
        raise UsageError(f"trace_block_size must be an integer from 1 to {MAX_TOKENS}, got {trace_block_size}")
    given = {
        "timestamp_unit": timestamp_unit,
        "missing_timestamps": missing_timestamps,
        "surplus_hash_ids": surplus_hash_ids,
        "missing_hash_ids": missing_hash_ids,
    }
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise UsageError(f"{name} must be one of {', '.join(_CHOICES[name])}, got {value!r}")
    if trace_format in _AGENTIC:
        _refuse_settings_of_rows(trace_format, given)
        return AgenticMooncakeTrace(LineFile(path), trace_block_size)
    rules = MooncakeRules(
        trace_block_size=_MOONCAKE_BLOCK_SIZE if trace_block_size is None else trace_block_size,
        timestamp_unit=timestamp_unit,
        closed_loop=closed_loop,
        missing_timestamps=missing_timestamps,
        surplus_hash_ids=surplus_hash_ids,
        missing_hash_ids=missing_hash_ids,
        is_delta=trace_format in _DELTA,
    )
    return MooncakeTrace(LineFile(path), rules)


def _refuse_settings_of_rows(trace_format: str, given: Mapping[str, str]) -> None:
    """A graph names its units and lists every hash id: settings that bend other rows would do nothing."""
    usual = {"timestamp_unit": "ms", "missing_timestamps": "refuse", "missing_hash_ids": "refuse"}
    for name, value in usual.items():
        if given[name] != value:
            raise UsageError(f"{name} {given[name]} is of no use with trace_format {trace_format}")
