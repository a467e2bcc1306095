# Requests owned by one rank: one struct a request, slots reused.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .types cimport Terms


cdef struct Request:
    # What was asked.
    int64_t n_in                 # prompt [tokens]
    int64_t n_out                # requested output [tokens]
    uint64_t* hash_ids           # (num_hash_ids,) owned; identity of the prompt's trace blocks
    int64_t num_hash_ids
    int32_t ordinal              # trace row
    Terms terms
    # Where it stands.
    int32_t status               # RequestStatus
    int64_t gen                  # tokens generated so far; never reset
    int64_t computed             # of the n_in + gen tokens, the pass being executed included
    int64_t alloc                # token watermark up to which blocks are held
    int32_t num_admissions
    int32_t num_preemptions
    int64_t arrival_number       # ascending in the order in which requests came to this rank
    int32_t owned                # entry in the book of handoffs + 1, 0 = no part of any
    # Its place in the waiting queue; valid while it waits (sched_policy).
    int64_t queue_number         # ascending in the order of first come, first served
    double order_key             # as the policy gave it; lower goes first, equals by queue_number
    int64_t match_tokens         # cached prefix when it was last looked up for an order [tokens]
    int64_t vetoed_pass          # the pass in which the policy last held it back
    int64_t num_watched          # of its path, then of its private nodes, those at which it is counted (prefix_index)
    uint8_t order_told           # that it was tried before the first come is recorded
    # Blocks.
    int64_t full_blocks          # prompt blocks that have an identity
    int32_t* path                # (path_length,) nodes of those identities, owned; NULL until first looked up
    int64_t path_length
    int32_t* private_nodes       # (num_private_nodes,) nodes of identities with generated tokens, owned
    int64_t num_private_nodes
    int64_t num_private          # identities handed out there; block full_blocks + i has the i-th
    int32_t* table               # (table_length,) cached copy of each held block or PRIVATE, owned
    int64_t table_length
    int64_t table_capacity
    # Work of the pass being executed; valid while scheduled_pass is that pass.
    int64_t scheduled_pass
    int64_t work_total           # tokens
    int64_t work_prompt          # of them prompt tokens
    int64_t work_prefix          # prompt tokens before
    uint8_t work_terminal        # nothing was left to generate when it was scheduled
    # Last emission.
    int64_t emit_pass            # rank pass of the last token; NONE before the first
    int64_t emit_tokens          # tokens in that pass
    int64_t emit_excess          # drafts accepted there beyond what it may generate
    double emit_ms               # its end
    double emit_before_ms        # end of the pass of the emission before
    uint8_t emit_consecutive     # the token before came with the rank's previous pass
    uint8_t emit_forward         # it had no prompt work in that pass
    # Steady decoding (sched_calendar): while set, gen, computed, alloc and the emission are implied by the step count.
    uint8_t steady
    int64_t gen_offset           # gen = gen_offset + steps
    int64_t last_step            # step that emits the last token
    int64_t joined_step          # steps when it became steady: its last emission of before is still written down
    int64_t seniority            # order of admission into running
    int32_t phase_next           # ring of requests with the same block phase
    int32_t phase_prev
    int32_t end_next             # requests that end with the same step
    int32_t next_free


cdef class RequestTable:
    cdef Request* slots          # (capacity,), owned
    cdef int32_t capacity
    cdef int32_t top
    cdef int32_t free_slot
    cdef readonly int32_t num_owned
    cdef int64_t num_added
    cdef int32_t* buckets        # (bucket_mask + 1,): slot by ordinal, open addressing
    cdef int64_t bucket_mask

    cdef int32_t add(self, int32_t ordinal, int64_t n_in, int64_t n_out, const uint64_t* hash_ids, int64_t num_hash_ids, const Terms* terms) except -1 nogil
    cdef int32_t find(self, int32_t ordinal) noexcept nogil
    cdef void remove(self, int32_t slot) noexcept nogil
    cdef void give_back(self) noexcept nogil
    cdef int _grow(self) except -1 nogil
    cdef int64_t _bucket(self, int32_t ordinal) noexcept nogil
