"""How verbs open a trace by their flags. Decides defaults only; what a trace means is decided by its reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mocker_replay.trace.opening import OpenTrace

_READING = (
    "trace_format", "trace_block_size", "timestamp_unit", "closed_loop", "missing_timestamps", "surplus_hash_ids",
    "missing_hash_ids", "estimate_prefix", "failed_rows", "max_text_gib", "weka_nested_timestamp_basis",
    "trace_shared_prefix_ratio", "trace_num_prefix_groups",
)  # fmt: skip


def open_by_flags(trace: str | list[str], given: Mapping[str, Any]) -> OpenTrace:
    """The trace as the flags under "Reading the trace" say; the caller closes it.

    Raises:
        UsageError, TraceError: as `mocker_replay.trace.open_trace`.
    """
    from mocker_replay.trace import open_trace

    return open_trace(trace, **{name: given[name] for name in _READING})
