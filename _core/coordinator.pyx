"""The coordinator of one handoff: what must be asked of the prefill worker, the decode worker and the transfer, when.

Theory of operation. A handoff is told what happens: facts (the source holds the prompt, the destination has room, the
transfer is over, somebody gave up) and outcomes of the actions it asked for. After every input it looks at one table
and asks for what has become possible. Whatever goes wrong turns it to cleaning up: what may be owned at either end is
cancelled, and it completes when that is done. An input told twice changes nothing; one that contradicts what was
told before is refused, and a refused input changes nothing either.

Never decides when an action takes effect, and never waits: a transfer is an action with a delay. Source: handoff
specification, sections 3 and 4.
"""
cimport cython
from libc.math cimport NAN, isfinite
from libc.stdint cimport uint64_t

import operator
from typing import NamedTuple

ORDER_NAMES = ("source_first", "destination_first")
PHASE_NAMES = ("new", "active", "cleanup", "succeeded", "cancelled")
ACTION_NAMES = (
    "submit_prefill", "reserve_destination", "start_transfer", "activate_destination", "release_source",
    "cancel_source", "cancel_destination", "complete",
)
OUTCOME_NAMES = ("none", "submitted", "accepted", "scheduled", "applied", "noop", "failed")
CAUSE_NAMES = ("none", "action_failed", "failed", "timed_out", "cancelled")
MODE_NAMES = ("full_prompt", "destination_missing")
STATUS_TEXTS = {
    HANDOFF_FOREIGN: "a fact of another handoff",
    HANDOFF_HELD_EARLY: "the source holds a prompt whose submission is not acknowledged",
    HANDOFF_RESERVED_EARLY: "the destination is reserved before the reservation is acknowledged",
    HANDOFF_TRANSFERRED_EARLY: "the transfer completed before it was scheduled",
    HANDOFF_UNKNOWN_ACTION: "no action has this id",
    HANDOFF_INVALID_OUTCOME: "the action cannot have this outcome",
    HANDOFF_CONFLICTING_OUTCOME: "the action had another outcome before",
    HANDOFF_CLEANUP_FAILED: "a cleanup action failed: what it should free may still be owned",
    HANDOFF_BAD_TOKENS: "a number of tokens is negative",
    HANDOFF_BAD_BYTES: "kv_transfer_bytes_per_token is negative",
    HANDOFF_BAD_BANDWIDTH: "kv_transfer_bandwidth must be finite and not negative",
    HANDOFF_BAD_DELAY: "a transfer delay must be finite and not negative",
    HANDOFF_BAD_MODE: "unknown kv_transfer_timing_mode",
}


class HandoffError(Exception):
    """An input that breaks the protocol of a handoff; nothing changed."""


class Timing(NamedTuple):
    """What a source tells about the transfer of a prompt that it holds; from its own configuration."""

    mode: str                       # one of MODE_NAMES
    prompt_tokens: int              # [tokens]
    bytes_per_token: object = None  # int [bytes], None where it is not configured
    bandwidth_gbps: object = None   # float [10**9 bytes per second], None where it is not configured


class Action(NamedTuple):
    """What a coordinator asks for; its outcome is told under the id."""

    id: int                         # 0, 1, 2, ...
    kind: str                       # one of ACTION_NAMES
    delay_ms: float = 0.0           # of a transfer


cdef int raise_handoff(HandoffStatus status) except -1:
    """The one place where a status becomes an exception."""
    if status == HANDOFF_OK:
        return 0
    raise HandoffError(STATUS_TEXTS[<int>status])


# -- the transfer -------------------------------------------------------------------------------------


cdef inline bint _is_bad(double number) noexcept nogil:
    return not isfinite(number) or number < 0.0


