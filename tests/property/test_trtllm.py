"""The TensorRT-LLM flavour against its slow model, and its short cuts against the same scheduler without them."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mocker_replay._core.timing import TimingModel
from mocker_replay.config import ReplayOptions
from mocker_replay.replay import replay
from tests.fuzz.trtllm import make_trtllm_case
from tests.model.engine_model import run_model
from tests.parity.cases import Case
from tests.parity.runners import SLA
from tests.property.test_advance_equals_step import advanced, stepped
from tests.property.test_calendar_equals_plain import run_fleet, run_script
from tests.property.test_core_against_model import differences, with_impatience
from tests.property.test_quiet_passes import run as run_quietly
from tests.property.workloads import Timed, engines, rows, scripts
from tests.support.machines import Row, Shell, buffer_bytes, check_ranks, make_fleet, make_machine, push_rows

SEEDS = st.integers(0, 2**32 - 1)
several = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def modelled(seed: int) -> Case:
    """A case that the model knows."""
    case = make_trtllm_case(seed)
    assume(case.format in ("mooncake", "synthetic") and "prefill" not in case.config)
    return case


# -- against the model --------------------------------------------------------------------------------


@settings(max_examples=40)
@given(SEEDS)
def test_the_core_equals_the_model(seed: int) -> None:
    assert differences(modelled(seed)) == []


@settings(max_examples=40)
@given(SEEDS)
def test_the_core_equals_the_model_with_clients_that_leave(seed: int) -> None:
    case = modelled(seed)
    assume(case.format == "mooncake")
    assert differences(with_impatience(case, seed)) == []


def told_passes(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Every pass of a log: who was admitted, what was computed, which blocks are in use when it ends."""
    log = folder / "log.jsonl"
    options = ReplayOptions(**{k: v for k, v in case.args.items() if k not in (*SLA, "telemetry_sample_interval_ms")})
    replay(case.write_trace(folder), case.config_with_files(folder), options, events=log)
    passes: list[dict[str, Any]] = []
    in_flight: dict[tuple[int, int], dict[str, Any]] = {}
    for event in map(json.loads, log.read_text().splitlines()[1:-1]):
        for rank in event["ranks"] if event["event"] == "pass_start" else ():
            in_flight[event["worker"], rank["rank"]] = {
                "worker": event["worker"],
                "rank": rank["rank"],
                "start_ms": event["t_ms"],
                "admitted": [(int(name[1:]), reused) for name, reused in rank.get("admitted", [])],
                "tokens": rank["scheduled_tokens"],
            }
        for rank in event["ranks"] if event["event"] == "pass_end" else ():
            told = in_flight.pop((event["worker"], rank["rank"]), None)
            if told is not None:
                keys = ("active_blocks", "inactive_blocks", "running")
                passes.append(told | {key: rank["gauges"][key] for key in keys})
    return passes


def modelled_passes(case: Case, folder: Path) -> list[dict[str, Any]]:
    args = {k: v for k, v in case.args.items() if k not in (*SLA, "telemetry_sample_interval_ms")}
    run = run_model(case.rows, case.config_with_files(folder), **args, trace_passes=True)
    return [
        {
            **{key: told[key] for key in ("worker", "rank", "start_ms", "admitted")},
            "tokens": sum(total for *_, total in told["work"]),
            **{key: told["gauges"][key] for key in ("active_blocks", "inactive_blocks")},
            "running": told["gauges"]["running_requests"],
        }
        for told in run.passes
    ]


