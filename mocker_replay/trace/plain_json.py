"""JSON read fast where that says the same as the exact reading.

Decides which texts the fast parser can be trusted with: those in which no key stands twice and every number is read
alike by all parsers. All others are read by exact_json.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import orjson

from mocker_replay.trace.decimals import is_read_alike
from mocker_replay.trace.exact_json import exact_pairs

_KEY: Final = re.compile(rb'"\s*:')
_MINUS_ZERO: Final = re.compile(rb"[:\[,]\s*-0")


def decimal_pattern(*names: str) -> re.Pattern[bytes]:
    """Finds the values of some fields in a text, those that may have decimals."""
    return re.compile(rb'"(?:%b)"\s*:\s*([^\s,}\]]+)' % "|".join(names).encode())


def read_plain(text: bytes, decimals: re.Pattern[bytes]) -> Any:
    """The value, objects as dicts; None if the text needs the exact reading.

    Args:
        decimals: of the fields that may be no integers.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    # Each key has a quote and a colon behind it. A key that stands twice has no entry of its own; a string that looks
    # like one makes the count too high as well.
    if len(_KEY.findall(text)) != _num_keys(value) or _MINUS_ZERO.search(text) is not None:
        return None
    return value if all(map(is_read_alike, decimals.findall(text))) else None


def read_exact(text: bytes) -> Any:
    """The value, objects as tuples of pairs; None if the text is no JSON.

    Raises:
        RecursionError: it is nested too deeply.
    """
    try:
        return exact_pairs(text)
    except ValueError:  # no JSON, or no UTF-8
        return None


def members(value: object) -> Iterable[tuple[str, Any]] | None:
    """Names and values of an object of either reading; None if it is no object."""
    if isinstance(value, dict):
        return value.items()
    return value if isinstance(value, tuple) else None


def _num_keys(value: object) -> int:
    count, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            count += len(one)
            left += one.values()
        elif isinstance(one, list) and not set(map(type, one)) <= {int}:
            left += one
    return count
