# One handoff of a request from a prefill worker to a decode worker: a struct, its inputs, its actions; the transfer delay.
from libc.stdint cimport int32_t, int64_t, uint64_t


cdef enum HandoffStatus:
    HANDOFF_OK = 0
    HANDOFF_FOREIGN = -1                 # a fact of another handoff
    HANDOFF_HELD_EARLY = -2              # the submission is not acknowledged
    HANDOFF_RESERVED_EARLY = -3          # the reservation is not acknowledged
    HANDOFF_TRANSFERRED_EARLY = -4       # the transfer is not acknowledged
    HANDOFF_UNKNOWN_ACTION = -5          # no action has this id
    HANDOFF_INVALID_OUTCOME = -6         # this action cannot end like that
    HANDOFF_CONFLICTING_OUTCOME = -7     # it ended otherwise before
    HANDOFF_CLEANUP_FAILED = -8          # what must be cleaned may still be owned
    HANDOFF_BAD_TOKENS = -9              # negative
    HANDOFF_BAD_BYTES = -10              # negative
    HANDOFF_BAD_BANDWIDTH = -11          # negative, infinite or not a number
    HANDOFF_BAD_DELAY = -12              # the same of a delay
    HANDOFF_BAD_MODE = -13


cdef enum HandoffOrder:
    SOURCE_FIRST = 0                     # prefill, then a place for it
    DESTINATION_FIRST = 1                # a place, then the prefill


cdef enum HandoffPhase:
    HANDOFF_NEW = 0
    HANDOFF_ACTIVE = 1
    HANDOFF_CLEANUP = 2                  # it cannot succeed any more
    HANDOFF_SUCCEEDED = 3
    HANDOFF_CANCELLED = 4


cdef enum HandoffActionKind:
    ACT_SUBMIT_PREFILL = 0
    ACT_RESERVE_DESTINATION = 1
    ACT_START_TRANSFER = 2
    ACT_ACTIVATE_DESTINATION = 3
    ACT_RELEASE_SOURCE = 4
    ACT_CANCEL_SOURCE = 5
    ACT_CANCEL_DESTINATION = 6
    ACT_COMPLETE = 7
    NUM_ACTION_KINDS = 8                 # each is issued at most once, so ids are below it as well


cdef enum HandoffOutcome:
    OUTCOME_NONE = 0                     # not told yet
    OUTCOME_SUBMITTED = 1
    OUTCOME_ACCEPTED = 2
    OUTCOME_SCHEDULED = 3
    OUTCOME_APPLIED = 4
    OUTCOME_NOOP = 5
    OUTCOME_FAILED = 6


cdef enum HandoffCause:                  # why it is being cleaned up
    CAUSE_NONE = 0
    CAUSE_ACTION_FAILED = 1
    CAUSE_FAILED = 2                     # the last three are facts, and their names as inputs
    CAUSE_TIMED_OUT = 3
    CAUSE_CANCELLED = 4


cdef enum TransferMode:
    TRANSFER_FULL_PROMPT = 0             # the prompt's tokens, not rounded
    TRANSFER_DESTINATION_MISSING = 1     # what the destination lacks, in whole blocks


cdef struct TransferTiming:              # of the source worker, captured when it holds the prompt
    int32_t mode                         # TransferMode
    bint has_bandwidth
    int64_t prompt_tokens                # [tokens]
    int64_t bytes_per_token              # [bytes]; 0 = not configured
    double bandwidth_gbps                # [10**9 bytes per second]; 0 = no model


cdef struct HandoffId:                   # a UUID; a replay counts in `low`
    uint64_t high
    uint64_t low


cdef struct HandoffAction:
    int32_t id                           # 0, 1, 2, ... in order of issue
    int32_t kind                         # HandoffActionKind
    double delay_ms                      # start transfer; 0 otherwise


cdef struct HandoffStep:                 # what one input asks for
    int32_t num_actions
    HandoffAction actions[2]


cdef struct Handoff:
    HandoffId id
    int32_t order                        # HandoffOrder
    int32_t phase                        # HandoffPhase
    int32_t cause                        # HandoffCause
    int32_t failed_action                # id of the one that failed, -1 while none did
    int32_t num_actions
    int32_t ids[8]                       # by kind: the action's id, -1 = not issued
    int32_t kinds[8]                     # by id
    int32_t outcomes[8]                  # by id: HandoffOutcome
    int32_t failures[8]                  # by id: the number that came with a failed outcome
    bint held
    bint reserved
    bint transferred
    bint has_delay
    double delay_ms                      # of the transfer, once it is known
    double fallback_ms                   # where the source has no model of transfers
    int64_t missing_tokens               # at the destination [tokens]
    TransferTiming timing


cdef HandoffStatus transfer_delay(TransferTiming* timing, int64_t missing_tokens, double fallback_ms, double* delay_ms) noexcept nogil
cdef HandoffStatus handoff_init(Handoff* handoff, HandoffId id, int32_t order, double fallback_ms) noexcept nogil
cdef HandoffStatus handoff_start(Handoff* handoff, HandoffStep* step) noexcept nogil
cdef HandoffStatus handoff_held(Handoff* handoff, HandoffId id, TransferTiming* timing, HandoffStep* step) noexcept nogil
cdef HandoffStatus handoff_reserved(Handoff* handoff, HandoffId id, int64_t missing_tokens, HandoffStep* step) noexcept nogil
cdef HandoffStatus handoff_transferred(Handoff* handoff, HandoffId id, HandoffStep* step) noexcept nogil
cdef HandoffStatus handoff_give_up(Handoff* handoff, HandoffId id, int32_t cause, HandoffStep* step) noexcept nogil
cdef HandoffStatus handoff_outcome(Handoff* handoff, int32_t action_id, int32_t outcome, int32_t failure, HandoffStep* step) noexcept nogil
cdef int raise_handoff(HandoffStatus status) except -1