cdef HandoffStatus _check_timing(TransferTiming* timing) noexcept nogil:
    if timing.mode != TRANSFER_FULL_PROMPT and timing.mode != TRANSFER_DESTINATION_MISSING:
        return HANDOFF_BAD_MODE
    if timing.prompt_tokens < 0:
        return HANDOFF_BAD_TOKENS
    if timing.bytes_per_token < 0:
        return HANDOFF_BAD_BYTES
    if timing.has_bandwidth and _is_bad(timing.bandwidth_gbps):
        return HANDOFF_BAD_BANDWIDTH
    return HANDOFF_OK


cdef HandoffStatus transfer_delay(TransferTiming* timing, int64_t missing_tokens, double fallback_ms, double* delay_ms) noexcept nogil:
    """How long a transfer takes [ms]; `fallback_ms` where the source models none."""
    cdef int64_t num_tokens = timing.prompt_tokens if timing.mode == TRANSFER_FULL_PROMPT else missing_tokens
    cdef HandoffStatus status = _check_timing(timing)
    cdef double delay = fallback_ms
    if status != HANDOFF_OK:
        return status
    if num_tokens < 0:
        return HANDOFF_BAD_TOKENS
    if timing.bytes_per_token > 0 and timing.has_bandwidth and timing.bandwidth_gbps > 0.0:
        # The order of these operations is part of the contract: other orders round differently.
        delay = (<double>num_tokens * <double>timing.bytes_per_token) / (timing.bandwidth_gbps * 1e9) * 1000.0
    if _is_bad(delay):
        return HANDOFF_BAD_DELAY
    delay_ms[0] = delay
    return HANDOFF_OK


# -- the machine --------------------------------------------------------------------------------------


cdef HandoffStatus handoff_init(Handoff* handoff, HandoffId id, int32_t order, double fallback_ms) noexcept nogil:
    """Prepare a handoff; `fallback_ms` is the delay of its transfer where the source models none."""
    cdef int32_t i
    if _is_bad(fallback_ms):
        return HANDOFF_BAD_DELAY
    handoff.id = id
    handoff.order = order
    handoff.phase = HANDOFF_NEW
    handoff.cause = CAUSE_NONE
    handoff.failed_action = -1
    handoff.num_actions = 0
    for i in range(<int32_t>NUM_ACTION_KINDS):
        handoff.ids[i] = handoff.kinds[i] = -1
        handoff.outcomes[i] = OUTCOME_NONE
        handoff.failures[i] = 0
    handoff.held = handoff.reserved = handoff.transferred = handoff.has_delay = False
    handoff.delay_ms = NAN
    handoff.fallback_ms = fallback_ms
    handoff.missing_tokens = 0
    return HANDOFF_OK


cdef inline bint _is_over(Handoff* handoff) noexcept nogil:
    return handoff.phase == HANDOFF_SUCCEEDED or handoff.phase == HANDOFF_CANCELLED


cdef inline bint _is_issued(Handoff* handoff, int32_t kind) noexcept nogil:
    return handoff.ids[kind] >= 0


cdef inline int32_t _outcome_of(Handoff* handoff, int32_t kind) noexcept nogil:
    return handoff.outcomes[handoff.ids[kind]] if handoff.ids[kind] >= 0 else OUTCOME_NONE


cdef inline bint _is_done(Handoff* handoff, int32_t kind) noexcept nogil:
    return _outcome_of(handoff, kind) == OUTCOME_APPLIED or _outcome_of(handoff, kind) == OUTCOME_NOOP


cdef void _issue(Handoff* handoff, HandoffStep* step, int32_t kind) noexcept nogil:
    cdef HandoffAction* action = &step.actions[step.num_actions]
    action.id = handoff.num_actions
    action.kind = kind
    action.delay_ms = handoff.delay_ms if kind == ACT_START_TRANSFER else 0.0
    step.num_actions += 1
    handoff.ids[kind] = action.id
    handoff.kinds[action.id] = kind
    handoff.num_actions += 1


