"""Pass-time models: fixed, polynomial, measured profile, a callable of the user's.

Decides how long the prefill and the decode part of a pass take, rounded to whole nanoseconds and
scaled by the speed-up ratios. Never decides what is in a pass. All sums go left to right in doubles;
the build forbids fused multiply-add, so equal inputs give equal bits everywhere.

Source: polynomial coefficients and rounding as measured on the reference (engine specification, section 5).
"""
cimport cython
from libc.math cimport NAN, isfinite

import numpy as np

from .types import EngineError


cdef double _line(double x1, double y1, double x2, double y2, double x) noexcept nogil:
    return ((y2 - y1) / (x2 - x1)) * (x - x1) + y1


cdef Py_ssize_t _segment(double[::1] axis, double x) noexcept nogil:
    """Index of the segment that holds x; the first or the last one outside the axis."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = axis.shape[0] - 2
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high + 1) // 2
        if axis[middle] <= x:
            low = middle
        else:
            high = middle - 1
    return low


@cython.final
cdef class TimingModel:
    """Duration of the two parts of a pass.

    Args:
        kind: "polynomial", "fixed", "profile" or "callback".
        prefill_ms, decode_ms: durations of the fixed model [ms].
        arrays: mapping of the profile's float64 arrays: prefill_isl, prefill_ttft_ms (num_isl,),
            decode_active_kv_tokens (num_active,), decode_context_length (num_context,),
            decode_itl (num_active, num_context); axes rise strictly and have two points or more.
        callback: object with prefill(batch_size, mean_isl, mean_prefix) and decode(batch_size,
            active_kv_tokens, mean_context_length, total_kv_tokens), both returning ms.
        speedup_ratio, decode_speedup_ratio: divisors; 0 means unscaled.

    Raises:
        ValueError: unknown kind, or a profile whose arrays break a rule (the message names the array).
    """

    def __init__(self, str kind="polynomial", *, double prefill_ms=0.0, double decode_ms=0.0, arrays=None,
                 callback=None, double speedup_ratio=1.0, double decode_speedup_ratio=1.0):
        kinds = {"polynomial": TIMING_POLYNOMIAL, "fixed": TIMING_FIXED, "profile": TIMING_PROFILE,
                 "callback": TIMING_CALLBACK}
        if kind not in kinds:
            raise ValueError(f"unknown timing model {kind!r}")
        self.kind = kinds[kind]
        self._prefill_fixed_ms = prefill_ms
        self._decode_fixed_ms = decode_ms
        self._prefill_ratio = speedup_ratio
        self._decode_ratio = speedup_ratio * decode_speedup_ratio
        self._callback = callback
        if self.kind == TIMING_PROFILE:
            self._load(arrays)
        if self.kind == TIMING_CALLBACK and not (callable(getattr(callback, "prefill", None))
                                                 and callable(getattr(callback, "decode", None))):
            raise ValueError("a timing callback needs the methods prefill and decode")

    def _load(self, arrays):
        names = ("prefill_isl", "prefill_ttft_ms", "decode_active_kv_tokens", "decode_context_length", "decode_itl")
        checked = {}
        for name in names:
            if name not in arrays:
                raise ValueError(f"Failed to load {name} from NPZ: no such array")
            array = arrays[name]
            if array.dtype != np.float64 or array.ndim != (2 if name == "decode_itl" else 1):
                raise ValueError(f"Failed to load {name} from NPZ: float64 of {2 if name == 'decode_itl' else 1} "
                                 f"dimensions wanted, got {array.dtype} of {array.ndim}")
            checked[name] = np.ascontiguousarray(array)
        if checked["prefill_isl"].shape != checked["prefill_ttft_ms"].shape:
            raise ValueError(f"Prefill array length mismatch: prefill_isl {checked['prefill_isl'].shape[0]}, "
                             f"prefill_ttft_ms {checked['prefill_ttft_ms'].shape[0]}")
        grid = (checked["decode_active_kv_tokens"].shape[0], checked["decode_context_length"].shape[0])
        if checked["decode_itl"].shape != grid:
            raise ValueError(f"Decode array dimension mismatch: decode_itl {checked['decode_itl'].shape}, axes {grid}")
        for name, part in (("prefill_isl", "prefill"), ("decode_active_kv_tokens", "decode"),
                           ("decode_context_length", "decode")):
            axis = checked[name]
            if axis.shape[0] < 2 or not np.all(np.isfinite(axis)) or not np.all(np.diff(axis) > 0):
                raise ValueError(f"Failed to build {part} interpolator: {name} must rise strictly over two points or more")
        self._arrays = checked
        self._prefill_isl = checked["prefill_isl"]
        self._prefill_ttft_ms = checked["prefill_ttft_ms"]
        self._decode_active = checked["decode_active_kv_tokens"]
        self._decode_context = checked["decode_context_length"]
        self._decode_itl_ms = checked["decode_itl"]

    cdef double prefill_ms(self, int64_t batch_size, int64_t mean_isl, int64_t mean_prefix) except? -1.0 nogil:
        """Scaled duration [ms] of the prefill part of a pass with `batch_size` prompts."""
        cdef double raw = 0.0
        cdef double x = <double>(batch_size * (mean_isl - mean_prefix))
        cdef Py_ssize_t i
        cdef int ok = 1
        if self.kind == TIMING_POLYNOMIAL:
            raw = ((4.209989e-07 * (x * x)) + (1.518344e-02 * x)) + 1.650142e+01
        elif self.kind == TIMING_FIXED:
            raw = self._prefill_fixed_ms
        elif self.kind == TIMING_PROFILE:
            i = _segment(self._prefill_isl, x)
            raw = _line(self._prefill_isl[i], self._prefill_ttft_ms[i],
                        self._prefill_isl[i + 1], self._prefill_ttft_ms[i + 1], x)
        else:
            with gil:
                raw = self._callback.prefill(batch_size, mean_isl, mean_prefix)
        if raw < 0.0:
            raw = 0.0
        raw = mr_scaled_ms(raw, self._prefill_ratio, &ok)
        if not ok:
            with gil:
                raise EngineError(f"prefill duration out of range: {batch_size} prompts, mean {mean_isl} tokens, "
                                  f"{mean_prefix} of them cached")
        return raw

    cdef double decode_or_nan(self, int64_t batch_size, int64_t active_kv_tokens, uint64_t total_kv_tokens) noexcept nogil:
        """Scaled duration [ms] of the decode part of a pass; NaN when out of range, or a callback would have to be asked."""
        cdef double raw = 0.0
        cdef double use
        cdef int ok = 1
        if self.kind == TIMING_POLYNOMIAL:
            use = <double>active_kv_tokens / <double>total_kv_tokens
            if not use < 1.0:
                use = 1.0
            raw = ((-25.74 * (use * use)) + (54.01 * use)) + 5.74
            if raw < 1.0:
                raw = 1.0
        elif self.kind == TIMING_FIXED:
            raw = self._decode_fixed_ms
        elif self.kind == TIMING_PROFILE:
            raw = self._profile_decode_ms(<double>active_kv_tokens, <double>(active_kv_tokens // batch_size))
            if raw < 1.0:
                raw = 1.0
        else:
            return NAN
        raw = mr_scaled_ms(raw, self._decode_ratio, &ok)
        return raw if ok else NAN

    cdef double decode_ms(self, int64_t batch_size, int64_t active_kv_tokens, uint64_t total_kv_tokens) except? -1.0 nogil:
        """Scaled duration [ms] of the decode part of a pass that decodes `batch_size` requests."""
        cdef double ms = self.decode_or_nan(batch_size, active_kv_tokens, total_kv_tokens)
        cdef int ok = 1
        if ms == ms:
            return ms
        if self.kind == TIMING_CALLBACK:
            with gil:
                ms = self._callback.decode(batch_size, active_kv_tokens, active_kv_tokens // batch_size, total_kv_tokens)
            ms = mr_scaled_ms(ms, self._decode_ratio, &ok)
            if ok:
                return ms
        with gil:
            raise EngineError(f"decode duration out of range: {batch_size} requests, {active_kv_tokens} tokens")

    cdef double _profile_decode_ms(self, double active, double context) noexcept nogil:
        """Along the active axis at both columns first, then along the context axis."""
        cdef Py_ssize_t i = _segment(self._decode_active, active)
        cdef Py_ssize_t j = _segment(self._decode_context, context)
        cdef double a1 = self._decode_active[i]
        cdef double a2 = self._decode_active[i + 1]
        cdef double left = _line(a1, self._decode_itl_ms[i, j], a2, self._decode_itl_ms[i + 1, j], active)
        cdef double right = _line(a1, self._decode_itl_ms[i, j + 1], a2, self._decode_itl_ms[i + 1, j + 1], active)
        return _line(self._decode_context[j], left, self._decode_context[j + 1], right, context)

    def predict_prefill_ms(self, int64_t batch_size, int64_t mean_isl, int64_t mean_prefix):
        """Scaled duration of a prefill part [ms]; EngineError when out of range."""
        return self.prefill_ms(batch_size, mean_isl, mean_prefix)

    def predict_decode_ms(self, int64_t batch_size, int64_t active_kv_tokens, uint64_t total_kv_tokens):
        """Scaled duration of a decode part [ms]; EngineError when out of range."""
        return self.decode_ms(batch_size, active_kv_tokens, total_kv_tokens)


def scaled_ms(double raw_ms, double ratio=0.0):
    """A duration [ms] in whole nanoseconds divided by `ratio` (0 = unscaled).

    Raises:
        ValueError: negative, not finite, or not representable.
    """
    cdef int ok = 1
    cdef double result = mr_scaled_ms(raw_ms, ratio, &ok)
    if not ok or not isfinite(result):
        raise ValueError(f"duration out of range: {raw_ms} ms at ratio {ratio}")
    return result
