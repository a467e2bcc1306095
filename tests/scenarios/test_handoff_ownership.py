"""Handing off at a machine, one test or more a numbered scenario of the handoff specification (section 15)."""

from __future__ import annotations

import pytest

from mocker_replay._core.lanes import Command
from mocker_replay.events import CommandResult, EventKind, HandoffStage
from tests.support.machines import Record, Shell, check_ranks, fixed, make_machine

HELD, ACCEPTED, RESERVED = (
    HandoffStage.SOURCE_HELD, HandoffStage.DESTINATION_ACCEPTED, HandoffStage.DESTINATION_RESERVED,
)  # fmt: skip
ACTIVATED, CANCELLED = HandoffStage.DESTINATION_ACTIVATED, HandoffStage.DESTINATION_CANCELLED


class Worker:
    """A machine driven command by command; time passes only when it is told to."""

    def __init__(self, **settings) -> None:
        self.shell = Shell(make_machine(timing=settings.pop("timing", fixed(10.0, 5.0)), **settings))
        self.ids = 0

    @property
    def rank(self):
        return self.shell.machine.engine.schedulers[0]

    def ask(self, kind: str, request: int, n_in: int = 0, n_out: int = 1, *, handoff: int | None = None, rank: int = 0):
        """One command at once; its result, None when it is refused."""
        keys = tuple(request * 1000 + i for i in range(-(-n_in // 4)))
        number = -1 if kind in ("submit", "cancel") else request if handoff is None else handoff
        command = Command(self.ids, kind, request, rank, n_in, n_out if n_in else 0, keys, handoff=number)
        self.ids += 1
        self.shell.put(command)
        self.shell.replies.clear()
        self.shell.run()
        check_ranks([self.shell.machine])
        ((_, ok, text),) = self.shell.replies or ((0, False, "waits"),)
        return text if ok or text == "waits" else None

    def run(self, until_ms: float) -> None:
        self.shell.run(until_ms)
        check_ranks([self.shell.machine])

    def told(self) -> list[tuple[HandoffStage, int, float]]:
        """Facts since the last call: (stage, request, time)."""
        return [(HandoffStage(r.a), r.request, r.t_ms) for r in self.shell.events(EventKind.HANDOFF)]

    def records(self, *kinds: EventKind) -> list[Record]:
        return self.shell.events(*kinds)

    def last_gauges(self) -> tuple[int, int, int]:
        """Active blocks, running, waiting."""
        gauges = [record for record in self.shell.events(EventKind.GAUGES)][-1]
        return gauges.a, gauges.c, gauges.d


def test_scenario_1_held_once_then_drained() -> None:
    worker = Worker()
    assert worker.ask("submit_prefill", 0, 16) == "submitted"
    worker.run(50.0)
    assert worker.told() == [(HELD, 0, 10.0)]
    assert not worker.rank.handoffs.line()
    assert worker.rank.handoffs.num_held == 1
    assert worker.ask("release_source", 0) == "applied"
    assert worker.rank.ownership() == []
    assert worker.rank.pool.num_active() == 0


def test_scenario_2_sources_by_state() -> None:
    worker = Worker()
    assert worker.ask("release_source", 0) == worker.ask("cancel_source", 0) == "noop"
    worker.ask("submit_prefill", 9, 16)
    worker.run(50.0)  # held
    assert worker.ask("submit_prefill", 9, 8) is None
    assert worker.ask("submit_prefill", 3, 8, handoff=9) is None
    assert worker.ask("cancel", 9) == "noop"
    assert worker.ask("cancel_source", 9) == "applied"
    assert worker.ask("cancel_source", 9) == "noop"


def test_scenario_2_a_pending_source() -> None:
    worker = Worker(num_gpu_blocks=4)
    worker.ask("submit_prefill", 0, 16)
    worker.run(20.0)  # holds the whole pool, so that the next ones wait
    for request in (1, 2, 3):
        assert worker.ask("submit_prefill", request, 16) == "submitted"
    assert worker.ask("submit_prefill", 4, 4, handoff=1) is None
    assert worker.ask("cancel_source", 1) == "applied"
    assert worker.ask("cancel", 2) == "applied"
    assert [row[:3] for row in worker.rank.ownership()] == [(0, 0, "source held"), (3, 3, "source pending")]


def test_scenario_3_the_line_survives_a_removal_from_its_middle() -> None:
    worker = Worker(num_gpu_blocks=4)
    for request in range(5):
        assert worker.ask("reserve_destination", request, 16) == "accepted"
    assert worker.rank.handoffs.line() == [1, 2, 3, 4]
    assert worker.ask("cancel_destination", 2) == "applied"
    assert worker.rank.handoffs.line() == [1, 3, 4]
    assert worker.ask("cancel_destination", 0) == "applied"
    assert worker.rank.handoffs.line() == [3, 4]


def test_scenario_4_from_reservation_to_the_end() -> None:
    worker = Worker()
    worker.ask("reserve_destination", 0, 16, 3)
    active = worker.rank.pool.num_active()
    assert active == 4
    worker.ask("activate_destination", 0)
    assert worker.rank.pool.num_active() >= active
    worker.run(100.0)
    ends = worker.records(EventKind.TERMINAL)
    assert [(end.t_ms, end.b) for end in ends] == [(15.0, 3)]
    assert worker.rank.pool.num_active() == 0
    assert worker.rank.ownership() == []


def test_scenario_5_queued_decode_counters() -> None:
    """Of a pass that another request keeps busy, so that its record can be looked at."""
    worker = Worker(num_gpu_blocks=8, max_num_seqs=1, want=2)

    def queued() -> tuple[float, float, float]:
        import struct

        worker.run(worker.shell.now_ms + 5.0)
        words = worker.records(EventKind.FPM)[-1].words
        figures = [struct.unpack("<d", struct.pack("<q", word))[0] for word in words]
        return figures[11], figures[12], figures[13]

    worker.ask("reserve_destination", 0, 4, 30)
    worker.ask("reserve_destination", 1, 4, 3)
    worker.ask("activate_destination", 0)
    assert queued() == (1.0, 4.0, 0.0)
    worker.ask("reserve_destination", 2, 24)
    worker.run(worker.shell.now_ms + 5.0)  # the pass after its acceptance counts it
    assert queued() == (2.0, 28.0, 100.0)


def test_scenario_6_footprint_in_whole_blocks() -> None:
    for n_out in (1, 500):
        worker = Worker()
        worker.ask("reserve_destination", 0, 10, n_out)
        assert [record.b for record in worker.records(EventKind.HANDOFF)] == [10, 12]


def test_scenario_7_cancelling_after_activation() -> None:
    worker = Worker()
    worker.ask("reserve_destination", 0, 16, 50)
    worker.ask("activate_destination", 0)
    worker.run(20.0)
    assert worker.ask("cancel_destination", 0) == "waits"  # a pass is in flight
    worker.run(25.0)
    assert (CANCELLED, 0, 25.0) in worker.told()
    assert worker.ask("cancel_destination", 0) == "noop"
    assert worker.rank.ownership() == []
    assert worker.rank.pool.num_active() == 0


def test_scenario_8_cancelling_the_running_one_lets_the_head_reserve() -> None:
    worker = Worker(num_gpu_blocks=6)
    worker.ask("reserve_destination", 0, 16, 50)
    worker.ask("activate_destination", 0)
    worker.ask("reserve_destination", 1, 16)
    worker.told()
    worker.ask("cancel_destination", 0)
    worker.run(worker.shell.now_ms + 5.0)
    told = worker.told()
    assert told == [(CANCELLED, 0, 5.0), (RESERVED, 1, 5.0)]


@pytest.mark.parametrize(("settings", "n_in"), [({"max_model_len": 16}, 16), ({"num_gpu_blocks": 3}, 16)])
def test_scenario_9_a_prompt_that_never_fits_is_refused(settings, n_in: int) -> None:
    worker = Worker(**settings)
    assert worker.ask("reserve_destination", 0, n_in) is None
    assert worker.told() == []
    assert worker.rank.ownership() == []


def test_scenario_19_reserve_and_cancel_in_one_pass() -> None:
    worker = Worker()
    worker.ask("submit", 7, 8, 20)
    worker.run(5.0)
    assert worker.ask("reserve_destination", 0, 16) == "accepted"
    assert worker.told() == [(ACCEPTED, 0, 0.0)]
    worker.ask("cancel_destination", 0)
    worker.run(10.0)
    assert worker.told() == [(RESERVED, 0, 10.0), (CANCELLED, 0, 10.0)]
    assert worker.rank.ownership() == []


def test_scenario_20_released_while_pending() -> None:
    worker = Worker(num_gpu_blocks=4)
    worker.ask("submit_prefill", 0, 16)
    worker.run(20.0)
    worker.ask("submit_prefill", 1, 16)
    assert worker.ask("release_source", 1) == "applied"
    worker.told()
    worker.ask("release_source", 0)
    worker.run(60.0)
    assert [stage for stage, _, _ in worker.told()] == [HandoffStage.SOURCE_RELEASED]
    assert worker.rank.pool.num_active() == 0
    assert worker.rank.ownership() == []


def test_scenario_21_cancelling_the_request_of_a_held_source() -> None:
    worker = Worker()
    worker.ask("submit_prefill", 0, 16)
    worker.run(5.0)
    assert worker.ask("cancel", 0) == "noop"  # it is computed already, in the pass in flight
    worker.run(20.0)
    assert worker.told() == [(HELD, 0, 10.0)]
    assert worker.ask("cancel", 0) == "noop"
    assert worker.rank.pool.num_active() == 4
    assert worker.ask("cancel_source", 0) == "applied"
    assert worker.rank.pool.num_active() == 0


def test_scenario_24_one_number_on_two_ranks() -> None:
    worker = Worker(dp_size=2)
    for rank in (0, 1):
        assert worker.ask("reserve_destination", rank, 8, handoff=5, rank=rank) == "accepted"
    assert [s.ownership() for s in worker.shell.machine.engine.schedulers] == [
        [(5, 0, "reserved", 2)], [(5, 1, "reserved", 2)],
    ]  # fmt: skip
    assert worker.ask("cancel_destination", 0, handoff=5, rank=0) == "applied"
    assert [len(s.ownership()) for s in worker.shell.machine.engine.schedulers] == [0, 1]


def test_scenario_25_a_slot_freed_in_mid_pass_helps_at_its_end() -> None:
    worker = Worker(max_num_seqs=1)
    worker.ask("submit", 7, 8, 20)
    worker.run(15.0)
    worker.ask("reserve_destination", 0, 8)
    worker.run(20.0)
    assert worker.told() == [(ACCEPTED, 0, 15.0)]
    worker.run(22.0)
    assert worker.ask("cancel", 7) == "applied"
    assert worker.told() == []
    worker.run(25.0)
    assert worker.told() == [(RESERVED, 0, 25.0)]


def test_scenario_26_the_second_of_two_heads() -> None:
    """Reserved at the activation of the first; where that never comes, at its cancellation."""
    for ending in ("activate_destination", "cancel_destination"):
        worker = Worker(num_gpu_blocks=6)
        worker.ask("submit", 7, 16, 3)
        worker.run(5.0)
        worker.ask("reserve_destination", 0, 12)
        worker.ask("reserve_destination", 1, 4)
        worker.run(60.0)
        assert [(stage, request) for stage, request, _ in worker.told()] == [
            (ACCEPTED, 0), (ACCEPTED, 1), (RESERVED, 0),
        ]  # fmt: skip
        worker.ask(ending, 0)
        assert (RESERVED, 1) in [(stage, request) for stage, request, _ in worker.told()]


def test_scenario_27_reserved_blocks_are_owned() -> None:
    """A prefix that was there when it was reserved stays, whatever else needs room."""
    worker = Worker(num_gpu_blocks=6)
    worker.ask("submit", 0, 16, 1)
    worker.run(30.0)
    worker.records()
    worker.shell.put(Command(900, "reserve_destination", 5, 0, 16, 2, tuple(range(4)), handoff=5))
    worker.shell.run()
    assert [record.b for record in worker.records(EventKind.HANDOFF)] == [16, 0]
    held = worker.rank.pool.num_active()
    worker.ask("submit", 8, 8, 1)
    worker.run(60.0)
    assert worker.rank.pool.num_active() == held


def test_a_reserved_destination_is_not_ready_and_not_drained() -> None:
    worker = Worker()
    worker.ask("reserve_destination", 0, 16, 2)
    assert worker.shell.machine.phase_name == "idle"
    assert worker.last_gauges() == (4, 0, 1)
    records = worker.records(EventKind.COMMAND)
    assert all(record.b == CommandResult.ACCEPTED for record in records)


def test_activating_twice_and_too_early() -> None:
    worker = Worker(num_gpu_blocks=4)
    worker.ask("reserve_destination", 0, 16)
    worker.ask("reserve_destination", 1, 16)
    assert worker.ask("activate_destination", 1) == "noop"
    assert worker.ask("activate_destination", 0) == "applied"
    assert worker.shell.machine.phase_name == "in_pass"  # computed to its end: nothing is owned any more
    assert [row[2] for row in worker.rank.ownership()] == ["pending"]
