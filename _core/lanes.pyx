"""Commands on their way to a machine: one envelope each, first in first out.

Decides nothing: which lane a command goes on, and when it is taken, is the driver's and the shell's.
"""
from libc.stdlib cimport free, malloc

from .event_buffer cimport CMD_CANCEL, NUM_COMMAND_KINDS, RES_ACCEPTED, RES_APPLIED, RES_NOOP, RES_SUBMITTED
from .types cimport APPLY_ACCEPTED, APPLY_APPLIED, APPLY_SUBMITTED

from typing import NamedTuple


# In the order of event_buffer.CommandKind.
COMMAND_KINDS = (
    "submit", "cancel", "submit_prefill", "release_source", "cancel_source", "reserve_destination",
    "activate_destination", "cancel_destination",
)


class Command(NamedTuple):
    """One envelope of a control lane. `discard` belongs to a cancel; the lengths and what stands after `discard` to what
    brings a request: a submit, a prefill, a reservation. `handoff` belongs to all but submit and cancel."""

    command_id: int          # 0 to 2**64 - 1; records hold it as a signed number of the same bits
    kind: str                # one of COMMAND_KINDS
    request: int             # trace row ordinal
    rank: int = 0
    n_in: int = 0
    n_out: int = 0
    hash_ids: tuple = ()
    discard: bool = False
    priority: int = 0        # lower goes first, where the policy asks for it
    arrival_ms: float = 0.0
    deadline_ms: float = float("inf")
    handoff: int = -1        # the caller's number of it


cdef int lane_push(Lane* lane, Envelope* envelope) except -1 nogil:
    """Append an envelope; its hash ids now belong to the lane."""
    cdef Envelope* grown
    cdef int64_t capacity, i
    if lane.items is NULL or lane.count > lane.mask:
        capacity = 16 if lane.items is NULL else (lane.mask + 1) * 2
        grown = <Envelope*>malloc(capacity * sizeof(Envelope))
        if grown is NULL:
            with gil:
                raise MemoryError(f"lane of {capacity} commands")
        for i in range(lane.count):
            grown[i] = lane.items[(lane.head + i) & lane.mask]
        free(lane.items)
        lane.items = grown
        lane.head = 0
        lane.mask = capacity - 1
    lane.items[(lane.head + lane.count) & lane.mask] = envelope[0]
    lane.count += 1
    return 0


cdef int lane_pop(Lane* lane, Envelope* envelope) noexcept nogil:
    """Oldest envelope into `envelope`; 0 when the lane is empty."""
    if lane.count == 0:
        return 0
    envelope[0] = lane.items[lane.head]
    lane.head = (lane.head + 1) & lane.mask
    lane.count -= 1
    return 1


cdef int64_t lane_count(Lane* lane, int32_t rank) noexcept nogil:
    """Envelopes for a rank."""
    cdef int64_t i
    cdef int64_t n = 0
    for i in range(lane.count):
        n += lane.items[(lane.head + i) & lane.mask].rank == rank
    return n


cdef Envelope* lane_find(Lane* lane, int64_t command_id) noexcept nogil:
    """Envelope of that id on a lane whose ids ascend; NULL when it is not there."""
    cdef int64_t low = 0
    cdef int64_t high = lane.count
    cdef int64_t middle
    cdef Envelope* envelope
    while low < high:
        middle = (low + high) // 2
        envelope = &lane.items[(lane.head + middle) & lane.mask]
        if envelope.command_id == command_id:
            return envelope
        if envelope.command_id < command_id:
            low = middle + 1
        else:
            high = middle
    return NULL


cdef void make_cancel(Envelope* envelope, int32_t rank, int32_t request) noexcept nogil:
    """A cancellation that also drops outputs of the pass in flight; its id is the caller's."""
    envelope.kind, envelope.rank, envelope.request, envelope.discard = CMD_CANCEL, rank, request, 1
    envelope.n_in = envelope.n_out = envelope.num_hash_ids = 0
    envelope.hash_ids, envelope.cancel_id = NULL, -1


