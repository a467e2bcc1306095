"""A stream of JSON objects, whatever their line breaks, to single objects with their line numbers.

Decides where an object ends, by braces and strings alone; whether it is JSON is for its parser to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mocker_replay.trace.line_file import LineBlock

_WHITE_SPACE: Final = b" \t\r\n"  # JSON's own
_OUTSIDE: Final = re.compile(rb'["{}]')
_STRING_END: Final = re.compile(rb'["\\]')


class ObjectSplitter:
    """Takes lines, gives objects; keeps the beginning of the one that is not complete."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the object that is not complete
        self._first_line = 0
        self._depth = 0
        self._is_in_string = False

    def feed(self, block: LineBlock) -> Iterator[tuple[int, bytes]]:
        """The objects that end in some lines, each with the number of its first line.

        What stands between two objects comes out as an object of its own, which no parser accepts.
        """
        for line, text in enumerate(block.lines, block.first_line):
            yield from self._feed_line(line, text + b"\n")

    def finish(self) -> tuple[int, bytes] | None:
        """What is left when the stream ends in the middle of an object."""
        rest = b"".join(self._parts)
        return (self._first_line, rest) if rest.strip(_WHITE_SPACE) else None

    def _feed_line(self, line: int, text: bytes) -> Iterator[tuple[int, bytes]]:
        start = at = 0
        while True:
            if self._depth == 0 and not self._parts:
                start = at = len(text) - len(text[at:].lstrip(_WHITE_SPACE))
                if start == len(text):
                    return
                self._first_line = line
            end = self._end_of_object(text, at)
            if end < 0:
                self._parts.append(text[start:])
                return
            yield self._first_line, b"".join((*self._parts, text[start:end]))
            self._parts, start, at = [], end, end

    def _end_of_object(self, text: bytes, at: int) -> int:
        """Where the current object ends; -1: not in this line, and what was seen is kept."""
        if self._depth == 0 and text[at : at + 1] != b"{":  # no object: as far as the next one
            brace = text.find(b"{", at)
            return len(text) if brace < 0 else brace
        while True:
            if self._is_in_string:
                found = _STRING_END.search(text, at)
                if found is None:
                    return -1
                at = found.end() + (found[0] == b"\\")  # an escape takes the character behind it along
                self._is_in_string = found[0] != b'"'
                continue
            found = _OUTSIDE.search(text, at)
            if found is None:
                return -1
            at = found.end()
            if found[0] == b'"':
                self._is_in_string = True
            else:
                self._depth += 1 if found[0] == b"{" else -1
                if self._depth == 0:
                    return at
