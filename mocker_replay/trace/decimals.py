"""Decimals of traces: which are read alike by every parser, and how to write such.

The peer's JSON parser rounds numbers of many digits twice; `mocker_replay.config.decimals` reads as it does. This
module decides when that matters, and writes numbers so that it does not.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from mocker_replay.config.decimals import read_json_number

_ALIKE_CHARS: Final = 16  # a number this short, without exponent, has at most 15 digits: every reading is exact
_MAX_DIGITS: Final = 20  # of a 64-bit integer
_WHOLE_END: Final = 2**53  # below it every whole number is a float64


def is_read_alike(text: bytes) -> bool:
    """True when every parser makes the same float64 of a JSON number."""
    return len(text) <= _ALIKE_CHARS and b"e" not in text and b"E" not in text


def write_number(value: float) -> str:
    """As `write_decimal`, whole numbers without a point."""
    return str(int(value)) if value.is_integer() and abs(value) < _WHOLE_END else write_decimal(value)


def write_decimal(value: float) -> str:
    """A JSON number that correct parsers read as `value`, and the peer too wherever one is found.

    About one float64 in a thousand is out of the peer's reach; its shortest decimal is returned.
    """
    shortest = repr(value)
    if read_json_number(shortest) == value:
        return shortest
    exact = Decimal(value)
    # More digits around the value: the two roundings of the peer fall differently for each.
    for num_digits in range(17, _MAX_DIGITS + 1):
        step = Decimal(1).scaleb(exact.adjusted() - num_digits + 1)
        nearest = exact.quantize(step)
        stride = 10 ** max(0, num_digits - 18)  # a float64 of this many digits is hundreds of steps wide
        for distance in range(0, 200 * stride, stride):
            for candidate in (nearest + distance * step, nearest - distance * step):
                text = str(candidate)
                if float(text) == value and read_json_number(text) == value:
                    return text
    return shortest
