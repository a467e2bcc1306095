"""The form of event lines: keys, order, types, level.

Decides whether a line can be looked at by the other rules. Never decides what its figures mean.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from mocker_replay.events import EVENT_LEVELS, CommandKind, CommandResult, HandoffStage, LogEvent
from mocker_replay.log.audit.findings import Findings
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.rules import LEVEL_ORDER
from mocker_replay.log.audit.shapes import (
    Check,
    Field,
    is_around,
    is_budget,
    is_choice,
    is_count,
    is_flag,
    is_fpm,
    is_gauges,
    is_hash_or_null,
    is_hashes,
    is_integer,
    is_named_counts,
    is_names,
    is_reason,
    is_text,
    is_time,
    is_time_or_null,
    list_of,
    object_fault,
    one_of,
)
from mocker_replay.log.wall import read_wall

Event = dict[str, Any]

_COMMON: Final = (Field("seq", is_count), Field("t_ms", is_time), Field("event", is_text))
_WHO: Final = (Field("request", is_text), Field("worker", is_count), Field("rank", is_count))
_PLACE: Final = (Field("worker", is_count), Field("rank", is_count))
_SO_FAR: Final = (Field("output_tokens", is_count), Field("last_token_ms", is_time_or_null))
_FIGURES: Final = tuple(
    Field(key, is_count, is_required=False)
    for key in ("needed_blocks", "pool_blocks", "needed_tokens", "max_model_len", "max_num_batched_tokens")
)
_END: Final = (*_WHO, *_SO_FAR, Field("reason", is_text), *_FIGURES)

_BLOCKS: Final = (Field("copy", is_count), Field("blocks", is_count))
_COPY: Final = (*_WHO, *_BLOCKS, Field("end_ms", is_time, is_required=False))

# The keys of each event behind the common ones, where these are the same in every log.
_FIELDS: Final[dict[str, tuple[Field, ...]]] = {
    LogEvent.ARRIVAL: (
        *_WHO,
        Field("input_tokens", is_count),
        Field("output_tokens", is_count),
        Field("session", is_count, is_required=False),
        Field("turn", is_count, is_required=False),
        Field("play", is_count, is_required=False),
        Field("priority", is_integer, is_required=False),
        Field("deadline_ms", is_time, is_required=False),
        Field("row", is_count, is_required=False),
    ),
    LogEvent.ADMISSION: (
        *_WHO,
        Field("reused_tokens", is_count),
        Field("host_tokens", is_count, is_required=False),
        Field("readmission", is_flag),
    ),
    LogEvent.FIRST_TOKEN: _WHO,
    LogEvent.PREEMPTION: (
        *_WHO,
        Field("generated_tokens", is_count),
        Field("preemptions", is_count),
        Field("blocks_held", is_count),
        Field("before", is_around),
        Field("after", is_around),
    ),
    LogEvent.DECISION: (
        Field("kind", one_of("order", "victim", "veto", "placement")),
        *_WHO,
        Field("instead_of", is_choice, is_required=False),
        Field("reason", is_reason),
    ),
    LogEvent.HANDOFF: (
        Field("kind", one_of(*(stage.name.lower() for stage in HandoffStage))),
        *_WHO,
        Field("tokens", is_count),
        Field("end_ms", is_time, is_required=False),
    ),
    LogEvent.FINISH: _END,
    LogEvent.REJECTION: _END,
    LogEvent.CANCELLATION: _END,
    LogEvent.FAILURE: _END,
    LogEvent.CUT: (*_WHO, *_SO_FAR),
    LogEvent.COMMAND: (
        Field("kind", one_of(*(kind.name.lower() for kind in CommandKind))),
        *_WHO,
        Field("in_pass", is_flag),
        Field("result", one_of(*(result.name.lower() for result in CommandResult))),
        Field("suppressed", is_flag, is_required=False),
        Field("gauges", is_gauges, is_required=False),
    ),
    LogEvent.TOKENS: (Field("request", is_text), Field("tokens", is_count), Field("total", is_count)),
    LogEvent.KV_STORED: (
        *_WHO,
        Field("first_block", is_count),
        Field("parent_hash", is_hash_or_null),
        Field("block_hashes", is_hashes),
        Field("local_hashes", is_hashes),
    ),
    LogEvent.STORE_PREPARED: (*_WHO, *_BLOCKS),
    LogEvent.STORE_SUBMITTED: _COPY,
    LogEvent.STORE_COMPLETED: _COPY,
    LogEvent.LOAD_SCHEDULED: _COPY,
    LogEvent.LOAD_COMPLETED: _COPY,
    LogEvent.LOAD_CANCELLED: _COPY,
    LogEvent.LOAD_RETURNED: (*_WHO, Field("blocks", is_count)),
    LogEvent.HOST_EVICTION: (*_PLACE, Field("blocks", is_count)),
    LogEvent.FENCE: (*_PLACE, Field("until_ms", is_time)),
    LogEvent.KV_REMOVED: (*_PLACE, Field("block_hashes", is_hashes)),
}


def _pass_fields(setup: Setup) -> dict[str, tuple[Field, ...]]:
    """The keys of passes; some stand only where a worker has several ranks."""
    grouped = setup.dp_size > 1
    wave = (Field("wave", is_count),) if grouped else ()
    rank_end = (Field("end_ms", is_time),) if grouped else ()
    rank_start = (
        Field("rank", is_count),
        *rank_end,
        Field("scheduled_requests", is_count),
        Field("scheduled_tokens", is_count),
        Field("admitted", is_named_counts, is_required=False),
        Field("prefill", is_named_counts, is_required=False),
        Field("preempted", is_names, is_required=False),
        Field("budget", is_budget, is_required=False),
    )
    rank_stop = (Field("rank", is_count), Field("tokens", is_count), Field("fpm", is_fpm), Field("gauges", is_gauges))
    number = (Field("worker", is_count), Field("pass", is_count))
    return {
        LogEvent.PASS_START: (*number, *wave, Field("end_ms", is_time), Field("ranks", list_of(*rank_start))),
        LogEvent.PASS_END: (*number, Field("ranks", list_of(*rank_stop))),
    }


def _hold(checks: tuple[Check, ...], event: Event) -> bool:
    for check, value in zip(checks, event.values(), strict=True):  # noqa: SIM110 - half the time of all()
        if not check(value):
            return False
    return True


class Form:
    """Reads lines. A line that cannot be used is told of once, and then left out."""

    def __init__(self, setup: Setup, findings: Findings) -> None:
        self._setup = setup
        self._findings = findings
        rank = LEVEL_ORDER.index(setup.level)
        self._fields = {
            kind: (*_COMMON, *fields)
            for kind, fields in (_FIELDS | _pass_fields(setup)).items()
            if LEVEL_ORDER.index(EVENT_LEVELS[LogEvent(kind)]) <= rank
        }
        # Lines of few shapes come by the million: event -> its keys -> what their values must be.
        self._known: dict[str, dict[tuple[str, ...], tuple[Check, ...]]] = {kind: {} for kind in self._fields}

    def read(self, line: bytes) -> Event | None:
        """The event of a line (without its LF); None when nothing but its place can be made of it."""
        try:
            bare, _ = read_wall(line) if self._setup.realtime else (line, None)
            event = orjson.loads(bare)
        except ValueError as exc:
            self._findings.add("form", f"no JSON object: {exc}")
            return None
        if type(event) is not dict:
            self._findings.add("form", "no JSON object")
            return None
        kind = event.get("event")
        known = self._known.get(kind) if type(kind) is str else None
        if known is None:
            self._findings.add("form", f"no event of level {self._setup.level}: {str(kind)[:40]}")
            return None
        checks = known.get(tuple(event))
        if checks is not None and _hold(checks, event):
            return event
        fields = self._fields[event["event"]]
        fault = object_fault(event, fields)
        if fault is None:
            known[tuple(event)] = tuple(field.check for field in fields if field.key in event)
            return event
        self._findings.add("form", fault)
        return self._without_strangers(event, fields)

    def _without_strangers(self, event: Event, fields: tuple[Field, ...]) -> Event | None:
        """The event in the right order without keys that are not its own; None if that does not mend it."""
        mended = {field.key: event[field.key] for field in fields if field.key in event}
        return mended if object_fault(mended, fields) is None else None
