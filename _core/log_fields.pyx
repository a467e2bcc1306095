"""Compound fields of a log line: gauges, forward-pass records, reasons of an end, copies; names of what was done.

Decides: their keys and texts, as docs/event-log.md defines them. Never looks at more than the one record.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from .event_buffer cimport (
    Event, HOST_FENCE, NUM_HOST_STEPS, REASON_BURST_OVER_POOL, REASON_CLIENT, REASON_GROWTH_OVER_POOL, REASON_MODEL_LEN,
    REASON_OUTPUT_LENGTH, REASON_POOL_LEN, REASON_PROMPT_OVER_BUDGET, REASON_PROMPT_OVER_MODEL_LEN, REASON_PROMPT_OVER_POOL,
)
from .json_text cimport put, put_double, put_int

from .event_buffer import FPM_FIELDS as _FPM_FIELDS

cdef tuple _FPM_KEYS = tuple(f'{"," if i else ""}"{name}":'.encode() for i, name in enumerate(_FPM_FIELDS))
cdef const char* _fpm_keys[NUM_FPM]
cdef bint _fpm_is_count[NUM_FPM]     # counts and sums are whole numbers, the rest are not

# By event_buffer.CommandKind, HandoffStage and HostStep.
COMMAND_TEXTS[:] = [
    b"submit", b"cancel", b"submit_prefill", b"release_source", b"cancel_source", b"reserve_destination",
    b"activate_destination", b"cancel_destination",
]
STAGE_TEXTS[:] = [
    b"source_held", b"destination_accepted", b"destination_reserved", b"transfer_started", b"transfer_ended",
    b"destination_activated", b"source_released", b"source_cancelled", b"destination_cancelled",
]
HOST_TEXTS[:] = [
    b"store_prepared", b"store_submitted", b"store_completed", b"load_scheduled", b"load_completed", b"load_cancelled",
    b"host_eviction", b"fence", b"load_returned",
]


cdef char* put_gauges(char* out, Event* gauges) noexcept nogil:
    out = put_int(out, b',"gauges":{"active_blocks":', gauges.a)
    out = put_int(out, b',"inactive_blocks":', gauges.b)
    out = put_int(out, b',"running":', gauges.c)
    out = put_int(out, b',"waiting":', gauges.d)
    return put(out, b"}")


cdef char* put_fpm(char* out, const int64_t* words) noexcept nogil:
    cdef int i
    cdef double value
    out = put(out, b',"fpm":{')
    for i in range(NUM_FPM):
        memcpy(&value, &words[i], sizeof(double))
        if _fpm_is_count[i]:
            out = put_int(out, _fpm_keys[i], <int64_t>value)
        else:
            out = put_double(out, _fpm_keys[i], value)
    return put(out, b"}")


cdef const char* host_text(int64_t step) noexcept nogil:
    """What a step of a host tier is called; NULL for one this encoder does not know."""
    return HOST_TEXTS[step] if 0 <= step < NUM_HOST_STEPS else NULL


cdef char* put_host(char* out, Event* event) noexcept nogil:
    """A step of a host tier: its copy, its blocks, and until when."""
    if event.b >= 0:
        out = put_int(out, b',"copy":', event.b)
    if event.a == HOST_FENCE:
        return put_double(out, b',"until_ms":', event.x)
    out = put_int(out, b',"blocks":', event.c)
    return put_double(out, b',"end_ms":', event.x) if event.x == event.x else out


cdef char* put_reason(char* out, int64_t reason, const int64_t* figures) noexcept nogil:
    """The reason of an end with its two figures; NULL for a reason this encoder does not know."""
    cdef const char* first = b',"needed_blocks":'
    cdef const char* second = b',"pool_blocks":'
    if reason == REASON_OUTPUT_LENGTH:
        return put(out, b',"reason":"output_length"')
    if reason == REASON_MODEL_LEN:
        return put(out, b',"reason":"model_len"')
    if reason == REASON_POOL_LEN:
        return put(out, b',"reason":"pool_len"')
    if reason == REASON_CLIENT:
        return put(out, b',"reason":"client"')
    if reason == REASON_PROMPT_OVER_MODEL_LEN:
        out = put(out, b',"reason":"prompt_over_model_len"')
        first = b',"needed_tokens":'
        second = b',"max_model_len":'
    elif reason == REASON_PROMPT_OVER_POOL:
        out = put(out, b',"reason":"prompt_over_pool"')
    elif reason == REASON_GROWTH_OVER_POOL:
        out = put(out, b',"reason":"growth_over_pool"')
    elif reason == REASON_BURST_OVER_POOL:
        out = put(out, b',"reason":"burst_over_pool"')
    elif reason == REASON_PROMPT_OVER_BUDGET:
        out = put(out, b',"reason":"prompt_over_budget"')
        first = b',"needed_tokens":'
        second = b',"max_num_batched_tokens":'
    else:
        return NULL
    if figures is NULL:
        return out
    out = put_int(out, first, figures[0])
    return put_int(out, second, figures[1])


def _fill_fpm_keys():
    """Point at the keys of a forward-pass record; the tuple above keeps them alive."""
    cdef int i
    assert len(_FPM_KEYS) == NUM_FPM
    for i in range(NUM_FPM):
        _fpm_keys[i] = <const char*>(<bytes>_FPM_KEYS[i])
        _fpm_is_count[i] = _FPM_FIELDS[i].startswith(("num_", "sum_"))


_fill_fpm_keys()
