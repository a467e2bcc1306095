"""Steady decode by calendar against the same scheduler going request by request: every record is the same.

`calendar=False` touches each request in each pass, as the specification tells it; the calendar touches only those
about which something changes. Records of single tokens or blocks (`want`) switch the calendar off by themselves.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mocker_replay._core.fleet import Fleet
from mocker_replay._core.policies_built_in import (
    EarliestDeadlineFirst,
    LongestPrefixMatch,
    Priority,
    ShortestJobFirst,
)
from mocker_replay._core.python_policy import PythonPolicy
from mocker_replay._core.timing import TimingModel
from mocker_replay.events import CommandResult, EventKind
from tests.property.workloads import WANT_FPM, WANT_PREFILL, Timed, engines, prompts, rows, scripts
from tests.support.machines import (
    Row,
    buffer_bytes,
    cancel,
    check_ranks,
    make_fleet,
    make_machine,
    push_rows,
    read_records,
    submit,
)  # fmt: skip
from tests.support.policies import OddJobs

many = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
POLICIES = [ShortestJobFirst(), LongestPrefixMatch(3), Priority(), EarliestDeadlineFirst(20.0)]
ODD = PythonPolicy(OddJobs(), ("order_key", "choose_victim", "may_admit", "token_budget"))
wants = st.sampled_from([0, WANT_PREFILL, WANT_PREFILL | WANT_FPM])


@st.composite
def decode_engines(draw: st.DrawFn) -> dict[str, Any]:
    """Engines in which many requests decode side by side for long."""
    config = draw(engines(drafts=False, want=draw(wants)))
    if draw(st.booleans()):
        config.update(max_num_seqs=None, max_model_len=None, num_gpu_blocks=draw(st.integers(8, 60)))
    if draw(st.booleans()):
        # A small budget and no chunks would keep a prompt out for ever.
        chunked = config.get("enable_chunked_prefill", True)
        config["policy"] = draw(st.sampled_from([*POLICIES, ODD] if chunked else POLICIES))
    return config


@st.composite
def fleets(draw: st.DrawFn) -> tuple[dict[str, Any], list[Row], int]:
    config = draw(decode_engines())
    found = draw(rows(config["trace_block_size"]))
    longer = draw(st.integers(0, 30))  # decode on: several times around a calendar of one block
    return config, [row._replace(n_out=row.n_out + longer) for row in found], draw(st.integers(1, 2))


def run_fleet(config: dict[str, Any], found: list[Row], num_workers: int, *, calendar: bool) -> Fleet:
    fleet = make_fleet(num_workers=num_workers, calendar=calendar, **config)
    push_rows(fleet, found)
    fleet.set_horizon(float("inf"))
    assert fleet.advance(max_records=2**40) == "done"
    check_ranks(fleet.machines)
    return fleet


@given(fleets())
@many
def test_a_fleet_gives_the_same_records(case) -> None:
    config, found, num_workers = case
    plain = run_fleet(config, found, num_workers, calendar=False)
    swift = run_fleet(config, found, num_workers, calendar=True)
    assert buffer_bytes(swift.out) == buffer_bytes(plain.out)
    assert swift.last_event_ms == plain.last_event_ms


@st.composite
def cancelled(draw: st.DrawFn) -> tuple[dict[str, Any], list[Timed]]:
    """Long decodes, and cancellations in the middle of passes (every time is a quarter beside a pass end)."""
    config = draw(decode_engines())
    config["timing"] = TimingModel("fixed", prefill_ms=2.0, decode_ms=1.0)
    found = []
    for request in range(draw(st.integers(1, 8))):
        n_in, n_out, hash_ids = draw(prompts(config["trace_block_size"]))
        rank = draw(st.integers(0, config["dp_size"] - 1))
        at_ms = draw(st.integers(0, 12)) * 0.5
        found.append(Timed(at_ms, submit(request, request, n_in, n_out + 20, rank=rank, hash_ids=hash_ids)))
    for command_id in range(100, 100 + draw(st.integers(1, 8))):
        target = draw(st.sampled_from(found)).command
        if target.kind == "submit":
            at_ms = draw(st.integers(4, 160)) * 0.25
            discard = draw(st.booleans())
            found.append(Timed(at_ms, cancel(command_id, target.request, rank=target.rank, discard=discard)))
    return config, sorted(found, key=lambda timed: timed.at_ms)


def run_script(config: dict[str, Any], script: list[Timed], *, calendar: bool):
    machine = make_machine(calendar=calendar, **config)
    now_ms = 0.0
    for at_ms, command in script:
        machine.advance(now_ms, at_ms)  # what is due then comes first: the command may fall into a pass just started
        machine.enqueue(command)
        now_ms = machine.advance(at_ms, at_ms)
        check_ranks([machine])
    machine.advance(now_ms, float("inf"))
    check_ranks([machine])
    return machine


@given(cancelled())
@many
def test_cancellations_in_mid_pass_give_the_same_records(case) -> None:
    config, script = case
    plain, swift = (run_script(config, script, calendar=calendar) for calendar in (False, True))
    assert buffer_bytes(swift.out) == buffer_bytes(plain.out)


@given(decode_engines().flatmap(lambda c: st.tuples(st.just(c), scripts(c["trace_block_size"], c["dp_size"]))))
@many
def test_any_script_gives_the_same_records(case) -> None:
    config, script = case
    plain, swift = (run_script(config, script, calendar=calendar) for calendar in (False, True))
    assert buffer_bytes(swift.out) == buffer_bytes(plain.out)


@given(fleets(), st.integers(0, 40))
@example(
    ({"num_gpu_blocks": 40, "timing": TimingModel("fixed", prefill_ms=1.0, decode_ms=1.0)}, [Row(0.0, 4, 30, (1,))], 1),
    20,
)
@many
def test_a_run_that_is_cut_gives_the_same_records(case, half_ms: int) -> None:
    config, found, num_workers = case
    outs = []
    for calendar in (False, True):
        fleet = make_fleet(num_workers=num_workers, calendar=calendar, **config)
        push_rows(fleet, found)
        fleet.set_horizon(float("inf"))
        fleet.advance(half_ms / 2.0, 2**40)
        fleet.publish_cuts()
        outs.append(buffer_bytes(fleet.out))
    assert outs[0] == outs[1]


def test_the_calendar_is_really_used() -> None:
    """Two requests that have decoded side by side for long, both cancelled in mid-pass."""
    config = {"timing": TimingModel("fixed", prefill_ms=2.0, decode_ms=1.0)}
    outs = []
    for calendar in (False, True):
        machine = make_machine(calendar=calendar, **config)
        machine.enqueue(submit(0, 0, 8, 40))
        machine.enqueue(submit(1, 1, 5, 40))
        machine.advance(0.0, 20.25)
        assert machine.engine.schedulers[0].num_steady == (2 if calendar else 0)
        machine.enqueue(cancel(2, 0))
        machine.enqueue(cancel(3, 1))
        machine.advance(20.25, float("inf"))
        outs.append(buffer_bytes(machine.out))
    assert outs[0] == outs[1]
    records = read_records(machine.out)
    ends = [record for record in records if record.kind == EventKind.TERMINAL]
    # The first token came at 2, then one a pass; that of the pass 20..21 is taken back.
    assert [(end.request, end.b, end.x) for end in ends] == [(0, 19, 20.0), (1, 19, 20.0)]
    assert [r.b for r in records if r.kind == EventKind.COMMAND and r.a == 1] == [CommandResult.APPLIED] * 2
    assert [r for r in records if 4.0 <= r.t_ms < 20.0 and r.request >= 0] == [], "no record a token"
