"""ChaCha12 stream of 32-bit words from a 64-bit seed.

Decides: the order and value of every random word, and how words become wide integers, uniform floats
and small integers. Never decides what they are used for. A plain struct, so that engines keep one per
rank without a Python object.
"""
cimport cython


cdef inline uint32_t rotate_left(uint32_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (32 - bits))


cdef inline void quarter_round(uint32_t* x, int a, int b, int c, int d) noexcept nogil:
    x[a] += x[b]
    x[d] = rotate_left(x[d] ^ x[a], 16)
    x[c] += x[d]
    x[b] = rotate_left(x[b] ^ x[c], 12)
    x[a] += x[b]
    x[d] = rotate_left(x[d] ^ x[a], 8)
    x[c] += x[d]
    x[b] = rotate_left(x[b] ^ x[c], 7)


cdef void refill(ChaCha12* rng) noexcept nogil:
    """Compute block `counter` and step on."""
    cdef uint32_t initial[16]
    cdef uint32_t* x = rng.words
    cdef int i, _pair
    initial[0], initial[1], initial[2], initial[3] = 0x61707865, 0x3320646E, 0x79622D32, 0x6B206574
    for i in range(8):
        initial[4 + i] = rng.key[i]
    initial[12] = <uint32_t>rng.counter
    initial[13] = <uint32_t>(rng.counter >> 32)
    initial[14] = 0
    initial[15] = 0
    for i in range(16):
        x[i] = initial[i]
    for _pair in range(6):                   # 12 rounds, two at a time
        quarter_round(x, 0, 4, 8, 12)
        quarter_round(x, 1, 5, 9, 13)
        quarter_round(x, 2, 6, 10, 14)
        quarter_round(x, 3, 7, 11, 15)
        quarter_round(x, 0, 5, 10, 15)
        quarter_round(x, 1, 6, 11, 12)
        quarter_round(x, 2, 7, 8, 13)
        quarter_round(x, 3, 4, 9, 14)
    for i in range(16):
        x[i] += initial[i]
    rng.counter += 1
    rng.index = 0


cdef void chacha_seed(ChaCha12* rng, uint64_t seed) noexcept nogil:
    """Spread the seed over the key with a PCG32 step per word; the stream starts at block 0."""
    cdef int i
    cdef uint32_t mixed
    for i in range(8):
        seed = seed * <uint64_t>6364136223846793005 + <uint64_t>11634580027462260723
        mixed = <uint32_t>(((seed >> 18) ^ seed) >> 27)
        # A rotation to the right by seed >> 59; a shift by 32 would be undefined, hence the masks.
        rng.key[i] = (mixed >> (seed >> 59)) | (mixed << ((32 - (seed >> 59)) & 31))
    rng.counter = 0
    rng.index = 16


cdef uint32_t chacha_next_u32(ChaCha12* rng) noexcept nogil:
    if rng.index == 16:
        refill(rng)
    rng.index += 1
    return rng.words[rng.index - 1]


cdef uint64_t chacha_next_u64(ChaCha12* rng) noexcept nogil:
    cdef uint64_t low = chacha_next_u32(rng)
    return low | (<uint64_t>chacha_next_u32(rng) << 32)


cdef double chacha_uniform(ChaCha12* rng) noexcept nogil:
    return <double>(chacha_next_u64(rng) >> 11) * (1.0 / 9007199254740992.0)


cdef uint32_t chacha_below(ChaCha12* rng, uint32_t bound) noexcept nogil:
    """Multiply-high with one correcting draw, so that the bias is below 2**-64."""
    cdef uint64_t product = <uint64_t>chacha_next_u32(rng) * bound
    cdef uint32_t result = <uint32_t>(product >> 32)
    cdef uint32_t low = <uint32_t>product
    if low > <uint32_t>(0 - bound):
        product = <uint64_t>chacha_next_u32(rng) * bound
        result += <uint32_t>((low + (product >> 32)) >> 32)      # the carry out of the low half
    return result


@cython.final
cdef class ChaCha12Rng:
    """The stream for Python: synthetic workloads and tests."""

    def __cinit__(self, seed):
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in 0..2**64-1, got {seed}")
        chacha_seed(&self.state, seed)

    def next_u32(self):
        """The next 32-bit word."""
        return chacha_next_u32(&self.state)

    def next_u64(self):
        """The next two words, the first one low."""
        return chacha_next_u64(&self.state)

    def uniform(self):
        """A float64 in [0, 1) with 53 random bits."""
        return chacha_uniform(&self.state)

    def below(self, bound):
        """An integer in [0, bound), 1 <= bound < 2**32."""
        if not 1 <= bound < 1 << 32:
            raise ValueError(f"bound must be in 1..2**32-1, got {bound}")
        return chacha_below(&self.state, bound)
