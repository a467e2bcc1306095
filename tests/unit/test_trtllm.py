"""The TensorRT-LLM flavour rule by rule: what is booked, what is cut, who is refused, and both ends of a handoff."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay._core.sched_trtllm import TrtllmScheduler
from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.errors import ConfigError
from mocker_replay.events import EventKind, TerminalReason
from mocker_replay.live import HandoffResult, LiveEngine, LiveError
from mocker_replay.replay import ReplayResult, replay
from tests.conftest import MakeTrace
from tests.support.handoffs import OWN, drain_and_stop, owned, start_destination, start_source
from tests.support.live import SLOW, ask, fixture_config, read_all, start
from tests.support.machines import Shell, make_machine, submit
from tests.support.virtual_loop import VirtualClock, run_virtual

FIXED = {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0}


def engine(**settings: Any) -> dict[str, Any]:
    return {"engine": {"backend": "trtllm", "block_size": 8, "num_gpu_blocks": 10, "timing_model": FIXED} | settings}


def row(input_length: int, output_length: int, first_id: int, timestamp: float = 0.0) -> dict[str, Any]:
    """A prompt of blocks of 8 tokens; those with one `first_id` share them."""
    ids = [first_id + i for i in range(-(-input_length // 8))]
    return {"timestamp": timestamp, "input_length": input_length, "output_length": output_length, "hash_ids": ids}


@pytest.fixture
def run(make_trace: MakeTrace) -> Any:
    def replayed(rows: list[dict[str, Any]], config: dict[str, Any] | None = None, **arguments: Any) -> ReplayResult:
        options = ReplayOptions(trace_block_size=8, **arguments.pop("options", {}))
        return replay(make_trace(rows), config, options, **arguments)

    return replayed


def told(result: ReplayResult, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(record.get(key) for key in keys) for record in result.records()]


# -- bookings -----------------------------------------------------------------------------------------


def test_the_default_block_size_is_that_of_the_flavour() -> None:
    assert EngineConfig.from_mapping({"engine": {"backend": "trtllm"}}).block_size == 32


def test_a_long_output_keeps_out_whoever_comes_behind(run: Any) -> None:
    """B has no room beside what A may generate; C would have, and stands behind B."""
    result = run([row(24, 32, 1), row(24, 8, 100), row(8, 1, 200)], engine())
    assert told(result, "first_admit_ms") == [(0.0,), (41.0,), (41.0,)]
    assert [record["preemption_count"] for record in result.records()] == [0, 0, 0]


def test_blocks_in_use_are_not_booked_twice(run: Any) -> None:
    """B shares four blocks that A holds; without them it would wait."""
    shared = run([row(32, 16, 1), row(40, 16, 1)], engine())
    alone = run([row(32, 16, 1), row(40, 16, 100)], engine())
    assert told(shared, "first_admit_ms")[1][0] < 2.0
    assert told(alone, "first_admit_ms")[1][0] == 25.0


def test_what_is_booked_is_what_running_requests_may_still_ask_for() -> None:
    shell = Shell(make_machine(flavour="trtllm", block_size=4, num_gpu_blocks=20))
    shell.put(submit(0, 0, 8, 9), submit(1, 1, 6, 3))
    (scheduler,) = shell.machine.engine.schedulers
    assert isinstance(scheduler, TrtllmScheduler)
    shell.run(0.0)
    assert scheduler.num_booked == 3 + 1  # of 5 and 3 blocks, 2 each are held
    shell.run(10.5)
    assert scheduler.num_booked == 2 + 1
    scheduler.check()
    shell.run(60.0)
    assert scheduler.num_booked == 0
    scheduler.check()


# -- ends ---------------------------------------------------------------------------------------------


def reasons(log: Path) -> list[str]:
    return [event["reason"] for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "finish"]


@pytest.mark.parametrize(
    ("rows", "settings", "tokens", "reason"),
    [
        ([row(72, 8, 1)], {}, 8, "output_length"),
        ([row(72, 40, 1)], {}, 8, "pool_len"),
        ([row(79, 5, 1)], {}, 1, "pool_len"),
        ([row(72, 40, 1)], {"max_model_len": 76}, 4, "model_len"),
        ([row(72, 40, 1)], {"max_model_len": 80}, 8, "model_len"),
        ([row(72, 40, 1)], {"max_model_len": 81}, 8, "pool_len"),
        ([row(80, 0, 1)], {}, 0, "output_length"),
        ([row(72, 40, 1)], {"aic_nextn": 2, "aic_nextn_accept_rates": "1,1"}, 8, "pool_len"),
    ],
)
def test_an_output_ends_where_the_first_limit_is(
    rows: list[dict[str, Any]], settings: dict[str, Any], tokens: int, reason: str, run: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    result = run(rows, engine(**settings), events=log)
    assert told(result, "terminal_status", "output_length") == [("completed", tokens)]
    assert reasons(log) == [reason]


def test_a_prompt_that_leaves_no_room_for_its_output_is_rejected(run: Any) -> None:
    result = run([row(80, 3, 1), row(90, 0, 100)], engine())
    keys = ("terminal_status", "failure_reason", "failure_needed_blocks", "failure_available_blocks")
    assert told(result, *keys) == [("rejected", "prompt_over_pool", 11, 10), ("rejected", "prompt_over_pool", 12, 10)]
    assert int(result.exit_code) == 4


def test_a_prompt_that_must_go_into_one_pass_and_cannot_fails_alone(run: Any) -> None:
    """The reference gives the whole run up."""
    config = engine(enable_chunked_prefill=False, max_num_batched_tokens=16)
    result = run([row(24, 2, 1), row(16, 2, 100)], config)
    keys = ("terminal_status", "failure_reason", "failure_needed_tokens", "failure_available_tokens")
    assert told(result, *keys)[0] == ("failed", "prompt_over_budget", 24, 16)
    assert told(result, "terminal_status", "first_admit_ms")[1] == ("completed", 0.0)


def test_an_end_by_the_pool_is_told_to_those_who_read() -> None:
    shell = Shell(make_machine(flavour="trtllm", block_size=4, num_gpu_blocks=3))
    shell.put(submit(0, 0, 8, 40))
    shell.run(100.0)
    (end,) = shell.events(EventKind.TERMINAL)
    assert (end.b, end.c) == (4, TerminalReason.POOL_LEN)


# -- what is refused ----------------------------------------------------------------------------------


def test_policies_are_refused_by_name(run: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for options in ({"policy": "sjf"}, {"policy": "lpm"}):
        with pytest.raises(ConfigError, match=r"engine\.backend: .*policies are not built yet for it"):
            run([row(8, 1, 1)], engine(), options=options, events=log)
    assert not log.exists()


def test_a_live_engine_refuses_them_as_well() -> None:
    async def main(clock: VirtualClock) -> None:
        with pytest.raises(LiveError, match="policies are not built yet"):
            LiveEngine.start(fixture_config(backend="trtllm"), policy="sjf")

    run_virtual(main)


@pytest.mark.parametrize("key", ["native_host_offload", "prefill_schedule_interval"])
def test_settings_of_other_flavours_are_refused(key: str, run: Any) -> None:
    value = {"native_host_offload": {"num_host_blocks": 4}, "prefill_schedule_interval": 2}[key]
    with pytest.raises(ConfigError, match=f"engine.{key}: is supported only with backend vllm"):
        run([row(8, 1, 1)], engine(**{key: value}))


# -- handoffs -----------------------------------------------------------------------------------------


def pools(prefill: dict[str, Any], decode: dict[str, Any]) -> dict[str, Any]:
    moved = {"kv_transfer_bandwidth": 1.0, "kv_transfer_bytes_per_token": 1_000_000}
    missing = {"kv_transfer_timing_mode": "destination_missing"}
    return {
        "prefill_config": engine(worker_type="prefill", **{"num_gpu_blocks": 60} | moved | missing | prefill),
        "decode_config": engine(worker_type="decode", **{"num_gpu_blocks": 60} | decode),
        "options": {"num_prefill_workers": 1, "num_decode_workers": 1},
    }


def test_a_destination_gets_its_whole_prompt_sent_whatever_is_cached(run: Any) -> None:
    """16 tokens take 16 ms, the second time too."""
    result = run([row(16, 2, 1), row(16, 2, 1, timestamp=100.0)], **pools({}, {}))
    keys = ("source_held_ms", "destination_reserved_ms", "destination_activated_ms", "decode_reused_input_tokens")
    assert told(result, *keys) == [(10.0, 10.0, 26.0, 0), (100.0, 100.0, 116.0, 0)]


def test_a_destination_waits_for_room_for_all_it_may_generate(run: Any) -> None:
    """A holds 2 blocks of 5 that are its own; B needs 3 with its output and finds one less."""
    result = run([row(16, 24, 1), row(16, 8, 100)], **pools({}, {"num_gpu_blocks": 7}))
    assert told(result, "destination_reserved_ms") == [(10.0,), (50.0,)]
    assert told(result, "last_token_ms")[0] == (50.0,)


def test_a_destination_that_could_never_have_it_is_refused(run: Any) -> None:
    result = run([row(40, 3, 1), row(40, 0, 100)], **pools({}, {"num_gpu_blocks": 5}))
    keys = ("terminal_status", "failure_reason", "failure_needed_blocks", "failure_available_blocks")
    assert told(result, *keys)[0] == ("failed", "prompt_over_pool", 6, 5)
    assert told(result, "terminal_status")[1] == ("completed",)


@pytest.mark.parametrize("backend", ["trtllm", "vllm"])
def test_commands_that_waited_for_one_pass_are_given_rank_by_rank(backend: str, run: Any) -> None:
    """A (rank 1) comes before B (rank 0), both during a pass of the decode worker.

    B is activated first, so its source is released first, and its blocks are the next to go.
    """
    first = [row(8, 6, 1), row(8, 4, 100, timestamp=10.0), row(16, 4, 200, timestamp=12.0)]
    later = [row(48, 1, 300, timestamp=250.0), row(9, 1, 100, timestamp=250.001)]
    arguments = pools({"num_gpu_blocks": 8}, {"timing_model": FIXED | {"decode_ms": 100.0}})
    for config in (arguments["prefill_config"], arguments["decode_config"]):
        config["engine"]["backend"] = backend
    arguments["decode_config"]["dp_size"] = 2
    result = run(first + later, **arguments)
    assert told(result, "source_released_ms")[1:3] == [(218.0,), (218.0,)]
    assert told(result, "reused_input_tokens")[-1] == (8,)


def test_live_engines_hand_a_request_over() -> None:
    async def main(clock: VirtualClock) -> None:
        source_engine = start_source(clock, speedup_ratio=SLOW, backend="trtllm")
        destination_engine = start_destination(clock, speedup_ratio=SLOW, backend="trtllm", num_gpu_blocks=4)
        sessions = source_engine.handoff_sessions()
        source = sessions.offer(OWN, ask(20, prompt_tokens=8))
        destination, stream = destination_engine.join_handoff(OWN, ask(20, prompt_tokens=8), sessions.connect(OWN))
        while not [entry for entry in owned(destination_engine) if entry[2] == "active"]:
            await clock.advance_ms(1)
        signals = await clock.until_done(read_all(stream))
        assert len(signals) == 8, "as many as the pool holds beside the prompt"
        assert signals[-1].reason == "pool_len"
        assert await clock.until_done(source.completed()) == HandoffResult(OWN, True, None, 8.0)
        assert (await clock.until_done(destination.completed())).succeeded
        await clock.until_done(sessions.shutdown())
        await drain_and_stop(clock, source_engine, destination_engine)

    run_virtual(main)


def test_a_live_engine_decodes_a_prompt_that_is_all_cached() -> None:
    async def main(clock: VirtualClock) -> None:
        live = start(clock, speedup_ratio=SLOW, backend="trtllm")
        first = await clock.until_done(read_all(await live.submit(ask(2, prompt_tokens=8))))
        second = await clock.until_done(read_all(await live.submit(ask(2, prompt_tokens=8))))
        assert [len(first), len(second)] == [2, 2]
        await drain_and_stop(clock, live)

    run_virtual(main)
