"""Transforms of a trace as their words say, one row at a time. Slow, and by no code of the package."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3


@dataclass(frozen=True)
class Row:
    """A row of a trace, with what its reader has settled."""

    line: int
    session: str  # name, `request_<line>` without one
    is_named: bool
    turn: int
    time_ms: float | None
    delay_ms: float
    input_tokens: int
    output_tokens: int
    ids: tuple[int, ...]
    request_id: str | None
    rest: tuple[Any, ...]  # priorities and times of the client, which no transform touches


def apply(rows: list[Row], text: str, size: int) -> list[Row]:
    """One transform; `size` is the number of tokens a hash id stands for. Times count from the first arrival."""
    name, _, value = text.partition("=")
    steps = {
        "window": window, "limit-rows": limit_rows, "sample": sample, "scale-arrivals": scale_arrivals,
        "scale-delays": scale_delays, "scale-output": scale_output, "cap-gap-ms": cap_gap, "cap-delay-ms": cap_delay,
        "renumber-hash-ids": renumber_hash_ids, "renumber-request-ids": renumber_request_ids,
    }  # fmt: skip
    return scale_input(rows, value, size) if name == "scale-input" else steps[name](rows, value)


def relative(rows: list[Row]) -> list[Row]:
    """Times from the first arrival on."""
    first_ms = min((row.time_ms for row in rows if row.turn == 0 and row.time_ms is not None), default=0.0)
    return [replace(row, time_ms=None if row.time_ms is None else row.time_ms - first_ms) for row in rows]


def window(rows: list[Row], value: str) -> list[Row]:
    start, end = (float(part.removesuffix("ms") or "inf") for part in value.split(":"))
    inside = {row.session for row in rows if row.turn == 0 and start <= (row.time_ms or 0.0) < end}
    return [row for row in rows if row.session in inside]


def limit_rows(rows: list[Row], value: str) -> list[Row]:
    return rows[: int(value)]


def sample(rows: list[Row], value: str) -> list[Row]:
    ratio, seed = value.split(",seed=")

    def share(row: Row) -> float:
        digest = blake3(f"{int(seed)}:{row.session}".encode()).digest(length=8)
        return int.from_bytes(digest, "little") / 2**64

    return [row for row in rows if share(row) < float(ratio)]


def in_ns(time_ms: float) -> float:
    return round(time_ms * 1e6) / 1e6


def bare(row: Row, time_ms: float | None) -> Row:
    """A later turn has no time of its own any more."""
    return replace(row, time_ms=time_ms if row.turn == 0 else None)


def scale_arrivals(rows: list[Row], value: str) -> list[Row]:
    factor = float(value)
    return [bare(row, None if row.time_ms is None else in_ns(row.time_ms * factor)) for row in rows]


def scale_delays(rows: list[Row], value: str) -> list[Row]:
    return [replace(bare(row, row.time_ms), delay_ms=in_ns(row.delay_ms * float(value))) for row in rows]


def cap_delay(rows: list[Row], value: str) -> list[Row]:
    return [replace(bare(row, row.time_ms), delay_ms=min(row.delay_ms, float(value))) for row in rows]


def cap_gap(rows: list[Row], value: str) -> list[Row]:
    arrivals = sorted({row.time_ms for row in rows if row.turn == 0 and row.time_ms is not None})
    moved: dict[float, float] = {}
    before_ms, saved_ms = 0.0, 0.0
    for time_ms in arrivals:
        saved_ms += max(time_ms - before_ms - float(value), 0.0)
        moved[time_ms] = in_ns(time_ms - saved_ms)
        before_ms = time_ms
    return [bare(row, moved.get(row.time_ms) if row.time_ms is not None and row.turn == 0 else None) for row in rows]


def scaled(tokens: int, factor: float) -> int:
    return max(math.floor(tokens * factor + 0.5), 1) if tokens else 0


def scale_input(rows: list[Row], value: str, size: int) -> list[Row]:
    free = max(max(row.ids) for row in rows) + 1
    done = []
    for row in rows:
        tokens = scaled(row.input_tokens, float(value))
        blocks = math.ceil(tokens / size)
        ids = list(row.ids[:blocks])
        while len(ids) < blocks:
            ids.append(free)
            free += 1
        done.append(replace(row, input_tokens=tokens, ids=tuple(ids)))
    return done


def scale_output(rows: list[Row], value: str) -> list[Row]:
    return [replace(row, output_tokens=scaled(row.output_tokens, float(value))) for row in rows]


def renumber_hash_ids(rows: list[Row], value: str) -> list[Row]:
    numbers: dict[int, int] = {}
    for row in rows:
        for x in row.ids:
            numbers.setdefault(x, len(numbers))
    return [replace(row, ids=tuple(numbers[x] for x in row.ids)) for row in rows]


def renumber_request_ids(rows: list[Row], value: str) -> list[Row]:
    return [replace(row, request_id=f"r{number}") for number, row in enumerate(rows)]
