# All handoffs of a replay with prefill and decode workers: from what machines tell to what they are asked next.
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t

from .arrivals cimport Arrival
from .coordinator cimport Handoff, HandoffStep, TransferTiming
from .driver cimport Machine
from .event_buffer cimport Event, EventBuffer
from .handoff cimport HandoffBook
from .lanes cimport Envelope, Lane
from .places cimport Places
from .transfers cimport Transfers
from .types cimport Terms


cdef struct Passage:             # a request from its arrival until it has ended and nobody owns anything of it
    Handoff course
    int64_t n_in
    int64_t n_out
    uint64_t* hash_ids           # owned until the destination is asked for
    int64_t num_hash_ids
    Terms terms
    int32_t request
    int32_t prefill_worker       # NONE until the prompt is to be computed
    int32_t prefill_rank
    int32_t decode_worker        # NONE until the destination is asked for
    int32_t decode_rank
    int64_t number               # in order of arrival
    double fact_ms               # of its latest fact: a transfer starts when both sides are ready
    bint ended                   # its end is told
    int32_t next_free


cdef class Disaggregation:
    cdef readonly int32_t num_prefill_workers
    cdef readonly int32_t num_decode_workers
    cdef readonly int32_t prefill_dp_size
    cdef readonly int32_t decode_dp_size
    cdef readonly EventBuffer out
    cdef int32_t order                   # HandoffOrder
    cdef TransferTiming timing           # of every prefill worker; the prompt is entered
    cdef int64_t block_size              # [tokens]
    cdef int64_t num_blocks              # of a decode rank
    cdef bint books_outputs              # it takes requests only whose output fits, too
    cdef int64_t max_model_len           # of a decode rank; INT64_MAX = no limit
    cdef Places places                   # of either pool
    cdef Passage* passages               # (capacity,), owned
    cdef int32_t capacity
    cdef int32_t top
    cdef int32_t free_passage
    cdef int64_t num_started             # passages
    cdef int64_t num_instant             # transfers that take no time
    cdef HandoffBook index               # passages by request
    cdef Py_ssize_t scanned              # records already looked at
    cdef Event* facts                    # (fact_capacity,) records that somebody has to hear of, in order, owned
    cdef int64_t num_facts
    cdef int64_t fact_capacity
    cdef Lane commands                   # to be given to machines, in order
    cdef Lane* waiting                   # (number of workers,) commands that wait for the end of a pass, owned
    cdef int64_t num_waiting
    cdef Transfers transfers             # under way
    cdef bint happened                   # anything, since somebody asked
    cdef bint heard                      # a machine told something since the fleet last asked

    cdef int32_t find(self, int64_t request) noexcept nogil
    cdef int start(self, Arrival* arrival, double now_ms, int32_t worker, int32_t rank) except -1 nogil
    cdef int scan(self) except -1 nogil
    cdef int collect(self, double now_ms) except -1 nogil
    cdef int note_ends(self) except -1 nogil
    cdef bint end_transfer(self, double now_ms) except -1 nogil
    cdef bint settle(self, PyObject** workers, double now_ms) except -1 nogil
    cdef bint next_command(self, PyObject** workers, double now_ms, Envelope* envelope) except -1 nogil
    cdef int give(self, Machine machine, Envelope* envelope, double now_ms) except -1 nogil
    cdef int take_machines(self, tuple machines, EventBuffer out, bint external, bint placed) except -1
    cdef int keep_one_cut_each(self, double end_ms) except -1
    cdef int wait_for_pass(self, Envelope* envelope) except -1 nogil
    cdef int pass_over(self, int32_t worker) except -1 nogil
    cdef int refused(self, int64_t request, int32_t kind, double now_ms) except -1 nogil
    cdef int leave(self, PyObject** workers, int64_t request, double now_ms) except -1 nogil
    cdef int first_rank(self, Arrival* arrival, double now_ms, int32_t* worker, int32_t* rank) except -1 nogil
    cdef int _place_at(self, Passage* passage, Envelope* envelope, double now_ms) except -1 nogil
    cdef int _hear(self, Event* event, double now_ms) except -1 nogil
    cdef int _fact(self, int32_t at, HandoffStep* step, int status, double now_ms) except -1 nogil
    cdef int _command_told(self, int64_t handoff, int32_t kind, int64_t result, double now_ms) except -1 nogil
    cdef int _act(self, int32_t at, HandoffStep* step, double now_ms) except -1 nogil
    cdef int _send(self, int32_t at, int32_t kind, double now_ms) except -1 nogil
    cdef int _start_transfer(self, int32_t at, int32_t action, double delay_ms, double now_ms) except -1 nogil
    cdef int _end(self, int32_t at, int32_t status, int32_t reason, double now_ms) except -1 nogil
    cdef int _forget_if_over(self, int32_t at) noexcept nogil
    cdef uint64_t* _hash_ids_for(self, Passage* passage, int32_t kind) except? NULL nogil
    cdef int32_t _new(self) except -1 nogil