cdef void _go_on(Handoff* handoff, HandoffStep* step) noexcept nogil:
    """What has become possible; the table of the specification, in its order."""
    cdef bint source_first = handoff.order == SOURCE_FIRST
    if handoff.phase == HANDOFF_CLEANUP:
        _clean(handoff, step)
    elif source_first and handoff.held and not _is_issued(handoff, ACT_RESERVE_DESTINATION):
        _issue(handoff, step, ACT_RESERVE_DESTINATION)
    elif not source_first and handoff.reserved and not _is_issued(handoff, ACT_SUBMIT_PREFILL):
        _issue(handoff, step, ACT_SUBMIT_PREFILL)
    elif handoff.held and handoff.reserved and not _is_issued(handoff, ACT_START_TRANSFER):
        _issue(handoff, step, ACT_START_TRANSFER)
    elif handoff.transferred and not _is_issued(handoff, ACT_ACTIVATE_DESTINATION):
        _issue(handoff, step, ACT_ACTIVATE_DESTINATION)
    elif _outcome_of(handoff, ACT_ACTIVATE_DESTINATION) == OUTCOME_APPLIED and not _is_issued(handoff, ACT_RELEASE_SOURCE):
        _issue(handoff, step, ACT_RELEASE_SOURCE)
    elif _is_done(handoff, ACT_RELEASE_SOURCE):
        _issue(handoff, step, ACT_COMPLETE)
        handoff.phase = HANDOFF_SUCCEEDED


cdef void _clean(Handoff* handoff, HandoffStep* step) noexcept nogil:
    """Cancel what was asked for, acknowledged or not: until it is cancelled nobody knows who owns it."""
    if _is_issued(handoff, ACT_SUBMIT_PREFILL) and not _is_issued(handoff, ACT_CANCEL_SOURCE):
        _issue(handoff, step, ACT_CANCEL_SOURCE)
    if _is_issued(handoff, ACT_RESERVE_DESTINATION) and not _is_issued(handoff, ACT_CANCEL_DESTINATION):
        _issue(handoff, step, ACT_CANCEL_DESTINATION)
    if (
        (not _is_issued(handoff, ACT_CANCEL_SOURCE) or _is_done(handoff, ACT_CANCEL_SOURCE))
        and (not _is_issued(handoff, ACT_CANCEL_DESTINATION) or _is_done(handoff, ACT_CANCEL_DESTINATION))
    ):
        _issue(handoff, step, ACT_COMPLETE)
        handoff.phase = HANDOFF_CANCELLED


cdef HandoffStatus _fact_status(Handoff* handoff, HandoffId id) noexcept nogil:
    return HANDOFF_OK if id.high == handoff.id.high and id.low == handoff.id.low else HANDOFF_FOREIGN


cdef HandoffStatus handoff_start(Handoff* handoff, HandoffStep* step) noexcept nogil:
    """Begin; only the first time."""
    step.num_actions = 0
    if handoff.phase == HANDOFF_NEW:
        handoff.phase = HANDOFF_ACTIVE
        _issue(handoff, step, ACT_SUBMIT_PREFILL if handoff.order == SOURCE_FIRST else ACT_RESERVE_DESTINATION)
    return HANDOFF_OK


cdef HandoffStatus handoff_held(Handoff* handoff, HandoffId id, TransferTiming* timing, HandoffStep* step) noexcept nogil:
    """The source holds the prompt."""
    cdef HandoffStatus status = _fact_status(handoff, id)
    cdef bint is_known = timing.mode == TRANSFER_FULL_PROMPT or handoff.reserved
    cdef double delay_ms = NAN
    step.num_actions = 0
    if _is_over(handoff):
        return HANDOFF_OK
    if status != HANDOFF_OK or handoff.held or handoff.phase == HANDOFF_CLEANUP:
        return status
    if _outcome_of(handoff, ACT_SUBMIT_PREFILL) != OUTCOME_SUBMITTED:
        return HANDOFF_HELD_EARLY
    status = _check_timing(timing)
    if status == HANDOFF_OK and is_known:
        status = transfer_delay(timing, handoff.missing_tokens, handoff.fallback_ms, &delay_ms)
    if status != HANDOFF_OK:
        return status
    handoff.held = True
    handoff.timing = timing[0]
    handoff.has_delay, handoff.delay_ms = is_known, delay_ms
    _go_on(handoff, step)
    return HANDOFF_OK


