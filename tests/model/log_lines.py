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
    """Pair the lines of two logs."""
    return Pairing((a, b), window).result()


class Pairing:
    """Two logs; lines that wait stand in a list of indices, oldest first, None once they are matched."""

    def __init__(self, logs: tuple[Sequence[Line], Sequence[Line]], window: int) -> None:
        self.logs = logs
        self.window = window
        self.at = [0, 0]
        self.spine = [-1, -1]
        self.settled = [-1, -1]  # the last line of each log that is an arrival with a partner
        self.given_up = [0, 0]
        self.waiting: list[list[int | None]] = [[], []]
        self.counts: dict[str, dict[str, int]] = {}
        self.first: list[str | None] = [None, None]

    def result(self) -> ModelResult:
        while any(self.goes_on(which) for which in (0, 1)):
            if not self.in_step():
                self.take(self.choose())
        for which in (0, 1):
            while self.waiting[which]:
                self.give_up(which)
        return ModelResult(self.counts, (self.first[0], self.first[1]), (self.given_up[0], self.given_up[1]))

    def goes_on(self, which: int) -> bool:
        return self.at[which] < len(self.logs[which])

    def alive(self, which: int) -> list[int]:
        return [index for index in self.waiting[which] if index is not None]

    def note(self, which: int, index: int, kind: str, found: str) -> None:
        self.counts.setdefault(kind, dict.fromkeys(CLASSES, 0))[found] += 1
        if index == 0:
            self.first[which] = found

    def in_step(self) -> bool:
        """Nobody waits, and the next lines are the same: they are taken together."""
        if not all(self.goes_on(which) and not self.alive(which) for which in (0, 1)):
            return False
        line, other = (self.logs[which][self.at[which]] for which in (0, 1))
        if line.body != other.body:
            return False
        self.settled = list(self.at) if line.kind == "arrival" else self.settled
        self.note(0, self.at[0], line.kind, "same")
        self.first[1] = "same" if self.at[1] == 0 else self.first[1]
        self.spine = list(self.at)
        self.at = [self.at[0] + 1, self.at[1] + 1]
        return True

    def choose(self) -> int:
        if not all(self.goes_on(which) for which in (0, 1)):
            return 0 if self.goes_on(0) else 1
        ahead, times = [], []
        for which in (0, 1):
            read = self.logs[which][self.settled[which] + 1 : self.at[which]]
            ahead.append(sum(line.kind == "arrival" for line in read))
            times.append(self.logs[which][self.at[which]].t_ms)
        if ahead[0] != ahead[1]:
            return 0 if ahead[0] < ahead[1] else 1
        if times[0] != times[1]:
            return 0 if times[0] < times[1] else 1
        return 0 if len(self.alive(0)) <= len(self.alive(1)) else 1

    def take(self, which: int) -> None:
        line, index, other = self.logs[which][self.at[which]], self.at[which], 1 - which
        self.at[which] += 1
        partner = next((i for i in self.alive(other) if self.logs[other][i].key == line.key), None)
        if partner is None:
            if len(self.waiting[which]) == self.window:
                self.give_up(which)
                self.given_up[which] += 1
            self.waiting[which].append(index)
            return
        self.leave(other, partner)
        found_line = self.logs[other][partner]
        in_order = index > self.spine[which] and partner > self.spine[other]
        if in_order:
            self.spine[which], self.spine[other] = index, partner
        if line.kind == "arrival":
            self.settled[which] = max(self.settled[which], index)
            self.settled[other] = max(self.settled[other], partner)
        if line.content == found_line.content:
            found = "same" if in_order else "reordered"
        else:
            found = "moved" if line.timeless == found_line.timeless else "changed"
        self.note(which, index, line.kind if which == 0 else found_line.kind, found)
        if partner == 0:
            self.first[other] = found

    def give_up(self, which: int) -> None:
        index = self.alive(which)[0]
        self.leave(which, index)
        self.note(which, index, self.logs[which][index].kind, "missing" if which == 0 else "extra")

    def leave(self, which: int, index: int) -> None:
        """A line waits no longer; places at the beginning without a line are given back."""
        waiting = self.waiting[which]
        waiting[waiting.index(index)] = None
        while waiting and waiting[0] is None:
            waiting.pop(0)
