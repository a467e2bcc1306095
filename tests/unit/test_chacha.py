"""ChaCha12 against the arrival figures of the reference and a slow model written from the definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay._core.chacha import ChaCha12Rng

WORD = 2**32
QUARTERS = [
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
]  # fmt: skip


def rotated(value: int, left: int) -> int:
    return ((value << left) | (value >> (32 - left))) % WORD


def model_words(seed: int, num_words: int) -> list[int]:
    """The first words of the stream, in plain integers."""
    key = []
    for _ in range(8):
        seed = (seed * 6364136223846793005 + 11634580027462260723) % 2**64
        key.append(rotated((((seed >> 18) ^ seed) >> 27) % WORD, (32 - (seed >> 59)) % 32))
    words: list[int] = []
    for counter in range(math.ceil(num_words / 16)):
        initial = [*b_words(b"expand 32-byte k"), *key, counter % WORD, counter >> 32, 0, 0]
        x = list(initial)
        for _ in range(6):
            for a, b, c, d in QUARTERS:
                for p, q, r, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    x[p] = (x[p] + x[q]) % WORD
                    x[r] = rotated(x[r] ^ x[p], turn)
        words += [(value + start) % WORD for value, start in zip(x, initial, strict=True)]
    return words[:num_words]


def b_words(text: bytes) -> list[int]:
    return [int.from_bytes(text[i : i + 4], "little") for i in range(0, len(text), 4)]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 70))
def test_words_are_those_of_the_model(seed: int, num_words: int) -> None:
    rng = ChaCha12Rng(seed)
    assert [rng.next_u32() for _ in range(num_words)] == model_words(seed, num_words)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**64 - 1), st.lists(st.booleans(), min_size=1, max_size=40))
def test_wide_draws_take_two_words_low_first_across_blocks(seed: int, wide: list[bool]) -> None:
    rng, words = ChaCha12Rng(seed), iter(model_words(seed, 2 * len(wide)))
    for is_wide in wide:
        expected = next(words)
        if is_wide:
            expected += next(words) * WORD
        assert (rng.next_u64() if is_wide else rng.next_u32()) == expected


@pytest.mark.parametrize(
    ("seed", "arrivals_ms"),
    [
        (42, [0.0, 7.477246176406965, 15.301953951913882, 25.420753684496404]),
        (7, [0.0, 0.30786437168091013, 3.976362317455055, 5.515361258397029]),
    ],
)
def test_exponential_gaps_of_the_reference(seed: int, arrivals_ms: list[float]) -> None:
    rng, now_ms, seen = ChaCha12Rng(seed), 0.0, [0.0]
    for _ in range(3):
        now_ms += -10.0 * math.log(1.0 - rng.uniform())
        seen.append(now_ms)
    assert seen == arrivals_ms


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64 - 1), st.one_of(st.integers(1, 1000), st.integers(2**31, 2**32 - 1)))
def test_below_is_multiply_high_with_one_correction(seed: int, bound: int) -> None:
    rng, words = ChaCha12Rng(seed), iter(model_words(seed, 64))
    for _ in range(32):
        high, low = divmod(next(words) * bound, WORD)
        if low > -bound % WORD:
            high += low + next(words) * bound // WORD >= WORD
        assert rng.below(bound) == high < bound


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be in"):
        ChaCha12Rng(seed)


@pytest.mark.parametrize("bound", [0, -1, 2**32])
def test_a_bound_out_of_range_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match="bound must be in"):
        ChaCha12Rng(1).below(bound)
