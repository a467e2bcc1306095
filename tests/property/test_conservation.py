"""What must hold after every instant of any run: blocks, time, the life of each request, nothing lost at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay._core.timing import TimingModel
from mocker_replay.events import CommandFlag, CommandKind, CommandResult, EventKind, TerminalStatus
from tests.property.workloads import driven_engines, engines, rows
from tests.support.machines import (
    Record,
    Row,
    check_ranks,
    make_fleet,
    make_machine,
    push_rows,
    read_records,
)  # fmt: skip

many = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

K = EventKind


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Any], list[Row], int]:
    config = draw(engines())
    found = draw(rows(config["trace_block_size"], clients_leave=draw(st.booleans())))
    return config, found, draw(st.integers(1, 3))


class Life:
    """One request as its records tell it."""

    def __init__(self, arrival: Record) -> None:
        self.arrival_ms, self.n_out = arrival.t_ms, arrival.b
        self.submitted_ms = math.nan
        self.admissions = 0
        self.tokens = 0
        self.first_ms = self.second_ms = math.nan
        self.preemptions = 0
        self.cancels = 0
        self.ended: Record | None = None

    def take(self, record: Record) -> None:
        assert self.ended is None, "a record after the end"
        assert record.t_ms >= self.arrival_ms
        if record.kind == K.COMMAND and record.a == CommandKind.CANCEL:
            assert not math.isnan(self.submitted_ms), "a cancellation before its submission was applied"
            self.cancels += 1
            return
        if record.kind == K.COMMAND:
            assert math.isnan(self.submitted_ms)
            self.submitted_ms = record.t_ms
            return
        assert not math.isnan(self.submitted_ms), "work before the submission was applied"
        if record.kind == K.ADMISSION:
            assert record.b == self.admissions == self.preemptions, "admitted again only when preempted"
            self.admissions += 1
        elif record.kind == K.PREEMPTION:
            assert record.b == self.preemptions + 1 == self.admissions
            self.preemptions += 1
        elif record.kind == K.FIRST_TOKEN:
            assert self.admissions > 0
            assert math.isnan(self.first_ms)
            self.first_ms = record.t_ms
        elif record.kind == K.SECOND_TOKEN:
            assert math.isnan(self.second_ms)
            assert record.t_ms >= self.first_ms
            self.second_ms = record.t_ms
        elif record.kind == K.RESUMED:
            assert record.x <= record.t_ms
            assert record.x >= self.first_ms
        elif record.kind == K.TOKENS:
            assert record.b == self.tokens + record.a
            self.tokens = record.b
        elif record.kind == K.TERMINAL:
            self.end(record)

    def end(self, record: Record) -> None:
        self.ended = record
        tokens = record.b
        assert (tokens > 0) == (not math.isnan(self.first_ms)) == (not math.isnan(record.x))
        assert (tokens > 1) == (not math.isnan(self.second_ms))
        assert tokens <= self.n_out
        if self.tokens:
            assert self.tokens == tokens
        if record.a == TerminalStatus.COMPLETED:
            assert self.admissions > 0
            assert record.x == record.t_ms or tokens == 0
        elif record.a == TerminalStatus.CANCELLED:
            assert self.cancels > 0, "nobody left"
        elif record.a == TerminalStatus.REJECTED:
            assert (self.admissions, tokens) == (0, 0)


class Auditor:
    """Reads a stream piece by piece and holds it to the rules."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.lives: dict[int, Life] = {}
        self.engine_ms: dict[int, float] = {}  # worker -> time of its last record
        self.arrived_ms = -math.inf
        self.open_group: Record | None = None
        self.cuts: dict[int, Record] = {}
        self.idle_cancels = 0

    def read(self, records: Sequence[Record]) -> None:
        for record in records:
            self._groups(record)
            if record.kind == K.ARRIVAL:
                assert record.t_ms >= self.arrived_ms
                self.arrived_ms = record.t_ms
                assert record.request not in self.lives
                self.lives[record.request] = Life(record)
                continue
            if record.kind == K.GAUGES:
                assert min(record.a, record.b, record.c, record.d) >= 0
                assert record.a + record.b <= self.num_blocks
                if record.e:
                    continue  # taken for telemetry at an arrival, in mid-pass
            if record.kind == K.CUT:
                assert record.request not in self.cuts
                self.cuts[record.request] = record
                continue
            assert record.t_ms >= self.engine_ms.get(record.worker, 0.0), "time goes backwards"
            self.engine_ms[record.worker] = record.t_ms
            if self._found_nothing(record):
                self.idle_cancels += 1
            elif record.request >= 0:
                self.lives[record.request].take(record)

    def _found_nothing(self, record: Record) -> bool:
        """A cancellation of a request that ended before, or is not there yet."""
        return (
            record.kind == K.COMMAND
            and record.a == CommandKind.CANCEL
            and record.b == CommandResult.NOOP
            and not record.c & CommandFlag.SUPPRESSED
        )

    def _groups(self, record: Record) -> None:
        """A pass start or end is one contiguous piece at one time."""
        if record.kind in (K.PASS_START, K.PASS_END):
            assert self.open_group is None
            self.open_group = record
        elif self.open_group is not None:
            assert (record.worker, record.t_ms) == (self.open_group.worker, self.open_group.t_ms)
            closing = {K.PASS_START: K.PASS_START_CLOSE, K.PASS_END: K.PASS_END_CLOSE}[self.open_group.kind]
            if record.kind == closing:
                self.open_group = None

    def living(self) -> set[int]:
        return {request for request, life in self.lives.items() if life.ended is None}


