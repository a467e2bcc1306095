"""Slow models of how lines of two logs are compared and paired: docs/diff.md in Python."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

TIMES = ("t_ms", "end_ms", "wall_time", "last_token_ms")
ENDS = ("finish", "rejection", "cancellation", "failure", "cut")
CLASSES = ("same", "reordered", "moved", "changed", "missing", "extra")


class Number(NamedTuple):
    """A number as its text."""

    text: str


class Fields(NamedTuple):
    """An object, in the order of its fields."""

    items: tuple[tuple[str, Any], ...]


def parse(line: bytes) -> Fields:
    value = json.loads(
        line, object_pairs_hook=lambda pairs: Fields(tuple(pairs)), parse_int=Number, parse_float=Number,
        parse_constant=Number,
    )  # fmt: skip
    assert isinstance(value, Fields)
    return value


def without(value: Any, ignored: Sequence[str], *, times: bool, path: str = "") -> Any:
    """A value without ignored fields; `times`: without the values of times either."""
    if isinstance(value, list):
        return [without(item, ignored, times=times, path=path) for item in value]
    if not isinstance(value, Fields):
        return value
    kept = []
    for name, item in value.items:
        below = f"{path}.{name}" if path else name
        if name in ignored or below in ignored or below == "seq":
            continue
        if times and name in TIMES and not isinstance(item, Fields | list):
            item = None
        kept.append((name, without(item, ignored, times=times, path=below)))
    return Fields(tuple(kept))


def key_of(line: Fields) -> tuple[Any, ...]:
    fields = dict(line.items)
    kind = fields.get("event")
    if kind in ENDS:
        return "end", fields.get("request")
    if kind in ("pass_start", "pass_end"):
        return kind, fields.get("worker"), fields.get("pass")
    if kind == "kv_removed":
        return kind, fields.get("worker"), fields.get("rank"), repr(fields.get("block_hashes"))
    more = {"tokens": "total", "preemption": "preemptions", "command": "kind", "kv_stored": "first_block"}
    return kind, fields.get("request"), fields.get(more[kind]) if kind in more else None


class Line:
    """What the model makes of one line."""

    def __init__(self, text: bytes, ignored: Sequence[str] = ()) -> None:
        parsed = parse(text)
        fields = dict(parsed.items)
        self.body = text[text.index(b",") :]
        self.kind = fields["event"]
        self.key = key_of(parsed)
        self.content = without(parsed, ignored, times=False)
        self.timeless = without(parsed, ignored, times=True)
        self.t_ms = float(fields["t_ms"].text) if "t_ms" in fields else math.nan


class ModelResult(NamedTuple):
    counts: dict[str, dict[str, int]]  # event -> class -> lines, where there are any
    first_classes: tuple[str | None, str | None]
    given_up: tuple[int, int]


def align(a: Sequence[Line], b: Sequence[Line], window: int) -> ModelResult:
    """Pair the lines of two logs. Each waits in a list of [index or None, once matched], oldest first."""
    logs = (a, b)
    at, spine, given_up = [0, 0], [-1, -1], [0, 0]
    settled = [-1, -1]  # the last line of each log that is an arrival with a partner
    waiting: list[list[int | None]] = [[], []]
    counts: dict[str, dict[str, int]] = {}
    first: list[str | None] = [None, None]

    def note(which: int, index: int, kind: str, found: str) -> None:
        counts.setdefault(kind, dict.fromkeys(CLASSES, 0))[found] += 1
        if index == 0:
            first[which] = found

    def give_up(which: int) -> None:
        index = waiting[which].pop(0)
        while waiting[which] and waiting[which][0] is None:
            waiting[which].pop(0)
        assert index is not None
        line = logs[which][index]
        note(which, index, line.kind, "missing" if which == 0 else "extra")

    def choose() -> int:
        if at[0] == len(a) or at[1] == len(b):
            return 1 if at[0] == len(a) else 0
        heads = a[at[0]].t_ms, b[at[1]].t_ms
        ahead = [
            sum(line.kind == "arrival" for line in logs[which][settled[which] + 1 : at[which]]) for which in (0, 1)
        ]
        if ahead[0] != ahead[1]:
            return 0 if ahead[0] < ahead[1] else 1
        if heads[0] != heads[1]:
            return 0 if heads[0] < heads[1] else 1
        return 0 if len(alive(0)) <= len(alive(1)) else 1

    def alive(which: int) -> list[int]:
        return [index for index in waiting[which] if index is not None]

    while at[0] < len(a) or at[1] < len(b):
        if at[0] < len(a) and at[1] < len(b) and not alive(0) and not alive(1):
            line, other = a[at[0]], b[at[1]]
            if line.body == other.body:
                settled = list(at) if line.kind == "arrival" else settled
                note(0, at[0], line.kind, "same")
                first[1] = "same" if at[1] == 0 else first[1]
                spine = list(at)
                at = [at[0] + 1, at[1] + 1]
                continue
        which = choose()
        line, index = logs[which][at[which]], at[which]
        at[which] += 1
        other_log = 1 - which
        partner = next((i for i in alive(other_log) if logs[other_log][i].key == line.key), None)
        if partner is None:
            if len(waiting[which]) == window:
                give_up(which)
                given_up[which] += 1
            waiting[which].append(index)
            continue
        place = waiting[other_log].index(partner)
        waiting[other_log][place] = None
        while waiting[other_log] and waiting[other_log][0] is None:
            waiting[other_log].pop(0)
        found_line = logs[other_log][partner]
        in_order = index > spine[which] and partner > spine[other_log]
        if in_order:
            spine[which], spine[other_log] = index, partner
        if line.kind == "arrival":
            settled[which], settled[other_log] = max(settled[which], index), max(settled[other_log], partner)
        if line.content == found_line.content:
            found = "same" if in_order else "reordered"
        else:
            found = "moved" if line.timeless == found_line.timeless else "changed"
        note(which, index, line.kind if which == 0 else found_line.kind, found)
        if partner == 0:
            first[other_log] = found
    for which in (0, 1):
        while waiting[which]:
            give_up(which)
    return ModelResult(counts, (first[0], first[1]), (given_up[0], given_up[1]))
