# Sizes and status codes shared by the core.
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t

cdef enum:
    NONE = -1                       # no slot, no copy, no node
    PRIVATE = -1                    # table entry: a block without identity, owned by one request

cdef enum RequestStatus:
    STATUS_WAITING = 0              # never preempted yet
    STATUS_RUNNING = 1
    STATUS_PREEMPTED = 2
    STATUS_MATERIALISED = 3         # waits, never ran: its prompt came from another worker
    STATUS_OUTSIDE = 4              # in no queue: a held source, or a destination that is not active

cdef enum SubmitResult:
    SUBMIT_OK = 0
    SUBMIT_ACTIVE = 1               # still owned
    SUBMIT_BAD_PROMPT = 2           # a negative length, or hash ids that do not cover the prompt

cdef enum CommandStatus:
    APPLY_SUBMITTED = 0
    APPLY_APPLIED = 1
    APPLY_NOOP = 2
    APPLY_ACCEPTED = 3
    APPLY_ACTIVE = 4             # refused, this and all that follow: the request or the handoff is already owned
    APPLY_NO_RANK = 5            # no such rank
    APPLY_BAD_PROMPT = 6         # a negative length, or hash ids that do not cover the prompt
    APPLY_OVER_POOL = 7          # the prompt is larger than the pool
    APPLY_OVER_MODEL_LEN = 8     # the prompt is not shorter than max_model_len
    APPLY_NO_HANDOFFS = 9        # this flavour of scheduler hands nothing off

cdef enum ScheduleResult:
    SCHEDULED = 0
    BLOCKED = 1
    SELF_PREEMPTED = 2

cdef struct Terms:                  # what a policy may know of a request besides its lengths
    double arrival_ms               # when it reached the router
    double deadline_ms              # when its answer is wanted; INFINITY = nobody said
    int64_t priority                # lower goes first

cdef inline int64_t limit_of(object value) except -1:
    """A limit of the configuration; None is no limit."""
    return INT64_MAX if value is None else min(value, INT64_MAX)

cdef inline int64_t ceil_div(int64_t a, int64_t b) noexcept nogil:
    return (a + b - 1) // b