cdef int push_cancel_behind(Lane* cancel_lane, Envelope* submitted) except -1 nogil:
    """Append the cancellation that waited until this submission was applied, if one did."""
    cdef Envelope envelope = submitted[0]
    if submitted.cancel_id < 0:
        return 0
    envelope.command_id, envelope.cancel_id = submitted.cancel_id, -1
    envelope.kind, envelope.discard = CMD_CANCEL, 1
    envelope.n_in = envelope.n_out = envelope.num_hash_ids = 0
    envelope.hash_ids = NULL
    return lane_push(cancel_lane, &envelope)


cdef void lane_free(Lane* lane) noexcept nogil:
    cdef Envelope envelope
    while lane_pop(lane, &envelope):
        free(envelope.hash_ids)
    free(lane.items)
    lane.items = NULL


cdef int result_of(int status) noexcept nogil:
    """CommandResult of a command that was not refused."""
    if status == APPLY_SUBMITTED:
        return RES_SUBMITTED
    if status == APPLY_ACCEPTED:
        return RES_ACCEPTED
    return RES_APPLIED if status == APPLY_APPLIED else RES_NOOP


cdef int32_t command_kind(object name) except -1:
    """Number of a kind of command."""
    cdef int32_t kind
    for kind in range(<int32_t>NUM_COMMAND_KINDS):
        if name == COMMAND_KINDS[kind]:
            return kind
    raise ValueError(f"unknown kind of command {name!r}")


cdef int pack_command(object command, Envelope* envelope) except -1:
    """Turn a Command into an envelope that owns its hash ids."""
    cdef Py_ssize_t i
    cdef int32_t kind = command_kind(command.kind)
    keys = tuple(command.hash_ids)
    envelope.hash_ids = NULL
    envelope.num_hash_ids = len(keys)
    envelope.command_id = <int64_t><uint64_t>command.command_id
    envelope.kind = kind
    envelope.handoff = command.handoff
    envelope.rank = command.rank
    envelope.request = command.request
    envelope.discard = command.discard
    envelope.cancel_id = -1
    envelope.n_in, envelope.n_out = command.n_in, command.n_out
    envelope.terms.priority = command.priority
    envelope.terms.arrival_ms, envelope.terms.deadline_ms = command.arrival_ms, command.deadline_ms
    if envelope.num_hash_ids > 0:
        envelope.hash_ids = <uint64_t*>malloc(envelope.num_hash_ids * sizeof(uint64_t))
        if envelope.hash_ids is NULL:
            raise MemoryError("hash ids")
        try:
            for i in range(envelope.num_hash_ids):
                envelope.hash_ids[i] = keys[i]
        except BaseException:
            free(envelope.hash_ids)
            envelope.hash_ids = NULL
            raise
    return 0


cdef object unpack_command(Envelope* envelope):
    """The Command of an envelope, whose hash ids are freed."""
    cdef int64_t i
    try:
        hash_ids = tuple([envelope.hash_ids[i] for i in range(envelope.num_hash_ids)])
    finally:
        free(envelope.hash_ids)
        envelope.hash_ids = NULL
    return Command(
        <uint64_t>envelope.command_id, COMMAND_KINDS[envelope.kind], envelope.request, envelope.rank, envelope.n_in,
        envelope.n_out, hash_ids, bool(envelope.discard), envelope.terms.priority, envelope.terms.arrival_ms,
        envelope.terms.deadline_ms, envelope.handoff,
    )


def check_command(command):
    """Whether a Command can be given to a machine at all; the machine may still refuse it.

    Raises:
        ValueError: an unknown kind. OverflowError, TypeError: a field that is no number of its type.
    """
    cdef Envelope envelope
    pack_command(command, &envelope)
    free(envelope.hash_ids)
