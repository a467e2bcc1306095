"""Pass times: rounding to whole nanoseconds against exact fractions, the four models, what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mocker_replay._core.timing import TimingModel, scaled_ms
from mocker_replay._core.types import EngineError

NS = 1_000_000_000


def whole_ns(seconds: float) -> int:
    """To nearest, ties to even, on the exact binary value."""
    return round(Fraction(seconds) * NS)


def as_seconds(ns: int) -> float:
    return float(ns // NS) + float(ns % NS) / 1e9


def expected_ms(raw_ms: float, ratio: float) -> float:
    ns = whole_ns(raw_ms / 1000.0)
    if ratio > 0.0 and ns > 0:
        ns = whole_ns(as_seconds(ns) / ratio)
    return as_seconds(whole_ns(as_seconds(ns) * 1000.0 / 1000.0)) * 1000.0


any_ms = st.floats(0.0, 1e20, allow_nan=False)
usual_ms = st.floats(0.0, 1e6)
near_halves_ms = st.builds(
    lambda n, towards: math.nextafter((n + 0.5) / 1e6, towards),
    st.integers(0, 10**9) | st.integers(10**12, 10**13),
    st.sampled_from([0.0, 1e9]),
)
ratios = st.sampled_from([0.0, 1.0, 2.0, 3.0, 3.4, 1e-3, 1e3]) | st.floats(1e-6, 1e9)


@given(any_ms | usual_ms | near_halves_ms, ratios)
@example(0.0, 1.0)
@example(-0.0, 1.0)
@example(5e-324, 0.0)  # smallest subnormal
@example(2.2250738585072014e-308, 3.0)  # smallest normal
@example(4e-7, 1.0)  # 0.4 ns
@example(5e-7, 0.0)  # the double next to half a nanosecond
@example(6e-7, 1.0)
@example(1.5e-6, 0.0)
@example(2.5e-6, 0.0)
@example(1.8446744073709550e22, 0.0)  # just below 2^64 s
@example(9007199254740993.0, 7.0)
@example(1.23456789012, 1.0)
def test_rounding_is_that_of_exact_fractions(raw_ms: float, ratio: float) -> None:
    try:
        expected = expected_ms(raw_ms, ratio)
    except OverflowError:
        expected = math.inf
    if expected >= 2.0**64 * 1000.0:
        with pytest.raises(ValueError, match="out of range"):
            scaled_ms(raw_ms, ratio)
    else:
        assert scaled_ms(raw_ms, ratio) == expected


@pytest.mark.parametrize("odd", [1, 3, 5, 7, 9, 11, 1_023, 99_999_999, 2**40 + 1])
def test_ties_go_to_the_even_nanosecond(odd: int) -> None:
    """An odd number of 1/1024 s is exactly half-way between two nanoseconds, and a double."""
    raw_ms = odd / 1024.0 * 1000.0
    ns = Fraction(raw_ms / 1000.0) * NS
    assert ns.denominator == 2, "no tie"
    below = math.floor(ns)
    assert scaled_ms(raw_ms) == as_seconds(below + below % 2) * 1000.0
    assert scaled_ms(raw_ms) == expected_ms(raw_ms, 0.0)


@pytest.mark.parametrize("raw_ms", [-1.0, -1e-300, math.nan, math.inf, -math.inf, 1.8446744073709552e22, 1e300])
def test_what_is_no_duration_is_refused(raw_ms: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        scaled_ms(raw_ms)


def test_a_ratio_that_blows_a_duration_up_is_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        scaled_ms(10.0, 1e-300)
    assert scaled_ms(4e-7, 1e-300) == 0.0  # nothing left to divide


# -- figures of the engine specification, section 5 -------------------------------------------------------

POLYNOMIAL = TimingModel("polynomial")


def test_polynomial_prefill() -> None:
    assert POLYNOMIAL.predict_prefill_ms(2, 25, 0) == 17.261644
    assert POLYNOMIAL.predict_prefill_ms(3, 33, 16) == 17.27687
    assert POLYNOMIAL.predict_prefill_ms(1, 100, 0) == 18.023974000000003
    assert POLYNOMIAL.predict_prefill_ms(1, 150, 64) == scaled_ms(
        ((4.209989e-07 * (86.0 * 86.0)) + (1.518344e-02 * 86.0)) + 1.650142e01
    )
    assert POLYNOMIAL.predict_prefill_ms(1, 150, 64) == pytest.approx(17.81031, abs=1e-9)


def test_polynomial_decode() -> None:
    capacity = 100 * 64
    assert POLYNOMIAL.predict_decode_ms(1, 101, capacity) == pytest.approx(6.585935, abs=1e-9)
    first = 18.023974000000003
    times = [first]
    for active in range(101, 105):
        times.append(times[-1] + POLYNOMIAL.predict_decode_ms(1, active, capacity))
    assert times[-1] == 44.417578
    assert POLYNOMIAL.predict_decode_ms(3, 1_000, 100) == 34.01  # more tokens than the pool has: clamped
    assert POLYNOMIAL.predict_decode_ms(3, 100, 100) == 34.01
    assert POLYNOMIAL.predict_decode_ms(1, 5, 0) == 34.01  # a capacity product that wrapped to 0


def test_fixed_takes_its_figures_as_they_are() -> None:
    model = TimingModel("fixed", prefill_ms=0.25, decode_ms=0.0)
    assert model.predict_prefill_ms(1, 10_000, 0) == 0.25
    assert model.predict_decode_ms(64, 10_000, 1) == 0.0
    model = TimingModel("fixed", prefill_ms=1.23456789012, decode_ms=0.3333333333333)
    assert model.predict_prefill_ms(1, 8, 0) == 1.2345679999999999
    assert 1.2345679999999999 + model.predict_decode_ms(1, 8, 100) == pytest.approx(1.567901, abs=1e-12)


def sum_passes(model: TimingModel, num_decodes: int, start_ms: float = 0.0) -> list[float]:
    """First token, then one a decode pass."""
    times = [start_ms + model.predict_prefill_ms(1, 8, 0)]
    for _ in range(num_decodes):
        times.append(times[-1] + model.predict_decode_ms(1, 8, 100))
    return times


def test_ratios_divide_and_zero_means_unscaled() -> None:
    def scaled(speedup: float, decode: float) -> list[float]:
        return sum_passes(
            TimingModel("fixed", prefill_ms=10.0, decode_ms=1.0, speedup_ratio=speedup, decode_speedup_ratio=decode), 1
        )

    assert scaled(3.0, 1.0)[0] == 3.333333
    assert scaled(2.0, 1.7) == [5.0, 5.294118]
    assert scaled(0.0, 1.0) == [10.0, 11.0]
    assert scaled(2.0, 0.0) == [5.0, 6.0]  # the product is 0: decode is unscaled
    assert scaled(1e12, 1.0) == [0.0, 0.0]


def test_a_speed_up_of_three_over_a_whole_request() -> None:
    """Two rows, prompts of 8 and 9 tokens, 5 and 7 outputs: the second prefill is in the second pass."""
    model = TimingModel("fixed", prefill_ms=10.0, decode_ms=1.0, speedup_ratio=3.0)
    prefill_ms, decode_ms = model.predict_prefill_ms(1, 8, 0), model.predict_decode_ms(1, 8, 100)
    at_ms = prefill_ms
    at_ms = at_ms + prefill_ms + decode_ms
    assert at_ms == 6.999999
    ends = []
    for _ in range(6):
        at_ms += decode_ms
        ends.append(at_ms)
    assert (ends[2], ends[5]) == (7.999997999999999, 8.999996999999999)


def test_less_than_a_nanosecond() -> None:
    model = TimingModel("fixed", prefill_ms=4e-7, decode_ms=6e-7)
    one_ns_in_ms = 1e-9 * 1000.0
    assert sum_passes(model, 2) == [0.0, one_ns_in_ms, 2 * one_ns_in_ms]


PROFILE = {
    "prefill_isl": np.array([16.0, 64.0, 256.0]),
    "prefill_ttft_ms": np.array([5.0, 9.5, 41.25]),
    "decode_active_kv_tokens": np.array([32.0, 128.0, 512.0]),
    "decode_context_length": np.array([16.0, 64.0, 200.0]),
    "decode_itl": np.array([[2.0, 2.5, 3.1], [3.0, 3.7, 4.9], [7.0, 8.3, 11.0]]),
}


def test_profile() -> None:
    model = TimingModel("profile", arrays=PROFILE)
    assert model.predict_prefill_ms(1, 40, 0) == 7.25
    assert model.predict_prefill_ms(1, 4, 0) == 3.875  # the first piece goes on to the left
    assert model.predict_prefill_ms(1, 640, 0) == 104.75  # and the last one to the right
    assert model.predict_prefill_ms(2, 40, 20) == 7.25  # what counts is batch times new tokens
    assert model.predict_decode_ms(1, 41, 10**6) == scaled_ms(2.3639322917)
    for i, active in enumerate((32, 128, 512)):
        # One request: its context is all there is. Between the columns, from the row at that corner.
        assert model.predict_decode_ms(active // 16, active, 10**6) == PROFILE["decode_itl"][i][0]


def test_profile_is_floored() -> None:
    falling = {**PROFILE, "prefill_ttft_ms": np.array([5.0, 4.0, 3.0]), "decode_itl": np.full((3, 3), 0.5)}
    model = TimingModel("profile", arrays=falling)
    assert model.predict_prefill_ms(1, 10_000, 0) == 0.0
    assert model.predict_decode_ms(1, 41, 10**6) == 1.0


@given(st.floats(1.0, 3_000.0), st.integers(1, 4))
def test_profile_prefill_agrees_with_numpy_inside_the_grid(x: float, batch: int) -> None:
    tokens = int(x)
    model = TimingModel("profile", arrays=PROFILE)
    if 16 <= batch * tokens <= 256:
        expected = np.interp(batch * tokens, PROFILE["prefill_isl"], PROFILE["prefill_ttft_ms"])
        assert model.predict_prefill_ms(batch, tokens, 0) == pytest.approx(expected, abs=2e-6)


def test_a_profile_may_lie_in_memory_as_it_likes() -> None:
    model = TimingModel("profile", arrays={**PROFILE, "decode_itl": np.asfortranarray(PROFILE["decode_itl"])})
    assert model.predict_decode_ms(1, 41, 10**6) == scaled_ms(2.3639322917)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefill_isl": None}, "Failed to load prefill_isl from NPZ: no such array"),
        ({"decode_itl": PROFILE["decode_itl"].astype(np.float32)}, "Failed to load decode_itl from NPZ: float64 of 2"),
        ({"prefill_isl": np.array([16, 64, 256])}, "Failed to load prefill_isl from NPZ: float64 of 1"),
        ({"decode_itl": np.zeros(3)}, "Failed to load decode_itl from NPZ: float64 of 2 dimensions"),
        ({"prefill_ttft_ms": np.zeros(2)}, "Prefill array length mismatch: prefill_isl 3, prefill_ttft_ms 2"),
        ({"decode_itl": np.zeros((3, 2))}, "Decode array dimension mismatch"),
        ({"prefill_isl": np.array([16.0, 16.0, 256.0])}, "Failed to build prefill interpolator: prefill_isl must rise"),
        ({"decode_context_length": np.array([9.0, 8.0, 7.0])}, "Failed to build decode interpolator: decode_context"),
        ({"decode_active_kv_tokens": np.array([1.0, math.nan, 3.0])}, "Failed to build decode interpolator"),
        ({"prefill_isl": np.array([1.0]), "prefill_ttft_ms": np.array([1.0])}, "Failed to build prefill interpolator"),
    ],
)
def test_a_profile_that_breaks_a_rule_is_refused(change, message: str) -> None:
    arrays = {name: array for name, array in {**PROFILE, **change}.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        TimingModel("profile", arrays=arrays)


class Recorder:
    """A user's model that remembers what it was asked."""

    def __init__(self, answer_ms: float = 2.0) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.answer_ms = answer_ms

    def prefill(self, *args: int) -> float:
        self.asked.append(args)
        return self.answer_ms

    def decode(self, *args: int) -> float:
        self.asked.append(args)
        return self.answer_ms


