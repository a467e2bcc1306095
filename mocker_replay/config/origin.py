"""Where a setting came from, so that a fault can be found by the person who wrote it.

It names places (file and line, or flag); it never judges a value.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from mocker_replay.errors import Fault

_VALUE_SHOWN_MAX = 60
# In a text that is known to be valid JSON these alternatives cover everything that is not white space.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|\n')


class Origin(Struct, frozen=True):
    """One source of settings, with whatever overrides it."""

    name: str
    lines: Mapping[str, int] = field(default_factory=dict)  # dotted path -> 1-based line
    overrides: Mapping[str, str] = field(default_factory=dict)  # dotted path -> name of the flag, or ""

    def fault(self, path: str, value: object, rule: str) -> Fault:
        """`value` is shown as JSON; pass `ABSENT` where there is none."""
        shown = "" if value is ABSENT else show(value)
        if path in self.overrides:
            flag = self.overrides[path]
            return Fault(flag, 0, "", shown, rule) if flag else Fault("override", 0, path, shown, rule)
        return Fault(self.name, self.lines.get(path, 0), path, shown, rule)


ABSENT = object()


def show(value: object) -> str:
    """`value` in the notation of the file it came from, cut to a length that fits a line."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _VALUE_SHOWN_MAX else text[: _VALUE_SHOWN_MAX - 3] + "..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, if any is like it."""
    found = difflib.get_close_matches(word.replace("-", "_").lower(), list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def json_keys(text: str) -> Iterator[tuple[str, int, bool]]:
    """Each key of valid JSON as (dotted path, line, seen before in the same object)."""
    stack: list[tuple[str, set[str] | None]] = []  # (path prefix, keys so far; None in a list)
    line = 1
    previous: tuple[str, int] | None = None
    pending = ""  # path of the value that comes next
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "\n":
            line += 1
        elif token in "{[":
            prefix = f"{pending}." if pending else ""
            stack.append((prefix, set() if token == "{" else None))
            previous = None
        elif token in "}]":
            stack.pop()
        elif token == ":" and previous is not None:
            prefix, seen = stack[-1]
            pending = prefix + str(json.loads(previous[0], strict=False))
            assert seen is not None, "a colon stands in an object"
            yield pending, previous[1], pending in seen
            seen.add(pending)
        elif token[0] == '"':
            previous = (token, line)
