"""Fields of one JSON object that was read exactly, taken by name and kind.

Decides how a value of the wrong kind is told; which fields there are and what they mean is the format's. Numbers are
read as the peer reads them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mocker_replay.config.decimals import read_json_number
from mocker_replay.trace.exact_json import is_unicode
from mocker_replay.trace.faults import FaultList

NULL: Final = object()  # an explicit null, where it is not the same as leaving the field out


class Fields:
    """Fields of one object under their canonical names; what is wrong goes to the list of faults.

    Args:
        known: name or alias to canonical name. prefix: where the object stands in its line.
    """

    def __init__(
        self, pairs: Iterable[tuple[str, Any]], known: Mapping[str, str], line: int, prefix: str, faults: FaultList
    ) -> None:
        self._line, self._prefix, self._faults = line, prefix, faults
        self._values: dict[str, Any] = {}
        self._spelling: dict[str, str] = {}
        self.faulty: set[str] = set()
        self.unknown: set[str] = set()
        for key, value in pairs:
            name = known.get(key)
            if name is None:
                self.unknown.add(key)
            elif name in self._spelling:
                first = self._spelling[name]
                rule = "must not be given twice" if key == first else f"is the same field as {first}"
                self.refuse(name, rule, value, key)
            else:
                self._spelling[name], self._values[name] = key, value

    def is_fine(self, name: str) -> bool:
        return name not in self.faulty

    def refuse(self, name: str, rule: str, value: object, key: str | None = None) -> None:
        shown = self._spelling.get(name, name) if key is None else key
        self._faults.add(self._line, self._prefix + shown, rule, value)
        self.faulty.add(name.partition("[")[0])

    def take(self, name: str, *, is_required: bool = True, null_is_absent: bool = True) -> Any:
        """The value, None if there is none or it is faulty already; one that is required and absent is refused."""
        if name in self.faulty:
            return None
        value = self._values.get(name)
        if value is None and name in self._spelling and not null_is_absent:
            return NULL
        if value is None and is_required:
            self.refuse(name, "is required", None)
        return value

    def text(self, name: str) -> str | None:
        """A text that is not blank."""
        value = self.take(name)
        if value is None:
            return None
        if type(value) is not str or not is_unicode(value):
            self.refuse(name, "must be a string" if type(value) is not str else "must be valid Unicode", value)
            return None
        if not value.strip():
            self.refuse(name, "must not be blank", value)
            return None
        return value

    def any_text(self, name: str) -> None:
        value = self.take(name, is_required=False)
        if value is not None and type(value) is not str:
            self.refuse(name, "must be a string", value)

    def constant(self, name: str, expected: object) -> None:
        value = self.take(name)
        if value is not None and (type(value) is not type(expected) or value != expected):
            self.refuse(name, f"must be {expected}", value)

    def choice(self, name: str, choices: Mapping[str, Any]) -> Any:
        value = self.take(name)
        if value is None:
            return None
        chosen = choices.get(value) if type(value) is str else None
        if chosen is None:
            self.refuse(name, f"must be one of {', '.join(choices)}", value)
        return chosen

    def integer(self, name: str, low: int, high: int, *, is_required: bool = True) -> int | None:
        value = self.take(name, is_required=is_required)
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, f"must be an integer from {low} to {high}", value)
            return None
        return value

    def time(self, name: str, *, is_required: bool = True) -> float | None:
        """A time in ms that is finite and not negative; -0 is 0."""
        value = self.take(name, is_required=is_required)
        if value is None:
            return None
        if type(value) not in (int, float) or not value >= 0.0:
            self.refuse(name, "must be a finite number of at least 0", value)
            return None
        return read_json_number(str(value)) if type(value) is int else value + 0.0

    def ids(self, name: str, code: str, high: int, *, is_required: bool = True) -> array[int] | None:
        value = self.take(name, is_required=is_required)
        if value is None:
            return None
        if type(value) is not list:
            self.refuse(name, "must be a list of integers", value)
            return None
        if not set(map(type, value)) <= {int} or (value and not 0 <= min(value) <= max(value) <= high):
            at = next(i for i, one in enumerate(value) if type(one) is not int or not 0 <= one <= high)
            given = b"null" if value[at] is None else value[at]
            self.refuse(f"{name}[{at}]", f"must be an integer from 0 to {high}", given)
            return None
        ids = array(code)
        ids.fromlist(value)
        return ids