def nothing_is_left(machines) -> None:
    check_ranks(machines)
    for machine in machines:
        for scheduler in machine.engine.schedulers:
            assert scheduler.pool.num_active() == 0
            assert scheduler.index.num_holds() == 0, "an identity that is neither cached nor leads to a cached one"
            assert scheduler.pool.num_free + scheduler.pool.num_cached == scheduler.pool.num_blocks


@given(runs(), st.booleans())
@many
def test_every_instant_of_a_run(case, telemetry: bool) -> None:
    config, found, num_workers = case
    fleet = make_fleet(num_workers=num_workers, telemetry=telemetry, **config)
    push_rows(fleet, found)
    fleet.set_horizon(math.inf)
    auditor, now_ms, status = Auditor(config["num_gpu_blocks"]), 0.0, "full"
    while status == "full":
        status = fleet.advance(max_records=1)  # one instant a call
        auditor.read(read_records(fleet.out))
        fleet.clear_events()
        assert fleet.now_ms >= now_ms
        now_ms = fleet.now_ms
        check_ranks(fleet.machines)
        assert auditor.open_group is None, "an instant ends between groups"
        assert fleet.num_arrived == len(auditor.lives)
    assert (status, auditor.living(), len(auditor.lives)) == ("done", set(), len(found))
    assert auditor.idle_cancels == 0, "clients leave requests that have not ended"
    for request, life in auditor.lives.items():
        assert life.cancels == (life.ended is not None and life.ended.a == TerminalStatus.CANCELLED)
        assert not life.cancels or found[request].cancel_after_ms < math.inf
    assert max(life.ended.t_ms for life in auditor.lives.values() if life.ended) <= fleet.last_event_ms
    nothing_is_left(fleet.machines)


@given(driven_engines())
@many
def test_every_command_of_a_script(case) -> None:
    config, script = case
    machine = make_machine(**config)
    cancelled = {timed.command.request for timed in script if timed.command.kind == "cancel"}
    lives, now_ms = Auditor(config["num_gpu_blocks"]), 0.0
    for request in {timed.command.request for timed in script}:
        lives.lives[request] = Life(Record(K.ARRIVAL, 0.0, 0, 0, request, 0, 1_000, -1, 0, 0, 0, math.nan, ()))
    for at_ms, command in script:
        machine.advance(now_ms, at_ms)
        machine.enqueue(command)
        now_ms = machine.advance(at_ms, at_ms)
        check_ranks([machine])
    machine.advance(now_ms, math.inf)
    lives.read(read_records(machine.out))
    for request, life in lives.lives.items():
        if life.ended is None:
            assert math.isnan(life.submitted_ms)
        else:
            assert life.ended.a != TerminalStatus.CANCELLED or request in cancelled
    nothing_is_left([machine])


@given(runs(), st.integers(0, 60))
@many
def test_a_run_that_is_cut_accounts_for_everybody(case, half_ms: int) -> None:
    config, found, num_workers = case
    fleet = make_fleet(num_workers=num_workers, **config)
    push_rows(fleet, found)
    fleet.set_horizon(math.inf)
    fleet.advance(half_ms / 2.0, 2**40)
    cut_is_honest(fleet, config, found)


class Fails:
    """A timing model of the user's that raises at its n-th question."""

    def __init__(self, num_good: int) -> None:
        self.left = num_good

    def prefill(self, *args: int) -> float:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("on order")
        return 2.5

    def decode(self, *args: int) -> float:
        return self.prefill()


@given(runs(), st.integers(0, 25))
@many
def test_a_run_that_fails_accounts_for_everybody(case, num_good: int) -> None:
    config, found, num_workers = case
    config = {**config, "timing": TimingModel("callback", callback=Fails(num_good))}
    fleet = make_fleet(num_workers=num_workers, **config)
    push_rows(fleet, found)
    fleet.set_horizon(math.inf)
    try:
        fleet.advance(max_records=2**40)
    except RuntimeError:
        assert any(machine.engine.poisoned for machine in fleet.machines)
    cut_is_honest(fleet, config, found)


def cut_is_honest(fleet, config: dict[str, Any], found: list[Row]) -> None:
    """Each request that arrived has ended or is cut once, with the tokens that were shown."""
    fleet.publish_cuts()
    records = read_records(fleet.out)
    auditor = Auditor(config["num_gpu_blocks"])
    auditor.read(records)
    assert auditor.open_group is None
    assert auditor.living() == set(auditor.cuts)
    shown: dict[int, int] = {}
    for record in records:
        if record.kind == K.TOKENS:
            shown[record.request] = record.b
    for request, cut in auditor.cuts.items():
        life = auditor.lives[request]
        assert (cut.a > 0) == (not math.isnan(life.first_ms)) == (not math.isnan(cut.x))
        assert (cut.a > 1) == (not math.isnan(life.second_ms))
        assert cut.a <= found[request].n_out
        if config["want"] & 4:
            assert cut.a == shown.get(request, 0)
        if cut.a > 0:
            assert life.first_ms <= cut.x <= cut.t_ms


def test_the_audit_can_fail() -> None:
    life = Life(Record(K.ARRIVAL, 5.0, 0, 0, 0, 8, 2, -1, 0, 0, 0, math.nan, ()))
    with pytest.raises(AssertionError, match="before the submission"):
        life.take(Record(K.ADMISSION, 6.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, math.nan, ()))
    auditor = Auditor(10)
    auditor.read([Record(K.PASS_START, 5.0, 0, -1, -1, 0, 1, 0, 0, 0, 0, 6.0, ())])
    with pytest.raises(AssertionError):
        auditor.read([Record(K.PASS_END, 5.0, 0, -1, -1, 0, 1, 0, 0, 0, 0, math.nan, ())])