def test_callback_is_asked_with_the_means_and_scaled_like_any_other() -> None:
    recorder = Recorder()
    model = TimingModel("callback", callback=recorder, speedup_ratio=4.0)
    assert model.predict_prefill_ms(3, 33, 16) == 0.5
    assert model.predict_decode_ms(4, 41, 2**64 - 1) == 0.5
    assert recorder.asked == [(3, 33, 16), (4, 41, 10, 2**64 - 1)]


@pytest.mark.parametrize("answer_ms", [math.nan, math.inf, 1e30])
def test_a_callback_that_answers_no_duration_is_an_engine_error(answer_ms: float) -> None:
    model = TimingModel("callback", callback=Recorder(answer_ms))
    with pytest.raises(
        EngineError, match="prefill duration out of range: 3 prompts, mean 33 tokens, 16 of them cached"
    ):
        model.predict_prefill_ms(3, 33, 16)
    with pytest.raises(EngineError, match="decode duration out of range: 4 requests, 41 tokens"):
        model.predict_decode_ms(4, 41, 100)


def test_a_negative_answer_is_no_time_for_prefill_and_an_error_for_decode() -> None:
    model = TimingModel("callback", callback=Recorder(-3.0))
    assert model.predict_prefill_ms(1, 8, 0) == 0.0
    with pytest.raises(EngineError, match="decode duration out of range"):
        model.predict_decode_ms(1, 8, 100)


def test_an_error_of_a_callback_comes_through() -> None:
    class Broken:
        def prefill(self, *args: int) -> float:
            raise ZeroDivisionError("mine")

        decode = prefill

    model = TimingModel("callback", callback=Broken())
    with pytest.raises(ZeroDivisionError, match="mine"):
        model.predict_prefill_ms(1, 8, 0)
    with pytest.raises(ZeroDivisionError, match="mine"):
        model.predict_decode_ms(1, 8, 100)


def test_models_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown timing model 'linear'"):
        TimingModel("linear")
    with pytest.raises(ValueError, match="needs the methods prefill and decode"):
        TimingModel("callback", callback=object())
