"""The own number writer against orjson and Python's repr, over all doubles and 64-bit integers."""

from __future__ import annotations

import math
import struct

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mocker_replay._core.float_text import double_text, int64_text, uint64_text

ORJSON_WRITES_PLUS = orjson.dumps(1e16) == b"1e+16"  # older releases write 1e16; the rest of the form is the same


def bits_to_double(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def peer_text(x: float) -> bytes:
    text = orjson.dumps(x)
    return text if ORJSON_WRITES_PLUS or b"e-" in text else text.replace(b"e", b"e+")


any_bits = st.integers(0, 2**64 - 1).map(bits_to_double)
near_power_of_two = st.builds(
    lambda exponent, step: bits_to_double(max(0, (exponent << 52) + step)), st.integers(0, 2046), st.integers(-3, 3)
)
few_decimals = st.builds(lambda n, places: n / 10.0**places, st.integers(-(10**17), 10**17), st.integers(0, 22))
clock_sums = st.lists(st.integers(1, 50_000_000), min_size=1, max_size=40).map(
    lambda steps: sum((n / 1e6 for n in steps), 0.0)
)


@given(st.one_of(any_bits, near_power_of_two, few_decimals, clock_sums))
@example(0.0)
@example(-0.0)
@example(5e-324)  # smallest subnormal
@example(2.2250738585072011e-308)  # largest subnormal
@example(2.2250738585072014e-308)  # smallest normal
@example(1.7976931348623157e308)
@example(9007199254740993.0)  # 2**53 + 1 lies halfway between two doubles
@example(9007199254740991.0)
@example(2.0**-1022)
@example(9.5367431640625e-07)
@example(4.35)
@example(2.0**89)  # a power of two: the gap below is half as wide as the gap above
@example(1e23)  # halfway
@example(5e-5)
@example(9.999999e-6)
@example(999999998.9999999)
@example(999999999.0)
@example(1e15)
@example(1e16)
@example(9999999999999998.0)
@example(18.023974000000003)
def test_double_reads_as_orjson_writes_it(x: float) -> None:
    text = double_text(x)
    assert text == peer_text(x)
    if math.isfinite(x):
        assert struct.pack("<d", float(text)) == struct.pack("<d", x)
        assert len(text) <= 25


@pytest.mark.parametrize("lead", ["1", "2", "5", "9.5", "1.7976931348623157"])
def test_powers_of_ten(lead: str) -> None:
    for exponent in range(-323, 309):
        x = float(f"{lead}e{exponent}")
        assert double_text(x) == peer_text(x)
        assert double_text(-x) == peer_text(-x)


def test_every_power_of_two_and_its_neighbours() -> None:
    for exponent in range(2047):
        for bits in ((exponent << 52) - 1, exponent << 52, (exponent << 52) + 1):
            x = bits_to_double(max(bits, 0))
            assert double_text(x) == peer_text(x)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (10.0, b"10.0"),
        (18.023974000000003, b"18.023974000000003"),
        (1e-05, b"0.00001"),
        (1e-07, b"1e-7"),
        (1.5e-07, b"1.5e-7"),
        (1e15, b"1000000000000000.0"),
        (1e16, b"1e+16"),
        (-0.0, b"-0.0"),
        (float("nan"), b"null"),
        (float("-inf"), b"null"),
    ],
)
def test_form(x: float, text: bytes) -> None:
    assert double_text(x) == text


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
@example(0)
def test_int64(value: int) -> None:
    assert int64_text(value) == str(value).encode()


@given(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 20).map(lambda n: 10**n % 2**64)))
@example(2**64 - 1)
def test_uint64(value: int) -> None:
    assert uint64_text(value) == str(value).encode()


@pytest.mark.parametrize("digits", range(1, 20))
def test_integers_around_powers_of_ten(digits: int) -> None:
    for value in (10**digits - 1, 10**digits, 10**digits + 1):
        assert uint64_text(value) == str(value).encode()
