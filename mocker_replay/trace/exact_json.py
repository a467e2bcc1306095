"""One line of JSON read exactly: repeated keys, all digits, and what is wrong with it where it is none.

Decides how a line becomes names and values and how a line that is no JSON is told. Never knows a format. The fast
parser is the format's own business; this is what explains a line that the fast one cannot be trusted with.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import orjson

from mocker_replay.config.decimals import read_json_number
from mocker_replay.trace.faults import FaultList

# Unicode White_Space: a line of nothing else is skipped.
_WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def exact_pairs(text: bytes) -> Any:
    """The row with repeated keys and all digits. Inner objects become tuples, which no known field accepts."""
    return json.loads(
        text.decode(),
        object_pairs_hook=tuple,
        parse_int=_exact_int,
        parse_float=_exact_float,
        parse_constant=Unreadable,
    )


def is_unicode(text: str) -> bool:
    """Whether a text of the file can be written again; JSON escapes can spell what is no Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def is_blank(text: bytes) -> bool:
    """Whether a line is to be skipped."""
    try:
        return not text.decode().strip(_WHITE_SPACE)
    except UnicodeDecodeError:
        return False


def add_syntax_fault(text: bytes, line: int, exc: orjson.JSONDecodeError, faults: FaultList) -> None:
    """Say why a line is no JSON object."""
    try:
        text.decode()
    except UnicodeDecodeError as bad:
        faults.add(line, "", f"must be UTF-8, but byte {bad.start + 1} is not", text[max(0, bad.start - 10) :][:20])
        return
    if text.startswith(b"\xef\xbb\xbf"):
        faults.add(line, "", "must not begin with a byte-order mark")
        return
    faults.add(line, "", f"must be one JSON object: {exc.msg} at column {exc.colno}", text[:200])


class Unreadable:
    """A number beyond float64, or none at all; shown as it stands in the file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def _exact_int(text: str) -> int | float | Unreadable:
    value = _exact_float(text)
    if isinstance(value, Unreadable) or text == "-0":
        return value
    return int(text)


def _exact_float(text: str) -> float | Unreadable:
    value = read_json_number(text)
    return value if math.isfinite(value) else Unreadable(text)
