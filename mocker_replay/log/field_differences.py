"""Two JSON values, field by field.

Decides: what counts as one field (a path such as ranks[0].fpm.wall_time), and that numbers are compared as text. Never
decides which side is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

_ABSENT = object()


class FieldDifference(NamedTuple):
    """One value that the two sides do not share; None also where a side does not have the field."""

    field: str
    a: object
    b: object


def field_differences(a: object, b: object, path: str = "") -> Iterator[FieldDifference]:
    """Values that differ, in the order of `b`; fields that only `a` has come last."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*b, *(key for key in a if key not in b)]:
            below = f"{path}.{key}" if path else str(key)
            yield from field_differences(a.get(key, _ABSENT), b.get(key, _ABSENT), below)
    elif isinstance(a, list) and isinstance(b, list):
        for i in range(max(len(a), len(b))):
            first, second = (side[i] if i < len(side) else _ABSENT for side in (a, b))
            yield from field_differences(first, second, f"{path}[{i}]")
    elif a is _ABSENT or b is _ABSENT or not _equal(a, b):
        yield FieldDifference(path, None if a is _ABSENT else a, None if b is _ABSENT else b)


def _equal(a: object, b: object) -> bool:
    """As text: 1 and 1.0 are different bytes of a log, and so are 0.0 and -0.0."""
    return type(a) is type(b) and repr(a) == repr(b)
