"""How long a pass takes: the timing models and the exact rounding to nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Protocol


class TimingModel(Protocol):
    """The two predictions, in raw milliseconds."""

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float: ...

    def decode(
        self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int
    ) -> float: ...


class Fixed:
    def __init__(self, prefill_ms: float, decode_ms: float) -> None:
        self.prefill_ms, self.decode_ms = float(prefill_ms), float(decode_ms)

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        return self.prefill_ms

    def decode(self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int) -> float:
        return self.decode_ms


class Polynomial:
    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        x = float(batch_size * (mean_isl - mean_prefix))
        return max(0.0, ((4.209989e-07 * (x * x)) + (1.518344e-02 * x)) + 1.650142e01)

    def decode(self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int) -> float:
        u = min(active_kv_tokens / total_kv_tokens, 1.0)
        return max(1.0, ((-25.74 * (u * u)) + (54.01 * u)) + 5.74)


def _piece(axis: Sequence[float], x: float) -> int:
    """Index of the linear piece for x; the first or last one outside the axis."""
    for i in range(len(axis) - 2):
        if x < axis[i + 1]:
            return i
    return len(axis) - 2


def _line(x1: float, y1: float, x2: float, y2: float, x: float) -> float:
    return ((y2 - y1) / (x2 - x1)) * (x - x1) + y1


class Profile:
    """Measured curves: prefill over tokens, decode over (active tokens, mean context)."""

    def __init__(self, arrays: Mapping[str, Sequence[float] | Sequence[Sequence[float]]]) -> None:
        self.isl = [float(v) for v in arrays["prefill_isl"]]  # type: ignore[arg-type]
        self.ttft_ms = [float(v) for v in arrays["prefill_ttft_ms"]]  # type: ignore[arg-type]
        self.active = [float(v) for v in arrays["decode_active_kv_tokens"]]  # type: ignore[arg-type]
        self.context = [float(v) for v in arrays["decode_context_length"]]  # type: ignore[arg-type]
        self.itl = [[float(v) for v in row] for row in arrays["decode_itl"]]  # type: ignore[union-attr]

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        x = float(batch_size * (mean_isl - mean_prefix))
        i = _piece(self.isl, x)
        return max(0.0, _line(self.isl[i], self.ttft_ms[i], self.isl[i + 1], self.ttft_ms[i + 1], x))

    def decode(self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int) -> float:
        active, context = float(active_kv_tokens), float(mean_context_length)
        i, j = _piece(self.active, active), _piece(self.context, context)
        low, high = self.active[i], self.active[i + 1]
        left = _line(low, self.itl[i][j], high, self.itl[i + 1][j], active)
        right = _line(low, self.itl[i][j + 1], high, self.itl[i + 1][j + 1], active)
        return max(1.0, _line(self.context[j], left, self.context[j + 1], right, context))


def make_timing(settings: Mapping[str, object] | None) -> TimingModel:
    """The model a `timing_model` mapping asks for."""
    settings = settings or {"type": "polynomial"}
    if settings["type"] == "fixed":
        return Fixed(settings["prefill_ms"], settings["decode_ms"])  # type: ignore[arg-type]
    if settings["type"] == "polynomial":
        return Polynomial()
    import numpy as np

    config = settings["config"]
    assert isinstance(config, Mapping)
    with np.load(config["path"]) as arrays:
        return Profile({name: arrays[name].tolist() for name in arrays.files})


def whole_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, to nearest, ties to even, on the exact binary value."""
    return round(Fraction(seconds) * 1_000_000_000)


def as_seconds(ns: int) -> float:
    return float(ns // 1_000_000_000) + float(ns % 1_000_000_000) / 1e9


def scaled_ms(raw_ms: float, ratio: float) -> float:
    """What a raw duration adds to the clock; a ratio of 0 means unscaled."""
    ns = whole_ns(raw_ms / 1000.0)
    if ratio > 0.0 and ns > 0:
        ns = whole_ns(as_seconds(ns) / ratio)
    milliseconds = as_seconds(ns) * 1000.0
    return as_seconds(whole_ns(milliseconds / 1000.0)) * 1000.0
