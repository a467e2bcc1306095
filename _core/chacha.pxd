# ChaCha with 12 rounds: the one generator of seeded randomness (MTP acceptance, synthetic workloads).
from libc.stdint cimport uint32_t, uint64_t


cdef struct ChaCha12:
    uint32_t key[8]       # from the 64-bit seed, see chacha_seed
    uint64_t counter      # number of the next block, from 0
    uint32_t words[16]    # the current block's output
    int index             # next word to hand out; 16 = block used up


cdef void chacha_seed(ChaCha12* rng, uint64_t seed) noexcept nogil
cdef uint32_t chacha_next_u32(ChaCha12* rng) noexcept nogil
cdef uint64_t chacha_next_u64(ChaCha12* rng) noexcept nogil          # two words, the first one low
cdef double chacha_uniform(ChaCha12* rng) noexcept nogil             # in [0, 1), 53 bits
cdef uint32_t chacha_below(ChaCha12* rng, uint32_t bound) noexcept nogil   # in [0, bound), bound >= 1


cdef class ChaCha12Rng:
    cdef ChaCha12 state
