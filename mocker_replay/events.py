"""The event vocabulary: what the records of an EventBuffer and the lines of an event log can be.

Decides: names only. The numbers are those of `_core/event_buffer.pxd`; a test holds the two equal.
Never decides what a consumer does with them. The fields of a log line are defined in docs/event-log.md.
"""

from __future__ import annotations

import enum

EVENT_SCHEMA = "mocker-replay.events/1"  # changes when a byte of a log would, see docs/event-log.md


class EventKind(enum.IntEnum):
    """Kind of a record; `_core/event_buffer.pxd` says which fields it carries."""

    ARRIVAL = 0
    COMMAND = 1
    GAUGES = 2
    PASS_START = 3
    RANK_START = 4
    ADMISSION = 5
    PREFILL = 6
    PREEMPTION = 7
    PASS_START_CLOSE = 8
    PASS_END = 9
    RANK_END = 10
    FPM = 11
    FIRST_TOKEN = 12
    SECOND_TOKEN = 13
    RESUMED = 14
    TOKENS = 15
    TERMINAL = 16
    KV_STORED = 17
    KV_REMOVED = 18
    PASS_END_CLOSE = 19
    INTERNAL_WORK = 20
    CUT = 21
    DECISION = 22
    QUIET_PASS = 23
    HANDOFF = 24
    HOST = 25
    QUIET_RUN = 26


class HostStep(enum.IntEnum):
    """A step of a host tier."""

    STORE_PREPARED = 0
    STORE_SUBMITTED = 1
    STORE_COMPLETED = 2
    LOAD_SCHEDULED = 3
    LOAD_COMPLETED = 4
    LOAD_CANCELLED = 5
    EVICTED = 6
    FENCE = 7
    LOAD_RETURNED = 8


class Decision(enum.IntEnum):
    """What a policy decided otherwise than first come, first served; the text in a log is the name in small letters."""

    ORDER = 0
    VICTIM = 1
    VETO = 2
    BUDGET = 3
    PLACEMENT = 4


class CommandKind(enum.IntEnum):
    """What a command asks of an engine."""

    SUBMIT = 0
    CANCEL = 1
    SUBMIT_PREFILL = 2
    RELEASE_SOURCE = 3
    CANCEL_SOURCE = 4
    RESERVE_DESTINATION = 5
    ACTIVATE_DESTINATION = 6
    CANCEL_DESTINATION = 7


class CommandResult(enum.IntEnum):
    """What the engine answered."""

    SUBMITTED = 0
    APPLIED = 1
    NOOP = 2
    REFUSED = 3
    ACCEPTED = 4


class CommandFlag(enum.IntFlag):
    """Circumstances of a command."""

    IN_PASS = 1
    SUPPRESSED = 2


class HandoffStage(enum.IntEnum):
    """A fact of a handoff; the text in a log is the name in small letters."""

    SOURCE_HELD = 0
    DESTINATION_ACCEPTED = 1
    DESTINATION_RESERVED = 2
    TRANSFER_STARTED = 3
    TRANSFER_ENDED = 4
    DESTINATION_ACTIVATED = 5
    SOURCE_RELEASED = 6
    SOURCE_CANCELLED = 7
    DESTINATION_CANCELLED = 8


class TerminalStatus(enum.IntEnum):
    """How a request ended."""

    COMPLETED = 0
    REJECTED = 1
    CANCELLED = 2
    FAILED = 3


class TerminalReason(enum.IntEnum):
    """Why it ended so; the text in a log is the name in small letters."""

    OUTPUT_LENGTH = 0
    MODEL_LEN = 1
    PROMPT_OVER_MODEL_LEN = 2
    PROMPT_OVER_POOL = 3
    CLIENT = 4
    GROWTH_OVER_POOL = 5
    PROMPT_OVER_BUDGET = 6
    BURST_OVER_POOL = 7
    POOL_LEN = 8


