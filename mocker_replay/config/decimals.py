"""Decimal text to float64 and back, bit for bit as the reference does it.

The reference reads JSON numbers by a fast method: it keeps the digits that fit 64 bits and multiplies or divides
once by a power of ten. About one number in seven with 16 or more digits comes out one unit in the last place away
from the nearest double. A modelled time can only equal the reference's when such a figure is read the same way, so
this module decides how text becomes a double; it never decides what a double means.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

U64_MAX = 2**64 - 1
_DIGITS_THAT_FIT = 19  # any so many are below U64_MAX
_MAX_POWER = 308
_POWERS_OF_TEN = tuple(float(f"1e{n}") for n in range(_MAX_POWER + 1))
_JSON_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)
_PLAIN_FLOAT = re.compile(
    r"[+-]?(?:inf|infinity|nan|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)", re.ASCII | re.IGNORECASE
)


def read_json_number(text: str) -> float:
    """The double the reference gets from the JSON number `text`; infinite where it refuses the number as too large.

    Raises:
        ValueError: `text` is not a JSON number.
    """
    match = _JSON_NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"not a JSON number: {text!r}")
    sign, whole, fraction, exponent_text = match.groups()
    significand, exponent = _keep_digits(whole, fraction or "")
    if exponent_text:
        exponent += _clamped(exponent_text)
    magnitude = _scale(float(significand), exponent)
    return -magnitude if sign else magnitude


def read_again(value: float | int) -> float:
    """What the reference makes of a Python number: it is written as JSON, then read by the method above."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return read_json_number(repr(value))


def _keep_digits(whole: str, fraction: str) -> tuple[int, int]:
    """The leading digits that fit 64 bits, and the power of ten that goes with them."""
    if len(whole) + len(fraction) <= _DIGITS_THAT_FIT:
        return int(whole + fraction), -len(fraction)
    significand = 0
    exponent = 0
    for at, digit in enumerate(whole):
        grown = significand * 10 + int(digit)
        if grown > U64_MAX:
            exponent = len(whole) - at
            break
        significand = grown
    for digit in fraction:
        grown = significand * 10 + int(digit)
        if grown > U64_MAX:
            break
        significand = grown
        exponent -= 1
    return significand, exponent


def _clamped(exponent_text: str) -> int:
    """An exponent as a number that cannot grow without bound; beyond 10^6 the result is 0 or infinite anyway."""
    sign, digits = (exponent_text[0], exponent_text[1:]) if exponent_text[0] in "+-" else ("+", exponent_text)
    digits = digits.lstrip("0") or "0"
    magnitude = 1_000_000 if len(digits) > 6 else int(digits)
    return -magnitude if sign == "-" else magnitude


def _scale(significand: float, exponent: int) -> float:
    if significand == 0.0:
        return 0.0
    if exponent > _MAX_POWER:
        return math.inf
    if exponent >= 0:
        return significand * _POWERS_OF_TEN[exponent]
    while exponent < -_MAX_POWER and significand != 0.0:
        significand /= _POWERS_OF_TEN[_MAX_POWER]
        exponent += _MAX_POWER
    return significand if significand == 0.0 else significand / _POWERS_OF_TEN[-exponent]


def read_plain_float(text: str) -> float | None:
    """A number of a comma list, correctly rounded; None if it is none (underscores and other digits are not taken)."""
    return float(text) if _PLAIN_FLOAT.fullmatch(text) else None


def plain_decimal(value: float) -> str:
    """Shortest digits that give `value` back, never with an exponent: 0.85, 1, 0.0000001, -0, NaN, inf."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = format(Decimal(repr(value)), "f")
    return text[:-2] if text.endswith(".0") else text
