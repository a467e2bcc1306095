"""A fleet whose machines are moved by shells outside against one that moves them itself: the same records.

The shells are the small ones of the tests; each instant is the fleet's in both. Sessions, closed loops and the
clients that leave are those of a replay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay._core.fleet import Fleet
from mocker_replay.events import EventKind
from tests.property.workloads import engines, patience_ms, prompts, times_ms
from tests.support.machines import OwnShells, Record, Row, check_ranks, make_fleet, push_rows, read_records

many = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@dataclass
class Session:
    """Rows one after the other: the first at its time, each later one `delay_ms` after the end of the one before."""

    rows: list[Row]
    delays_ms: list[float]


@dataclass
class Case:
    config: dict[str, Any]
    fleet: dict[str, Any]
    sessions: list[Session]
    closed: int | None  # sessions at a time, None = each at its time
    sample_ms: float | None
    until_ms: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    config = draw(engines())
    sessions = []
    for due_ms in draw(st.lists(times_ms, min_size=1, max_size=14)):
        turns = draw(st.sampled_from([1, 1, 1, 2, 3]))
        rows = [
            Row(due_ms, *draw(prompts(config["trace_block_size"])), len(sessions), turn, draw(patience_ms))
            for turn in range(turns)
        ]
        sessions.append(Session(rows, [draw(st.sampled_from([0.0, 0.5, 4.0])) for _ in range(turns)]))
    fleet = {"num_workers": draw(st.integers(1, 3)), "telemetry": draw(st.booleans())}
    return Case(
        config, fleet, sessions, draw(st.sampled_from([None, None, 1, 3])), draw(st.sampled_from([None, 0.0, 3.0])),
        draw(st.sampled_from([math.inf, math.inf, 11.0])),
    )  # fmt: skip


@dataclass
class Workload:
    """Hands rows over as a replay does; ordinals are dense in order of session and turn."""

    fleet: Fleet
    case: Case
    started: int = 0
    row_of: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = [0]
        for session in self.case.sessions:
            self.first.append(self.first[-1] + len(session.rows))

    def push(self, session: int, turn: int, due_ms: float) -> None:
        ordinal = self.first[session] + turn
        self.row_of[ordinal] = (session, turn)
        push_rows(self.fleet, [self.case.sessions[session].rows[turn]._replace(due_ms=due_ms)], ordinal)

    def start(self) -> None:
        if self.case.closed is not None:
            self.open_sessions(self.case.closed)
        else:
            for session, its in enumerate(self.case.sessions):
                self.push(session, 0, its.rows[0].due_ms)
        self.fleet.set_horizon(math.inf)

    def open_sessions(self, n: int) -> None:
        for session in range(self.started, min(self.started + n, len(self.case.sessions))):
            self.push(session, 0, self.fleet.now_ms)
            self.started += 1

    def ended(self) -> list[int]:
        requests = self.fleet.ended_requests()
        for request in requests:
            session, turn = self.row_of[request]
            if turn + 1 < len(self.case.sessions[session].rows):
                self.push(session, turn + 1, self.fleet.now_ms + self.case.sessions[session].delays_ms[turn])
            elif self.case.closed is not None:
                self.open_sessions(1)
        return requests


@dataclass
class Run:
    """What one fleet did."""

    records: list[Record] = field(default_factory=list)
    told: list[object] = field(default_factory=list)


def run(case: Case, *, external: bool, clear: bool = False) -> tuple[Fleet, Run]:
    fleet = make_fleet(wake_on_end=True, external=external, **case.fleet, **case.config)
    shells, workload, seen = OwnShells(fleet), Workload(fleet, case), Run()
    workload.start()
    if case.sample_ms is not None:
        fleet.set_sample(case.sample_ms)
    while (status := fleet.advance(case.until_ms)) not in ("done", "until"):
        if status == "move":
            shells.move()
        elif status == "place":
            shells.place()
        elif status == "cancel":
            shells.cancel()
        elif status == "sample":
            seen.told.append(("sample", fleet.now_ms))
            fleet.set_sample(math.inf)
        else:
            assert status == "ends"
            seen.told.append(workload.ended())
        if clear:
            seen.records += read_records(fleet.out)
            fleet.clear_events()
    if status == "until":
        cut(fleet, shells)
    seen.records += read_records(fleet.out)
    seen.told += [status, fleet.now_ms, fleet.last_event_ms, fleet.worker_seconds, fleet.num_arrived]
    check_ranks(fleet.machines)
    return fleet, seen


def cut(fleet: Fleet, shells: OwnShells) -> None:
    for worker, shell in enumerate(shells.shells):
        fleet.publish_cuts(worker)
        for command in shell.commands:
            fleet.publish_cut(command.request, worker, command.rank)


@given(cases(), st.booleans())
@many
def test_outside_moves_give_the_same_records(case: Case, clear: bool) -> None:
    _, inside = run(case, external=False)
    fleet, outside = run(case, external=True, clear=clear)
    # By their text: NaN is not equal to itself. Offsets of payloads restart where records were cleared.
    assert [repr(comparable(record, clear)) for record in outside.records] == [
        repr(comparable(record, clear)) for record in inside.records
    ]
    assert outside.told == inside.told
    ended = sum(record.kind in (EventKind.TERMINAL, EventKind.CUT) for record in inside.records)
    assert ended == fleet.num_arrived, "every request that arrived ends once"


def comparable(record: Record, clear: bool) -> Record:
    if clear and record.words and record.kind != EventKind.TERMINAL:
        return record._replace(c=0)
    return record._replace(d=0) if clear and record.words else record
