"""Decimal numbers as the peer's JSON parser reads them, and decimals that every parser reads alike.

Decides which float64 a number of a trace stands for. The peer takes the digits as a 64-bit integer, rounds
that to float64 and scales it by a power of ten, which rounds again: of numbers with more than 15 digits about
one in six comes out next to the nearest float64 (docs/deviations.md). Arrivals must be equal to the bit, so we
read them the same way.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

ALIKE_CHARS: Final = 16  # a number this short without exponent has at most 15 digits: every reading is exact
_PARTS: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_POWERS: Final = tuple(float(f"1e{exponent}") for exponent in range(309))
_MAX_SIGNIFICAND: Final = 2**64 - 1
_MAX_EXPONENT: Final = 10_000  # beyond: zero or infinite in any case
_SAFE_DIGITS: Final = 19  # as many always fit 64 bits


def read_decimal(text: str) -> float:
    """The float64 the peer makes of a JSON number; may be infinite where the text is out of range."""
    if len(text) <= ALIKE_CHARS and "e" not in text and "E" not in text:
        return float(text)
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is no JSON number")
    sign, whole, fraction, power = parts.groups()
    significand, exponent = _significand(whole, fraction or "")
    if fraction is None and power is None and exponent == 0:
        value = float(significand)
    else:
        value = _scaled(significand, exponent + max(-_MAX_EXPONENT, min(int(power or 0), _MAX_EXPONENT)))
    return -value if sign else value


def _significand(whole: str, fraction: str) -> tuple[int, int]:
    """The digits as an integer below 2**64, and the power of ten it counts in."""
    if len(whole) + len(fraction) <= _SAFE_DIGITS:
        return int(whole + fraction), -len(fraction)
    significand = 0
    for at, digit in enumerate(whole):
        longer = significand * 10 + int(digit)
        if longer > _MAX_SIGNIFICAND:
            return significand, len(whole) - at  # the fraction no longer counts
        significand = longer
    for at, digit in enumerate(fraction):
        longer = significand * 10 + int(digit)
        if longer > _MAX_SIGNIFICAND:
            return significand, -at
        significand = longer
    return significand, -len(fraction)


def _scaled(significand: int, exponent: int) -> float:
    value = float(significand)
    while exponent < -308 and value:
        value /= _POWERS[308]
        exponent += 308
    if not value:
        return value
    if exponent <= 0:
        return value / _POWERS[-exponent]
    return value * _POWERS[exponent] if exponent <= 308 else math.inf


def write_decimal(value: float) -> str:
    """A JSON number that correct parsers read as `value`, and the peer too wherever one is found.

    About one float64 in a thousand is out of the peer's reach; its shortest decimal is returned.
    """
    shortest = repr(value)
    if read_decimal(shortest) == value:
        return shortest
    exact = Decimal(value)
    # More digits around the value: the two roundings of the peer fall differently for each.
    for num_digits in range(17, _SAFE_DIGITS + 2):
        step = Decimal(1).scaleb(exact.adjusted() - num_digits + 1)
        nearest = exact.quantize(step)
        stride = 10 ** max(0, num_digits - 18)  # a float64 of this many digits is hundreds of steps wide
        for distance in range(0, 200 * stride, stride):
            for candidate in (nearest + distance * step, nearest - distance * step):
                text = str(candidate)
                if float(text) == value and read_decimal(text) == value:
                    return text
    return shortest
