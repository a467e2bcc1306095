# What the flavours on the block pool share (vLLM, TensorRT-LLM): look-up, block tables, work of one request.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .block_pool cimport BlockPool
from .event_buffer cimport EventBuffer
from .prefix_index cimport PrefixIndex
from .request_table cimport Request
from .scheduler cimport Scheduler


cdef class BlockScheduler(Scheduler):
    cdef readonly PrefixIndex index
    cdef readonly BlockPool pool
    cdef int64_t block_size              # [tokens]
    cdef uint64_t kv_capacity_tokens     # num_gpu_blocks * block_size, modulo 2^64
    cdef bint prefix_caching
    cdef bint chunked_prefill
    # Result of the last look-up.
    cdef int32_t* hit_copies             # (hit_capacity,) primaries of the leading cached blocks, owned
    cdef int64_t hit_capacity
    cdef int64_t num_hits
    cdef int64_t num_active_hits         # of them with a reference
    cdef int64_t cached_tokens           # reuse after the rule of what must be recomputed
    cdef int64_t active_cached_tokens
    # The pass being executed.
    cdef int64_t budget                  # tokens left
    cdef int64_t prefill_requests        # requests with prompt work in this pass
    cdef int64_t prefill_isl_sum
    cdef int64_t prefill_prefix_sum
    cdef int64_t num_rejected
    cdef int32_t* rejected               # (2 * rejected_capacity,) pairs (slot, reason) of this pass, owned
    cdef int64_t rejected_capacity
    # Cache events.
    cdef object _block_tokens            # callable(ordinal, first, stop) -> little-endian u32 bytes of generated tokens
    cdef bint keeps_hash_ids             # of prompts, as long as a request is owned
    cdef bint asks_prompt_tokens         # and of prompt tokens, at positions below 0
    cdef object _xxh3                    # callable(bytes, seed) -> int
    cdef dict _uniform_hashes            # local hash of a block of one repeated token

    cdef int64_t needed_for(self, int32_t slot, int32_t reason) noexcept nogil
    cdef int64_t available_for(self, int32_t reason) noexcept nogil
    cdef int intern_path(self, Request* request) except -1 nogil
    cdef int look_up(self, Request* request) except -1 nogil
    cdef void cap_reuse(self, Request* request, bint logits, bint speculative) noexcept nogil
    cdef int64_t append_blocks(self, Request* request, int64_t num_hits, int64_t num_fresh) except -1 nogil
    cdef int finalise(self, Request* request, int64_t before, int64_t after) except -1 nogil
    cdef int compute(self, int32_t slot, int64_t before, int64_t take, bint from_waiting) except -1 nogil
    cdef int64_t private_run(self, Request* request, int64_t block, int64_t end, int32_t* identity) except -1 nogil
    cdef int32_t _generated_node(self, Request* request, int64_t block) except -1 nogil
    cdef int32_t private_identity(self, Request* request, int64_t block) except -1 nogil
    cdef void release_blocks(self, Request* request) noexcept nogil
    cdef int publish_removed(self) except -1 nogil
    cdef int publish_stored(self, Request* request, int64_t first_block, int64_t num_blocks) except -1
    cdef int32_t identity_of(self, Request* request, int64_t block) noexcept nogil
    cdef uint64_t hash_of(self, Request* request, int64_t block) except? 0
    cdef object chain_hash(self, uint64_t parent, int64_t block, uint64_t local)
    cdef list slots_outside(self)
    cdef list held_sources(self)
    cdef object local_hash(self, Request* request, int64_t block)
    cdef int reject(self, int32_t slot, int32_t reason, bint is_aside) except -1 nogil
    cdef int _publish_prefill(self, Request* request) except -1 nogil
