# Per-request figures and counters out of ordered event records (see docs/metrics.md).
from libc.stdint cimport int8_t, int32_t, int64_t

from .event_buffer cimport NUM_HOST_STEPS, Event
from .gap_pool cimport GapPool
from .policy cimport NUM_DECISIONS


cdef struct Interval:
    # Telemetry counters since the last take_interval().
    int64_t arrivals
    int64_t completions
    int64_t input_tokens      # of the completions
    int64_t output_tokens     # of the completions
    int64_t ttft_count
    int64_t mean_gap_count    # completions with at least two tokens
    int64_t decode_tokens     # tokens accepted in decode passes, those beyond the requested length included
    int64_t decode_forwards   # (request, decode pass) pairs; the pass of a first token is no decode pass
    int64_t preemptions       # published by a gauges record
    int64_t prefill_preemptions   # of them on prefill workers
    int64_t hit_tokens        # found by admissions of passes that ended; this and the next three with counts_lookups
    int64_t prefill_hit_tokens    # of them on prefill workers
    int64_t looked_up_tokens  # found, and computed by passes of prompts that ended
    int64_t prefill_looked_up_tokens
    double ttft_sum_ms
    double mean_gap_sum_ms


cdef struct Totals:
    int64_t arrivals
    int64_t preemptions
    int64_t passes            # worker passes that ended
    int64_t rank_passes       # rank passes that ended
    int64_t tokens            # emitted, whatever became of the request
    int64_t prefill_tokens    # committed by passes that ended
    int64_t decode_tokens
    int64_t decode_forwards


cdef class Collector:
    cdef readonly int32_t num_workers
    cdef readonly int32_t dp_size
    cdef readonly int32_t num_prefill_workers   # the first of all; 0 = workers have no roles
    cdef readonly bint counts_lookups       # for telemetry, in the place of preemptions
    cdef readonly Py_ssize_t num_rows       # largest request ordinal seen + 1
    cdef Py_ssize_t _row_capacity
    cdef Py_ssize_t _num_open               # rows whose columns are filled, whether they have arrived or not
    cdef int64_t[NUM_DECISIONS] _decisions  # of a policy, by kind
    cdef int64_t[NUM_HOST_STEPS] _host_steps   # of host tiers, by step
    cdef int64_t[NUM_HOST_STEPS] _host_blocks  # and the blocks they were about
    cdef dict _column_types                 # name -> (dtype, fill) of the columns, name -> dtype of readmissions
    cdef dict _readmission_types
    cdef dict _arrays                       # name -> (row_capacity,) ndarray; the pointers below point into them

    cdef double* _arrival_ms                # NaN = absent in all times
    cdef double* _first_admit_ms
    cdef double* _first_token_ms
    cdef double* _second_token_ms
    cdef double* _last_token_ms
    cdef double* _terminal_ms
    cdef int32_t* _input_tokens
    cdef int32_t* _requested_output_tokens
    cdef int32_t* _output_tokens
    cdef int32_t* _reused_tokens_max        # over all admissions
    cdef int32_t* _reused_tokens_first      # of the first admission
    cdef int32_t* _host_tokens_first        # of it, from a host tier; -1 and NULL where nobody counts
    cdef int32_t* _num_admissions
    cdef int32_t* _num_preemptions
    cdef int32_t* _worker                   # -1 not arrived
    cdef int32_t* _rank
    cdef int32_t* _session                  # ordinal, -1 none; NULL while no request has one
    cdef int32_t* _turn
    cdef int8_t* _status                    # -1 not arrived, -2 arrived and not terminal, else TerminalStatus
    cdef int8_t* _reason                    # TerminalReason, -1 none

    # Only where workers have roles; `_worker` and `_rank` are then those of the prefill, `_reused_tokens_max` over its
    # admissions.
    cdef double* _decode_admit_ms
    cdef double* _source_held_ms
    cdef double* _destination_reserved_ms
    cdef double* _destination_activated_ms
    cdef double* _source_released_ms
    cdef int64_t* _decode_reused_tokens_max     # -1 never admitted
    cdef int32_t* _decode_worker                # -1 no destination was accepted
    cdef int32_t* _decode_rank
    cdef int8_t* _decode_refused                # 1 = that rank did not accept it
    cdef int8_t* _readmission_decode            # 1 = it happened on a decode worker

    cdef dict _refusals                     # row -> (needed, available) of a rejection or failure
    cdef int64_t* _gauges                   # (num_workers * dp_size, 6), owned: active, inactive blocks, running,
                                            # waiting, preemptions not published yet, tokens found by the pass in flight
    cdef GapPool _gap_pool
    cdef Py_ssize_t _num_readmissions
    cdef Py_ssize_t _readmission_capacity
    cdef int64_t* _readmission_request
    cdef double* _readmission_ms
    cdef int64_t* _readmission_reused_tokens
    cdef Interval _interval
    cdef Totals _totals

    cdef int take(self, const Event* records, Py_ssize_t num_records, const int64_t* words) except -1 nogil
    cdef Py_ssize_t _row_of(self, const Event* event) except -1 nogil
    cdef int32_t _rank_of(self, const Event* event) except -1 nogil
    cdef int _arrive(self, const Event* event) except -1 nogil
    cdef int _admit(self, const Event* event) except -1 nogil
    cdef int _submit_prefill(self, const Event* event) except -1 nogil
    cdef int _count_lookups(self, const Event* event, int32_t rank) except -1 nogil
    cdef int _publish_gauges(self, const Event* event) except -1 nogil
    cdef int _begin_output(self, const Event* event) except -1 nogil
    cdef int _end_quiet_run(self, const Event* event, const double* ends_ms) except -1 nogil
    cdef int _end_rank_pass(self, const Event* event) except -1 nogil
    cdef int _end_request(self, const Event* event, const int64_t* words) except -1 nogil
    cdef int _cut(self, const Event* event) except -1 nogil
    cdef int _hand_off(self, const Event* event) except -1 nogil
    cdef int32_t _rank_of_row(self, Py_ssize_t row) noexcept nogil
    cdef int _point_at_stages(self) except -1
    cdef int _open_rows(self, Py_ssize_t wanted) except -1
    cdef int _add_columns(self, tuple names) except -1
    cdef int _point_at_added(self) except -1
    cdef int _grow_rows(self, Py_ssize_t capacity) except -1
    cdef object _column(self, str name)
    cdef int _grow_readmissions(self) except -1
