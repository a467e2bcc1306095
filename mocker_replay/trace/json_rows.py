"""Lines to JSON objects, for the formats that have no column reader of their own.

Decides what a line must be: one object, no field twice. Never knows a field.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson

from mocker_replay.trace.exact_json import add_syntax_fault, exact_pairs, is_blank
from mocker_replay.trace.faults import FaultList


def read_object(text: bytes, line: int, faults: FaultList) -> dict[str, Any] | None:
    """The object of a line; None if it is blank, or faulty as a whole."""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        if not is_blank(text):
            add_syntax_fault(text, line, exc, faults)
        return None
    if type(parsed) is not dict:
        faults.add(line, "", "must be one JSON object", text[:200])
        return None
    # As many colons as keys: no key stands twice, and there are no inner objects in which one could.
    if text.count(b":") != len(parsed):
        try:
            counts = Counter(name for name, _ in exact_pairs(text))
        except RecursionError:
            faults.add(line, "", "must not be nested so deeply", text[:200])
            return None
        twice = sorted(name for name, count in counts.items() if count > 1)
        for name in twice:
            faults.add(line, name, "must not be given twice", parsed[name])
        if twice:
            return None
    return parsed
