"""How verbs open a trace by their flags. Decides defaults only; what a trace means is decided by its reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mocker_replay.config.options import MOONCAKE_BLOCK_SIZE

if TYPE_CHECKING:
    from mocker_replay.trace.mooncake import MooncakeTrace


def open_by_flags(trace: str, given: Mapping[str, Any]) -> MooncakeTrace:
    """The trace as the flags under "Reading the trace" say; the caller closes it.

    Raises:
        UsageError, TraceError: as `mocker_replay.trace.open_trace`.
    """
    from mocker_replay.trace import open_trace

    size = given["trace_block_size"]
    return open_trace(
        trace,
        trace_format=given["trace_format"],
        trace_block_size=MOONCAKE_BLOCK_SIZE if size is None else size,
        timestamp_unit=given["timestamp_unit"],
        closed_loop=given["closed_loop"],
        missing_timestamps=given["missing_timestamps"],
        surplus_hash_ids=given["surplus_hash_ids"],
        missing_hash_ids=given["missing_hash_ids"],
    )
