# Pass-time models: raw milliseconds of the prefill and the decode part of a pass.
from libc.stdint cimport int64_t, uint64_t


cdef extern from "ns_rounding.h" nogil:
    ctypedef unsigned long long mr_u128     # really unsigned __int128; never computed with in Cython
    double mr_scaled_ms(double raw_ms, double ratio, int* ok)


cdef enum TimingKind:
    TIMING_POLYNOMIAL = 0
    TIMING_FIXED = 1
    TIMING_PROFILE = 2
    TIMING_CALLBACK = 3


cdef class TimingModel:
    cdef readonly int kind
    cdef double _prefill_fixed_ms
    cdef double _decode_fixed_ms
    cdef double _prefill_ratio           # speedup_ratio
    cdef double _decode_ratio            # speedup_ratio * decode_speedup_ratio
    cdef object _arrays                  # keeps the profile's arrays alive
    cdef double[::1] _prefill_isl        # (num_isl,) [tokens], rising
    cdef double[::1] _prefill_ttft_ms    # (num_isl,) [ms]
    cdef double[::1] _decode_active      # (num_active,) [tokens], rising
    cdef double[::1] _decode_context     # (num_context,) [tokens], rising
    cdef double[:, ::1] _decode_itl_ms   # (num_active, num_context) [ms]
    cdef object _callback                # .prefill(...) and .decode(...), both -> ms

    cdef double prefill_ms(self, int64_t batch_size, int64_t mean_isl, int64_t mean_prefix) except? -1.0 nogil
    cdef double decode_or_nan(self, int64_t batch_size, int64_t active_kv_tokens, uint64_t total_kv_tokens) noexcept nogil
    cdef double decode_ms(self, int64_t batch_size, int64_t active_kv_tokens, uint64_t total_kv_tokens) except? -1.0 nogil
    cdef double _profile_decode_ms(self, double active, double context) noexcept nogil
