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


def append_records(
    out: EventBuffer, records: npt.NDArray[Any], words: npt.NDArray[Any] | None = None, *, t_ms: float | None = None
) -> None:
    """Append records with their payloads.

    Args:
        records: (num_records,) structured array, as `EventBuffer.records_array` gives it.
        words: (num_words,) int64, as `EventBuffer.words_array` gives it; needed if a record has a payload.
        t_ms: another modelled time for all of them [ms].

    Raises:
        ValueError: a record that has a payload, and no `words`.
    """
    for row in records:
        kind = EventKind(int(row["kind"]))
        at_ms = float(row["t_ms"]) if t_ms is None else t_ms
        worker, rank, request, a, b, c, d, e, f = (int(row[name]) for name in _INTEGERS)
        payload: list[int] | None = None
        if kind in _WITH_PAYLOAD or (kind == EventKind.TERMINAL and d >= 0):
            if words is None:
                raise ValueError(f"a {kind.name.lower()} record cannot be appended without its payload")
            payload = (words[d : d + 2] if kind == EventKind.TERMINAL else words[c : c + d]).tolist()
        out.append_record(
            kind, at_ms, worker, rank, request, a=a, b=b, c=c, d=d, e=e, f=f, x=float(row["x"]), words=payload
        )