cdef HandoffStatus handoff_reserved(Handoff* handoff, HandoffId id, int64_t missing_tokens, HandoffStep* step) noexcept nogil:
    """The destination has room; `missing_tokens` of the prompt are not there yet."""
    cdef HandoffStatus status = _fact_status(handoff, id)
    cdef double delay_ms = NAN
    step.num_actions = 0
    if _is_over(handoff):
        return HANDOFF_OK
    if status != HANDOFF_OK or handoff.reserved or handoff.phase == HANDOFF_CLEANUP:
        return status
    if _outcome_of(handoff, ACT_RESERVE_DESTINATION) != OUTCOME_ACCEPTED:
        return HANDOFF_RESERVED_EARLY
    if missing_tokens < 0:
        return HANDOFF_BAD_TOKENS
    if handoff.held:
        status = transfer_delay(&handoff.timing, missing_tokens, handoff.fallback_ms, &delay_ms)
        if status != HANDOFF_OK:
            return status
        handoff.has_delay, handoff.delay_ms = True, delay_ms
    handoff.reserved = True
    handoff.missing_tokens = missing_tokens
    _go_on(handoff, step)
    return HANDOFF_OK


cdef HandoffStatus handoff_transferred(Handoff* handoff, HandoffId id, HandoffStep* step) noexcept nogil:
    """The transfer is over."""
    cdef HandoffStatus status = _fact_status(handoff, id)
    step.num_actions = 0
    if _is_over(handoff):
        return HANDOFF_OK
    if status != HANDOFF_OK or handoff.transferred or handoff.phase == HANDOFF_CLEANUP:
        return status
    if _outcome_of(handoff, ACT_START_TRANSFER) != OUTCOME_SCHEDULED:
        return HANDOFF_TRANSFERRED_EARLY
    handoff.transferred = True
    _go_on(handoff, step)
    return HANDOFF_OK


cdef HandoffStatus handoff_give_up(Handoff* handoff, HandoffId id, int32_t cause, HandoffStep* step) noexcept nogil:
    """It failed, timed out or was cancelled; the first cause is kept."""
    cdef HandoffStatus status = _fact_status(handoff, id)
    step.num_actions = 0
    if _is_over(handoff):
        return HANDOFF_OK
    if status != HANDOFF_OK or handoff.phase == HANDOFF_CLEANUP:
        return status
    handoff.phase, handoff.cause = HANDOFF_CLEANUP, cause
    _go_on(handoff, step)
    return HANDOFF_OK


cdef bint _is_possible(Handoff* handoff, int32_t kind, int32_t outcome) noexcept nogil:
    """Whether an action may end like that. One that was overtaken by the cleanup may find nothing to activate."""
    if outcome == OUTCOME_FAILED:
        return True
    if kind == ACT_SUBMIT_PREFILL:
        return outcome == OUTCOME_SUBMITTED
    if kind == ACT_RESERVE_DESTINATION:
        return outcome == OUTCOME_ACCEPTED
    if kind == ACT_START_TRANSFER:
        return outcome == OUTCOME_SCHEDULED
    if kind == ACT_ACTIVATE_DESTINATION:
        return outcome == OUTCOME_APPLIED or (outcome == OUTCOME_NOOP and handoff.phase == HANDOFF_CLEANUP)
    return outcome == OUTCOME_APPLIED or outcome == OUTCOME_NOOP


