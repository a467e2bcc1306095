"""Collecting the faults of one trace: all of them counted, the first hundred kept.

Decides how many are listed and how a value is shown. Never decides what a fault is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from mocker_replay.errors import Fault, TraceError

MAX_LISTED: Final = 100
MAX_VALUE_CHARS: Final = 60


class FaultList:
    """Faults in the order they were found.

    Args:
        file: what the trace as a whole is called.
        locate: the file and the number there of a line, for a trace of several files.
    """

    def __init__(self, file: str, locate: Callable[[int], tuple[str, int]] | None = None) -> None:
        self.file = file
        self.listed: list[Fault] = []
        self.omitted = 0
        self._locate = locate or (lambda line: (file, line))
        self._lines: list[int] = []  # of the listed ones, counted over all files

    def __len__(self) -> int:
        return len(self.listed) + self.omitted

    def add(self, line: int, field: str, rule: str, value: object = None) -> None:
        """Note one fault; `value` is what stands in the file, None when nothing does."""
        if len(self.listed) < MAX_LISTED:
            self._lines.append(line)
            self.listed.append(Fault(*self._locate(line), field, shown(value), rule))
        else:
            self.omitted += 1

    def error(self) -> TraceError:
        """All of them as one exception, ordered by line."""
        order = sorted(range(len(self.listed)), key=lambda at: self._lines[at])
        return TraceError([self.listed[at] for at in order], self.omitted)


def joined(lists: Sequence[FaultList]) -> FaultList:
    """The faults of several files of one trace, file after file."""
    together = FaultList(lists[0].file)
    for faults in lists:
        error = faults.error()
        for number, fault in enumerate(error.faults):
            if len(together.listed) < MAX_LISTED:
                together.listed.append(fault)
                together._lines.append(len(together._lines))
            else:
                together.omitted += len(error.faults) - number
                break
        together.omitted += error.omitted
    return together


def whole_file_error(file: str, rule: str, line: int = 0) -> TraceError:
    """A fault that ends the reading, of the file as a whole or at a line."""
    return TraceError([Fault(file, line, "", "", rule)])


def shown(value: object) -> str:
    """A value as the file writes it, shortened and printable; "" for None."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
    elif isinstance(value, bool | str | list | tuple | dict):
        text = json.dumps(_outline(value), ensure_ascii=False)
    else:
        text = str(value)
    if len(text) > MAX_VALUE_CHARS:
        text = text[: MAX_VALUE_CHARS - 1] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _outline(value: object, depth: int = 3) -> object:
    """The beginning of a value, enough to recognise it; a tuple of pairs is an object of the file."""
    if isinstance(value, tuple):
        value = dict(value[:MAX_VALUE_CHARS])
    if isinstance(value, str):
        return value[:MAX_VALUE_CHARS]
    if not isinstance(value, list | dict):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, list):
        return [_outline(inner, depth - 1) for inner in value[:MAX_VALUE_CHARS]]
    return {str(key): _outline(inner, depth - 1) for key, inner in value.items()}
