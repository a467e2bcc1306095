"""Quiet passes against the same run with each pass in full: nothing else is different.

A fleet that is told that nobody reads passes leaves one record for a pass in which only steady decode happens. Whatever
is said about requests, and all that a collector makes of the records, must not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay._core.collector import Collector
from mocker_replay._core.fleet import Fleet
from mocker_replay._core.policies_built_in import ShortestJobFirst
from mocker_replay._core.timing import TimingModel
from mocker_replay.events import EventKind
from tests.property.workloads import WANT_FPM, engines, rows
from tests.support.machines import Record, Row, check_ranks, make_fleet, push_rows, read_records

many = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
# What a quiet pass stands for.
OF_PASSES = {
    EventKind.PASS_START, EventKind.RANK_START, EventKind.PASS_START_CLOSE, EventKind.PASS_END, EventKind.RANK_END,
    EventKind.GAUGES, EventKind.PASS_END_CLOSE, EventKind.QUIET_PASS, EventKind.QUIET_RUN,
}  # fmt: skip


@st.composite
def fleets(draw: st.DrawFn) -> tuple[dict[str, Any], list[Row]]:
    """Long decodes beside a queue that cannot move on, now and then with something that forbids quiet passes."""
    config = draw(engines(drafts=False, want=draw(st.sampled_from([0, 0, 0, 0, WANT_FPM]))))
    config["dp_size"] = draw(st.sampled_from([1, 1, 1, 1, 2]))
    config["num_workers"] = draw(st.sampled_from([1, 1, 2, 3]))
    config["num_gpu_blocks"] = draw(st.integers(4, 40))
    if draw(st.booleans()):
        config.update(max_num_seqs=draw(st.sampled_from([2, 3, None])), max_model_len=None)
    if draw(st.integers(0, 9)) == 0:
        config["policy"] = ShortestJobFirst()
    found = draw(rows(config["trace_block_size"], clients_leave=draw(st.booleans())))
    longer = draw(st.integers(0, 40))
    return config, [row._replace(n_out=row.n_out + longer) for row in found]


def run(config: dict[str, Any], found: list[Row], stops_ms: Sequence[float], max_records: int, *, quiet: bool):
    """Records of requests, all that a collector says, and where the fleet stands; stopped at each time on the way."""
    fleet = make_fleet(quiet=quiet, **config)
    push_rows(fleet, found)
    fleet.set_horizon(math.inf)
    collector = Collector(config["num_workers"], config["dp_size"])
    told: list[Any] = []
    num_quiet = 0

    def consume() -> None:
        nonlocal num_quiet
        collector.consume(fleet.out)
        for record in read_records(fleet.out):
            num_quiet += record.kind == EventKind.QUIET_PASS
            num_quiet += record.d if record.kind == EventKind.QUIET_RUN else 0
            if record.kind not in OF_PASSES:
                told.append(plainly(record))
        fleet.clear_events()

    for until_ms in [*sorted(stops_ms), math.inf]:
        while (status := fleet.advance(until_ms, max_records)) == "full":
            consume()
        consume()
        assert status in ("until", "done")
        told.append((fleet.now_ms, fleet.last_event_ms, fleet.worker_seconds) if math.isinf(until_ms) else until_ms)
        check_ranks(fleet.machines)
    return told, figures(collector), num_quiet, fleet


def plainly(record: Record) -> str:
    """All a record says, but where its payload lies; as text, since NaN is unlike itself."""
    if record.kind in (EventKind.PREEMPTION, EventKind.FPM):
        record = record._replace(c=0)
    elif record.kind == EventKind.TERMINAL and record.d >= 0:
        record = record._replace(d=0)
    return repr(record)


def figures(collector: Collector) -> dict[str, Any]:
    values, weights = collector.gaps()
    columns = {name: column.tobytes() for name, column in collector.columns().items()}
    return {**columns, "gaps": (values.tobytes(), weights.tobytes()), "totals": collector.totals(),
            "interval": repr(collector.take_interval())}  # fmt: skip


@given(fleets(), st.lists(st.integers(0, 160).map(lambda n: n / 4.0), max_size=3), st.sampled_from([7, 2**40]))
@many
def test_a_run_says_the_same_of_every_request(case, stops_ms: list[float], max_records: int) -> None:
    config, found = case
    plain = run(config, found, stops_ms, max_records, quiet=False)
    quiet = run(config, found, stops_ms, max_records, quiet=True)
    assert plain[2] == 0
    assert quiet[0] == plain[0]
    assert quiet[1] == plain[1]


@given(fleets(), st.integers(0, 160))
@many
def test_a_run_that_is_cut_leaves_the_same_requests(case, quarter_ms: int) -> None:
    config, found = case
    cuts = []
    for quiet in (False, True):
        fleet = make_fleet(quiet=quiet, **config)
        push_rows(fleet, found)
        fleet.set_horizon(math.inf)
        fleet.advance(quarter_ms / 4.0, 2**40)
        fleet.clear_events()
        fleet.publish_cuts()
        cuts.append([repr(record) for record in read_records(fleet.out)])
    assert cuts[0] == cuts[1]


def long_decode(**settings: Any) -> tuple[int, Fleet]:
    """Two requests of 40 tokens side by side, and one that waits for a seat; how many passes were quiet."""
    config = {
        "dp_size": 1,
        "num_workers": 1,
        "max_num_seqs": 2,
        "timing": TimingModel("fixed", prefill_ms=2.0, decode_ms=1.0),
    }
    found = [Row(0.0, 8, 40, (1, 2)), Row(0.0, 8, 40, (3, 4)), Row(5.25, 8, 40, (5, 6))]
    _, _, num_quiet, fleet = run(config | settings, found, [], 2**40, quiet=True)
    return num_quiet, fleet


def test_most_passes_of_a_long_decode_are_quiet() -> None:
    num_quiet, fleet = long_decode()
    assert fleet.machines[0].engine.pass_id + 1 - num_quiet < 20
    assert num_quiet > 50


def test_whatever_somebody_reads_keeps_passes_in_full() -> None:
    assert long_decode(want=WANT_FPM)[0] == 0
    assert long_decode(telemetry=True)[0] == 0
    assert long_decode(calendar=False)[0] == 0
    assert long_decode(policy=ShortestJobFirst())[0] == 0


def test_gauges_are_not_needed_for_conservation() -> None:
    """The last pass of a run ends somebody, so it is in full and the collector knows that nothing is held."""
    fleet = make_fleet(quiet=True, num_gpu_blocks=20)
    push_rows(fleet, [Row(0.0, 8, 40, (1, 2)), Row(3.0, 8, 60, (3, 4))])
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    collector = Collector(1, 1)
    collector.consume(fleet.out)
    assert np.array_equal(collector.gauges()[:, [0, 2, 3]], [[0, 0, 0]])
