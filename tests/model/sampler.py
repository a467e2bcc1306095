"""The seeded sampler of multi-token prediction: ChaCha with 12 rounds, and the acceptance trials on it."""

from __future__ import annotations

from collections.abc import Sequence

MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & MASK32


def key_from_seed(seed: int) -> list[int]:
    """Eight key words from a 64-bit seed, by a PCG step each."""
    words = []
    state = seed & MASK64
    for _ in range(8):
        state = (state * 6364136223846793005 + 11634580027462260723) & MASK64
        mixed = (((state >> 18) ^ state) >> 27) & MASK32
        turn = state >> 59
        words.append(((mixed >> turn) | (mixed << (32 - turn))) & MASK32 if turn else mixed)
    return words


class ChaCha12:
    """Words of the key stream in order; stream 0, 64-bit block counter from 0."""

    def __init__(self, seed: int) -> None:
        self._key = key_from_seed(seed)
        self._counter = 0
        self._words: list[int] = []

    def _block(self) -> list[int]:
        start = [*CONSTANTS, *self._key, self._counter & MASK32, self._counter >> 32, 0, 0]
        self._counter += 1
        state = list(start)
        for _ in range(6):
            for quarter in (*COLUMNS, *DIAGONALS):
                self._quarter_round(state, *quarter)
        return [(mixed + first) & MASK32 for mixed, first in zip(state, start, strict=True)]

    @staticmethod
    def _quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
        for left, right in ((16, 12), (8, 7)):
            state[a] = (state[a] + state[b]) & MASK32
            state[d] = _rotate_left(state[d] ^ state[a], left)
            state[c] = (state[c] + state[d]) & MASK32
            state[b] = _rotate_left(state[b] ^ state[c], right)

    def next_u32(self) -> int:
        if not self._words:
            self._words = self._block()
        return self._words.pop(0)

    def next_u64(self) -> int:
        low = self.next_u32()
        return low | (self.next_u32() << 32)


class BurstSampler:
    """How many tokens a request emits in one pass: 1 plus the accepted drafts."""

    def __init__(self, seed: int, accept_rates: Sequence[float]) -> None:
        self._rng = ChaCha12(seed)
        self._rates = tuple(accept_rates)

    def sample(self) -> int:
        accepted = 0
        for rate in self._rates:
            if not self._trial(rate):
                break
            accepted += 1
        return 1 + accepted

    def _trial(self, rate: float) -> bool:
        if rate == 1.0:
            return True
        return self._rng.next_u64() < int(rate * 2.0**64)


def parse_accept_rates(text: str | None, nextn: int) -> list[float]:
    """The configured text as exactly `nextn` rates."""
    if text is None or not text.strip():
        rates = [0.85, 0.3, 0.0, 0.0, 0.0]
    else:
        rates = [float(part) for part in text.split(",")]
    return (rates + [0.0] * nextn)[:nextn]
