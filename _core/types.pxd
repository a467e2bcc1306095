# Sizes and status codes shared by the core.
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    NONE = -1                       # no slot, no copy, no node
    PRIVATE = -1                    # table entry: a block without identity, owned by one request

cdef enum RequestStatus:
    STATUS_WAITING = 0              # never preempted yet
    STATUS_RUNNING = 1
    STATUS_PREEMPTED = 2

cdef enum SubmitResult:
    SUBMIT_OK = 0
    SUBMIT_ACTIVE = 1               # still owned
    SUBMIT_BAD_PROMPT = 2           # a negative length, or hash ids that do not cover the prompt

cdef enum ScheduleResult:
    SCHEDULED = 0
    BLOCKED = 1
    SELF_PREEMPTED = 2

cdef struct Terms:                  # what a policy may know of a request besides its lengths
    double arrival_ms               # when it reached the router
    double deadline_ms              # when its answer is wanted; INFINITY = nobody said
    int64_t priority                # lower goes first

cdef inline int64_t ceil_div(int64_t a, int64_t b) noexcept nogil:
    return (a + b - 1) // b
