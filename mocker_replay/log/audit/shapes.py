"""What a value of an event line may be: the types of docs/event-log.md, as tests of one value each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

Check = Callable[[Any], bool]

_REASON: Final = re.compile("[a-z0-9_]{1,40}", re.ASCII)
_UINT64_END: Final = 1 << 64
_COUNTED: Final = (
    "num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests",
    "sum_decode_kv_tokens", "num_queued_prefill", "sum_queued_prefill_tokens", "num_queued_decode",
    "sum_queued_decode_kv_tokens",
)  # fmt: skip
FPM_KEYS: Final = (
    "wall_time", "num_prefill_requests", "sum_prefill_tokens", "var_prefill_length", "sum_prefill_kv_tokens",
    "num_decode_requests", "sum_decode_kv_tokens", "var_decode_kv_tokens", "num_queued_prefill",
    "sum_queued_prefill_tokens", "var_queued_prefill_length", "num_queued_decode", "sum_queued_decode_kv_tokens",
    "var_queued_decode_kv_tokens",
)  # fmt: skip
_GAUGE_KEYS: Final = ("active_blocks", "inactive_blocks", "running", "waiting")
_AROUND_KEYS: Final = ("running", "waiting", "active_blocks")


class Field(NamedTuple):
    """A key of an object."""

    key: str
    check: Check
    is_required: bool = True


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_integer(value: Any) -> bool:
    return type(value) is int


def is_reason(value: Any) -> bool:
    """A reason of a policy."""
    return type(value) is str and _REASON.fullmatch(value) is not None


def is_choice(value: Any) -> bool:
    """What would have been chosen: a request, or `[worker, rank]`."""
    return is_text(value) or (type(value) is list and len(value) == 2 and all(map(is_count, value)))


def is_budget(value: Any) -> bool:
    """`[tokens, reason]`"""
    return type(value) is list and len(value) == 2 and is_count(value[0]) and is_reason(value[1])


def is_time(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def is_time_or_null(value: Any) -> bool:
    return value is None or is_time(value)


def is_text(value: Any) -> bool:
    return type(value) is str


def is_flag(value: Any) -> bool:
    return type(value) is bool


def is_hash(value: Any) -> bool:
    return type(value) is int and 0 <= value < _UINT64_END


def is_hash_or_null(value: Any) -> bool:
    return value is None or is_hash(value)


def is_hashes(value: Any) -> bool:
    return type(value) is list and all(map(is_hash, value))


def is_names(value: Any) -> bool:
    return type(value) is list and all(map(is_text, value))


def is_named_counts(value: Any) -> bool:
    """A list of `[request, count]`."""
    return type(value) is list and all(
        type(item) is list and len(item) == 2 and is_text(item[0]) and is_count(item[1]) for item in value
    )


def one_of(*words: str) -> Check:
    return lambda value: type(value) is str and value in words


def counts_of(*keys: str) -> Check:
    """An object that has just these keys, in this order, each a count."""
    return lambda value: type(value) is dict and tuple(value) == keys and all(map(is_count, value.values()))


is_gauges: Final = counts_of(*_GAUGE_KEYS)
is_around: Final = counts_of(*_AROUND_KEYS)


def is_fpm(value: Any) -> bool:
    """A forward-pass record: counts and sums are whole numbers, the rest are not."""
    if type(value) is not dict or tuple(value) != FPM_KEYS:
        return False
    return all(is_count(figure) if key in _COUNTED else is_time(figure) for key, figure in value.items())


def list_of(*fields: Field) -> Check:
    """A list of objects of these keys."""
    return lambda value: type(value) is list and all(object_fault(item, fields) is None for item in value)


def object_fault(value: Any, fields: tuple[Field, ...]) -> str | None:
    """What keeps an object from having these fields in this order; None when it has them."""
    if type(value) is not dict:
        return "no object"
    keys = iter(value)
    key = next(keys, None)
    for field in fields:
        if key != field.key:
            if field.is_required:
                return f"`{field.key}` must come next" if field.key in value else f"`{field.key}` is missing"
            continue
        if not field.check(value[field.key]):
            return f"`{field.key}` is of another type or out of range"
        key = next(keys, None)
    return None if key is None else f"`{key}` is unknown or out of order"