cdef HandoffStatus handoff_outcome(
    Handoff* handoff, int32_t action_id, int32_t outcome, int32_t failure, HandoffStep* step
) noexcept nogil:
    """How an action ended; `failure` is a number of the caller's for why it failed."""
    cdef int32_t kind
    step.num_actions = 0
    if _is_over(handoff):
        return HANDOFF_OK
    if action_id < 0 or action_id >= handoff.num_actions:
        return HANDOFF_UNKNOWN_ACTION
    kind = handoff.kinds[action_id]
    if handoff.outcomes[action_id] != OUTCOME_NONE:
        if handoff.outcomes[action_id] == outcome and (outcome != OUTCOME_FAILED or handoff.failures[action_id] == failure):
            return HANDOFF_OK
        return HANDOFF_CONFLICTING_OUTCOME
    if not _is_possible(handoff, kind, outcome):
        return HANDOFF_INVALID_OUTCOME
    if outcome == OUTCOME_FAILED and (kind == ACT_CANCEL_SOURCE or kind == ACT_CANCEL_DESTINATION):
        return HANDOFF_CLEANUP_FAILED
    handoff.outcomes[action_id] = outcome
    handoff.failures[action_id] = failure
    if outcome == OUTCOME_FAILED and handoff.phase == HANDOFF_ACTIVE:
        handoff.phase, handoff.cause, handoff.failed_action = HANDOFF_CLEANUP, CAUSE_ACTION_FAILED, action_id
    _go_on(handoff, step)
    return HANDOFF_OK


# -- for Python ---------------------------------------------------------------------------------------


cdef HandoffId _id_of(object handoff_id) except *:
    cdef HandoffId id
    number = handoff_id.int
    id.high, id.low = <uint64_t>(number >> 64), <uint64_t>(number & 0xFFFFFFFFFFFFFFFF)
    return id


cdef int32_t _number_of(tuple names, object name) noexcept:
    return <int32_t>names.index(name) if name in names else -1


cdef int _pack_timing(object timing, TransferTiming* packed) except -1:
    packed.mode = _number_of(MODE_NAMES, timing.mode)
    packed.prompt_tokens = operator.index(timing.prompt_tokens)
    packed.bytes_per_token = 0 if timing.bytes_per_token is None else operator.index(timing.bytes_per_token)
    packed.has_bandwidth = timing.bandwidth_gbps is not None
    packed.bandwidth_gbps = timing.bandwidth_gbps if packed.has_bandwidth else 0.0
    return 0


def transfer_delay_ms(timing, missing_tokens, double fallback_ms=0.0):
    """How long the transfer of a held prompt takes [ms].

    Args:
        timing: what the source tells. missing_tokens: what the destination lacks, in whole blocks [tokens].
        fallback_ms: the answer where the source models no transfer.

    Raises:
        HandoffError: something negative, infinite or not a number; an unknown mode.
    """
    cdef TransferTiming packed
    cdef double delay_ms = NAN
    _pack_timing(timing, &packed)
    raise_handoff(transfer_delay(&packed, missing_tokens, fallback_ms, &delay_ms))
    return delay_ms