@settings(max_examples=40)
@given(SEEDS)
def test_every_pass_is_that_of_the_model(seed: int) -> None:
    case = modelled(seed)
    assume(case.format == "mooncake" and "max_sim_time_ms" not in case.args)

    def by_rank(passes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(passes, key=lambda told: (told["worker"], told["rank"]))

    with tempfile.TemporaryDirectory() as name:
        assert by_rank(told_passes(case, Path(name))) == by_rank(modelled_passes(case, Path(name)))


# -- short cuts ---------------------------------------------------------------------------------------


@st.composite
def trtllm_engines(draw: st.DrawFn, **options: Any) -> dict[str, Any]:
    config = draw(engines(**options))
    for key in ("interval", "preemption_mode"):
        del config[key]
    if draw(st.booleans()):
        config["num_gpu_blocks"] = draw(st.integers(8, 40))
    return config | {"flavour": "trtllm"}


@st.composite
def fleets(draw: st.DrawFn, **options: Any) -> tuple[dict[str, Any], list[Row]]:
    """Long decodes beside a queue whose head has no room."""
    config = draw(trtllm_engines(**options))
    found = draw(rows(config["trace_block_size"], clients_leave=draw(st.booleans())))
    longer = draw(st.integers(0, 40))
    return config, [row._replace(n_out=row.n_out + longer) for row in found]


@st.composite
def driven(draw: st.DrawFn) -> tuple[dict[str, Any], list[Timed]]:
    config = draw(trtllm_engines())
    return config, draw(scripts(config["trace_block_size"], config["dp_size"]))


@given(fleets(), st.integers(1, 2))
@several
def test_a_fleet_with_a_calendar_gives_the_same_records(case, num_workers: int) -> None:
    config, found = case
    plain, swift = (run_fleet(config, found, num_workers, calendar=calendar) for calendar in (False, True))
    assert buffer_bytes(swift.out) == buffer_bytes(plain.out)


@given(driven())
@several
def test_a_script_with_a_calendar_gives_the_same_records(case) -> None:
    config, script = case
    plain, swift = (run_script(config, script, calendar=calendar) for calendar in (False, True))
    assert buffer_bytes(swift.out) == buffer_bytes(plain.out)


@given(driven())
@several
def test_the_bulk_move_equals_single_steps(case) -> None:
    config, script = case
    shell, bulk = Shell(make_machine(**config)), make_machine(**config)
    stepped(shell, script)
    advanced(bulk, script)
    assert buffer_bytes(bulk.out) == buffer_bytes(shell.machine.out)
    check_ranks([bulk, shell.machine])


@given(fleets(drafts=False, want=0), st.sampled_from([7, 2**40]))
@several
def test_quiet_passes_say_the_same_of_every_request(case, max_records: int) -> None:
    config, found = case
    config = config | {"num_workers": 1}
    plain, quiet = (run_quietly(config, found, [], max_records, quiet=quiet) for quiet in (False, True))
    assert quiet[:2] == plain[:2]
    assert plain[2] == 0


def test_most_passes_of_a_long_decode_are_quiet() -> None:
    """Also while a head waits for room that nobody gives back."""
    config = {"num_workers": 1, "dp_size": 1, "timing": TimingModel("fixed", prefill_ms=2.0, decode_ms=1.0),
              "num_gpu_blocks": 32, "flavour": "trtllm"}  # fmt: skip
    found = [Row(0.0, 8, 40, (1, 2)), Row(0.0, 8, 40, (3, 4)), Row(5.25, 8, 80, (5, 6))]
    _, _, num_quiet, fleet = run_quietly(config, found, [], 2**40, quiet=True)
    assert num_quiet > 80
    assert fleet.machines[0].engine.pass_id + 1 - num_quiet < 40


@given(fleets())
@several
def test_bookings_hold_after_every_instant(case) -> None:
    config, found = case
    fleet = make_fleet(**config)
    push_rows(fleet, found)
    fleet.set_horizon(math.inf)
    for half_ms in range(160):
        if fleet.advance(half_ms / 2.0, 2**40) == "done":
            break
        check_ranks(fleet.machines)
    assert fleet.advance(math.inf, 2**40) == "done"
    check_ranks(fleet.machines)
    assert all(s.num_booked == 0 for machine in fleet.machines for s in machine.engine.schedulers)