class Want(enum.IntFlag):
    """Records an engine makes only when a consumer asks for them."""

    PREFILL = 1
    FPM = 2
    TOKENS = 4
    KV = 8


class EventLevel(enum.StrEnum):
    """How much an event log holds; each level adds to the one before."""

    REQUESTS = "requests"
    PASSES = "passes"
    TOKENS = "tokens"
    KV = "kv"


class RunEnd(enum.StrEnum):
    """Why a log ends; the `end` of its footer."""

    COMPLETE = "complete"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"  # the engine could not go on


class LogEvent(enum.StrEnum):
    """The `event` of a log line."""

    HEADER = "header"
    ARRIVAL = "arrival"
    ADMISSION = "admission"
    FIRST_TOKEN = "first_token"
    PREEMPTION = "preemption"
    DECISION = "decision"
    FINISH = "finish"
    REJECTION = "rejection"
    CANCELLATION = "cancellation"
    FAILURE = "failure"
    CUT = "cut"
    HANDOFF = "handoff"
    COMMAND = "command"
    PASS_START = "pass_start"
    PASS_END = "pass_end"
    TOKENS = "tokens"
    KV_STORED = "kv_stored"
    KV_REMOVED = "kv_removed"
    STORE_PREPARED = "store_prepared"
    STORE_SUBMITTED = "store_submitted"
    STORE_COMPLETED = "store_completed"
    LOAD_SCHEDULED = "load_scheduled"
    LOAD_COMPLETED = "load_completed"
    LOAD_CANCELLED = "load_cancelled"
    LOAD_RETURNED = "load_returned"
    HOST_EVICTION = "host_eviction"
    FENCE = "fence"
    FOOTER = "footer"


TERMINAL_EVENTS: dict[TerminalStatus, LogEvent] = {
    TerminalStatus.COMPLETED: LogEvent.FINISH,
    TerminalStatus.REJECTED: LogEvent.REJECTION,
    TerminalStatus.CANCELLED: LogEvent.CANCELLATION,
    TerminalStatus.FAILED: LogEvent.FAILURE,
}

HOST_EVENTS: dict[HostStep, LogEvent] = {
    HostStep.STORE_PREPARED: LogEvent.STORE_PREPARED,
    HostStep.STORE_SUBMITTED: LogEvent.STORE_SUBMITTED,
    HostStep.STORE_COMPLETED: LogEvent.STORE_COMPLETED,
    HostStep.LOAD_SCHEDULED: LogEvent.LOAD_SCHEDULED,
    HostStep.LOAD_COMPLETED: LogEvent.LOAD_COMPLETED,
    HostStep.LOAD_CANCELLED: LogEvent.LOAD_CANCELLED,
    HostStep.LOAD_RETURNED: LogEvent.LOAD_RETURNED,
    HostStep.EVICTED: LogEvent.HOST_EVICTION,
    HostStep.FENCE: LogEvent.FENCE,
}

# The lowest level that holds an event; header and footer are in every log.
EVENT_LEVELS: dict[LogEvent, EventLevel] = {
    LogEvent.COMMAND: EventLevel.PASSES,
    LogEvent.PASS_START: EventLevel.PASSES,
    LogEvent.PASS_END: EventLevel.PASSES,
    LogEvent.TOKENS: EventLevel.TOKENS,
    LogEvent.KV_STORED: EventLevel.KV,
    LogEvent.KV_REMOVED: EventLevel.KV,
    **dict.fromkeys(HOST_EVENTS.values(), EventLevel.PASSES),
} | {
    event: EventLevel.REQUESTS
    for event in (
        LogEvent.ARRIVAL,
        LogEvent.ADMISSION,
        LogEvent.FIRST_TOKEN,
        LogEvent.PREEMPTION,
        LogEvent.DECISION,
        LogEvent.FINISH,
        LogEvent.REJECTION,
        LogEvent.CANCELLATION,
        LogEvent.FAILURE,
        LogEvent.CUT,
        LogEvent.HANDOFF,
    )
}