@cython.final
cdef class Coordinator:
    """One handoff, driven from Python. Every method returns the actions that are due now, in order.

    Args:
        handoff_id: UUID of the handoff.
        order: "source_first" or "destination_first".
        fallback_ms: delay of the transfer where the source models none [ms].

    Raises:
        ValueError: no such order. HandoffError: a fallback that is no delay; and from every method, with nothing
            changed, an input that breaks the protocol.
    """

    cdef Handoff _handoff
    cdef readonly object handoff_id
    cdef readonly object cause_text      # why it cannot succeed, None while it can
    cdef list _failures                  # texts of failed outcomes; their places are the numbers

    def __cinit__(self, handoff_id, str order, *, double fallback_ms=0.0):
        if order not in ORDER_NAMES:
            raise ValueError(f"order must be one of {', '.join(ORDER_NAMES)} (got {order!r})")
        raise_handoff(handoff_init(&self._handoff, _id_of(handoff_id), ORDER_NAMES.index(order), fallback_ms))
        self.handoff_id = handoff_id
        self._failures = []

    @property
    def phase(self):
        """One of PHASE_NAMES."""
        return PHASE_NAMES[self._handoff.phase]

    @property
    def delay_ms(self):
        """Delay of the transfer [ms]; None while it is not known."""
        return self._handoff.delay_ms if self._handoff.has_delay else None

    @property
    def cause(self):
        """Why it cannot succeed, one of CAUSE_NAMES; None while it can."""
        return CAUSE_NAMES[self._handoff.cause] if self._handoff.cause != CAUSE_NONE else None

    def start(self):
        """Begin."""
        cdef HandoffStep step
        raise_handoff(handoff_start(&self._handoff, &step))
        return _actions(&step)

    def source_held(self, handoff_id, timing):
        """The source holds the prompt."""
        cdef HandoffStep step
        cdef TransferTiming packed
        _pack_timing(timing, &packed)
        raise_handoff(handoff_held(&self._handoff, _id_of(handoff_id), &packed, &step))
        return _actions(&step)

    def destination_reserved(self, handoff_id, missing_tokens):
        """The destination has room, and lacks so many tokens of the prompt."""
        cdef HandoffStep step
        raise_handoff(handoff_reserved(&self._handoff, _id_of(handoff_id), operator.index(missing_tokens), &step))
        return _actions(&step)

    def transfer_completed(self, handoff_id):
        """The transfer is over."""
        cdef HandoffStep step
        raise_handoff(handoff_transferred(&self._handoff, _id_of(handoff_id), &step))
        return _actions(&step)

    def failed(self, handoff_id, str text):
        """Somebody cannot go on."""
        return self._give_up(handoff_id, CAUSE_FAILED, text)

    def timed_out(self, handoff_id):
        """It took too long."""
        return self._give_up(handoff_id, CAUSE_TIMED_OUT, "timed out")

    def cancelled(self, handoff_id):
        """Nobody wants it any more."""
        return self._give_up(handoff_id, CAUSE_CANCELLED, "cancelled")

    def outcome(self, action_id, str outcome, str text=""):
        """How an action ended, one of OUTCOME_NAMES except the first; `text` says why it failed."""
        cdef HandoffStep step
        cdef bint was_wanted = self._handoff.cause == CAUSE_NONE
        number = operator.index(action_id)
        # An id beyond the struct's range is as unknown as any other.
        cdef int32_t action = number if 0 <= number < NUM_ACTION_KINDS else -1
        cdef int32_t failure = 0
        if outcome == "failed":
            if text not in self._failures:
                self._failures.append(text)
            failure = self._failures.index(text)
        raise_handoff(handoff_outcome(&self._handoff, action, _number_of(OUTCOME_NAMES, outcome), failure, &step))
        if was_wanted and self._handoff.cause == CAUSE_ACTION_FAILED:
            name = ACTION_NAMES[self._handoff.kinds[action]].replace("_", " ")
            self.cause_text = f"{name} failed: {text}"
        return _actions(&step)

    def _give_up(self, handoff_id, int32_t cause, str text):
        cdef HandoffStep step
        cdef bint was_wanted = self._handoff.cause == CAUSE_NONE and not _is_over(&self._handoff)
        raise_handoff(handoff_give_up(&self._handoff, _id_of(handoff_id), cause, &step))
        if was_wanted:
            self.cause_text = text
        return _actions(&step)


cdef tuple _actions(HandoffStep* step):
    cdef int32_t i
    return tuple([
        Action(step.actions[i].id, ACTION_NAMES[step.actions[i].kind], step.actions[i].delay_ms)
        for i in range(step.num_actions)
    ])
