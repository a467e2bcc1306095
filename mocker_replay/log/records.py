"""Records that a machine returned instead of publishing, appended to a buffer as if it had published them.

Decides nothing but that: what a boundary apply did belongs into the log right behind the step that did it.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.events import EventKind

_INTEGERS = ("worker", "rank", "request", "a", "b", "c", "d", "e", "f")
_WITH_PAYLOAD = {EventKind.PREEMPTION, EventKind.FPM, EventKind.KV_STORED, EventKind.KV_REMOVED, EventKind.DECISION}


def append_records(out: EventBuffer, records: npt.NDArray[Any], *, t_ms: float | None = None) -> None:
    """Append records that have no payload.

    Args:
        records: (num_records,) structured array, as `EventBuffer.records_array` gives it.
        t_ms: another modelled time for all of them [ms].

    Raises:
        ValueError: a record that has a payload, which is not in the array.
    """
    for row in records:
        kind = EventKind(int(row["kind"]))
        if kind in _WITH_PAYLOAD or (kind == EventKind.TERMINAL and row["d"] >= 0):
            raise ValueError(f"a {kind.name.lower()} record cannot be appended without its payload")
        at_ms = float(row["t_ms"]) if t_ms is None else t_ms
        worker, rank, request, a, b, c, d, e, f = (int(row[name]) for name in _INTEGERS)
        out.append_record(kind, at_ms, worker, rank, request, a=a, b=b, c=c, d=d, e=e, f=f, x=float(row["x"]))
