"""Decimal text to double as the reference reads it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.config.decimals import plain_decimal, read_again, read_json_number, read_plain_float


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1", 0.1),
        ("12.345678901234567", 12.345678901234567),
        ("123.45678901234567", 123.45678901234568),  # not the nearest double
        ("-0.0", -0.0),
        ("1e400", math.inf),
        ("-1e400", -math.inf),
        ("0e999999999999999999", 0.0),
        ("1e-999999999999999999", 0.0),
        ("18446744073709551617", 1.8446744073709552e19),
        ("5e-324", 5e-324),
    ],
)
def test_json_number(text: str, expected: float) -> None:
    assert repr(read_json_number(text)) == repr(expected)


@pytest.mark.parametrize("text", ["", "+1", ".5", "5.", "1_0", "nan", "0x1", "1e", "\u0661"])
def test_what_is_no_json_number(text: str) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        read_json_number(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_never_farther_than_a_few_units_in_the_last_place(value: float) -> None:
    read = read_again(value)
    assert abs(read - value) <= 4 * math.ulp(value)


@given(st.integers(-(2**53), 2**53), st.integers(0, 15))
def test_short_decimals_are_read_exactly(digits: int, places: int) -> None:
    """Where the digits fit 53 bits one division by a power of ten is correctly rounded."""
    text = f"{digits}e-{places}"
    assert read_json_number(text) == float(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.85, "0.85"), (1.0, "1"), (0.0, "0"), (-0.0, "-0"), (1e-7, "0.0000001"), (math.nan, "NaN"), (-math.inf, "-inf")],
)
def test_plain_decimal(value: float, text: str) -> None:
    assert plain_decimal(value) == text


@given(st.floats(0, 1))
def test_plain_decimals_give_the_number_back(value: float) -> None:
    text = plain_decimal(value)
    assert "e" not in text
    assert read_plain_float(text) == value


@pytest.mark.parametrize(("text", "value"), [(".5", 0.5), ("5.e-1", 0.5), ("+0.5", 0.5), ("Infinity", math.inf)])
def test_plain_float(text: str, value: float) -> None:
    assert read_plain_float(text) == value


@pytest.mark.parametrize("text", ["", "a", "1_0", "0x1", ".", "1e", "1 2", "\u0663"])
def test_no_plain_float(text: str) -> None:
    assert read_plain_float(text) is None
