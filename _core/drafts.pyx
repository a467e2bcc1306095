"""Multi-token prediction: how many draft tokens of a request are accepted in a pass.

Decides what one request draws. Never decides who draws, nor in which order. Source: engine specification, section 8.
"""
from libc.math cimport floor

from .chacha cimport chacha_next_u64, chacha_seed


cdef int drafts_begin(Drafts* drafts, object accept_rates, uint64_t seed) except -1:
    """Drafts with these rates, one each; none are no drafts."""
    cdef Py_ssize_t i
    if len(accept_rates) > MAX_DRAFTS:
        raise ValueError(f"at most {MAX_DRAFTS} accept rates, got {len(accept_rates)}")
    drafts.num = len(accept_rates)
    for i in range(drafts.num):
        drafts.rates[i] = accept_rates[i]
    chacha_seed(&drafts.stream, seed)
    return 0


cdef int64_t drafts_accepted(Drafts* drafts) noexcept nogil:
    """Tokens of one request: one, and one more for each leading success."""
    cdef int64_t accepted = 1
    cdef int64_t i
    for i in range(drafts.num):
        if drafts.rates[i] < 1.0:
            # floor(rate * 2^64) fits: the rate is below one.
            if chacha_next_u64(&drafts.stream) >= <uint64_t>floor(drafts.rates[i] * 18446744073709551616.0):
                break
        accepted += 1
    return accepted
