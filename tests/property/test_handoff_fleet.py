"""Fleets of prefill and decode workers, with refusals and clients that leave at any time: nothing is lost."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay._core.disaggregation import Disaggregation
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay.events import EventKind, HandoffStage
from tests.support.machines import Row, check_ranks, fixed, make_machine, push_rows, read_records

ROWS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 5.0, 10.0, 12.5, 20.0]), st.integers(1, 24), st.integers(0, 9), st.integers(0, 2),
        st.sampled_from([math.inf, math.inf, 0.0, 1.0, 10.0, 11.0, 15.0, 26.0, 40.0]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def make_pools(num_prefill, num_decode, prefill_blocks, decode_blocks, max_seqs, delay, decode_ms, **kwargs) -> Fleet:
    out = EventBuffer()
    machines = [
        make_machine(worker=worker, out=out, num_gpu_blocks=prefill_blocks, timing=fixed(10.0, 1.0), free_decode=True)
        for worker in range(num_prefill)
    ]
    machines += [
        make_machine(
            worker=num_prefill + worker, out=out, num_gpu_blocks=decode_blocks, max_num_seqs=max_seqs,
            max_model_len=24, timing=fixed(10.0, decode_ms), free_prefill=True,
        )
        for worker in range(num_decode)
    ]  # fmt: skip
    handoffs = Disaggregation(
        out, num_prefill_workers=num_prefill, num_decode_workers=num_decode, prefill_dp_size=1, decode_dp_size=1,
        block_size=4, num_blocks=decode_blocks, max_model_len=24, bytes_per_token=1_000_000, bandwidth_gbps=delay,
        **kwargs,
    )  # fmt: skip
    return Fleet(machines, out, handoffs=handoffs)


@given(
    ROWS, st.integers(1, 2), st.integers(1, 2), st.integers(6, 12), st.integers(9, 14), st.integers(1, 4),
    st.sampled_from([0.0, 1.0, 4.0]), st.sampled_from([0.0, 1.0, 5.0]),
    st.sampled_from(["full_prompt", "destination_missing"]), st.sampled_from(["source_first", "destination_first"]),
)  # fmt: skip
@settings(max_examples=60)
def test_nothing_is_lost(
    rows, num_prefill, num_decode, prefill_blocks, decode_blocks, max_seqs, bandwidth, decode_ms, mode, order
) -> None:
    fleet = make_pools(
        num_prefill, num_decode, prefill_blocks, decode_blocks, max_seqs, bandwidth, decode_ms,
        timing_mode=mode, order=order,
    )  # fmt: skip
    # Outputs that fit beside whatever else is there: requests that block each other for ever are another matter.
    push_rows(fleet, [
        Row(due_ms, n_in, min(n_out, 1), tuple(kind * 100 + i for i in range(6)), cancel_after_ms=patience)
        for due_ms, n_in, n_out, kind, patience in rows
    ])  # fmt: skip
    fleet.set_horizon(math.inf)
    until_ms, status = 0.0, ""
    while status != "done":
        status = fleet.advance(until_ms)
        check_ranks(fleet.machines)
        assert until_ms < 1e4
        until_ms += 7.0
    records = read_records(fleet.out)
    ended = [record.request for record in records if record.kind == EventKind.TERMINAL]
    assert sorted(ended) == list(range(len(rows)))
    assert fleet.handoffs is not None
    assert fleet.handoffs.num_open == 0
    for machine in fleet.machines:
        for scheduler in machine.engine.schedulers:
            assert scheduler.ownership() == []
            assert scheduler.pool.num_active() == 0
    _stages_are_in_order(records)


def _stages_are_in_order(records) -> None:
    """Whoever decodes was reserved before it was activated, and nobody was given anything twice."""
    seen: dict[int, list[HandoffStage]] = {}
    for record in records:
        if record.kind == EventKind.HANDOFF:
            seen.setdefault(record.request, []).append(HandoffStage(record.a))
    for stages in seen.values():
        assert len(set(stages)) == len(stages)
        if HandoffStage.DESTINATION_ACTIVATED in stages:
            wanted = [
                HandoffStage.DESTINATION_ACCEPTED, HandoffStage.DESTINATION_RESERVED, HandoffStage.TRANSFER_STARTED,
                HandoffStage.TRANSFER_ENDED, HandoffStage.DESTINATION_ACTIVATED,
            ]  # fmt: skip
            assert [stage for stage in stages if stage in wanted] == wanted


def test_destination_first_reserves_at_the_arrival() -> None:
    """The order of another flavour: the figures of the reference's case, whose prefill waits for the place."""
    fleet = make_pools(1, 1, 64, 6, 8, 1.0, 5.0, order="destination_first")
    push_rows(fleet, [Row(0.0, 16, 3, (1, 2, 3, 4)), Row(1.0, 16, 4, (11, 12, 13, 14))])
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    told = {
        (HandoffStage(record.a), record.request): record.t_ms
        for record in read_records(fleet.out)
        if record.kind == EventKind.HANDOFF
    }
    reserved = [told[HandoffStage.DESTINATION_RESERVED, request] for request in (0, 1)]
    held = [told[HandoffStage.SOURCE_HELD, request] for request in (0, 1)]
    activated = [told[HandoffStage.DESTINATION_ACTIVATED, request] for request in (0, 1)]
    assert (reserved, held, activated) == ([0.0, 41.0], [10.0, 51.0], [26.0, 67.0])
