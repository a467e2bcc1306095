"""What a rerun says of logs that it cannot run again, that are broken, or that ended in some other way."""

from __future__ import annotations

import gzip
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import zstandard

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.config import EngineConfig, ReplayOptions, TimingModel
from mocker_replay.errors import ConfigError, ExitCode, UsageError
from mocker_replay.events import EventKind
from mocker_replay.log.digest import EventDigest
from mocker_replay.log.field_differences import field_differences
from mocker_replay.log.reader import LogError
from mocker_replay.log.records import append_records
from mocker_replay.log.wall import StepTaken, bare_lines
from mocker_replay.replay import replay
from mocker_replay.replay.rerun import rerun
from tests.support.realtime import Action, Arrival, Cancel, RealtimeRun

CONFIG = EngineConfig(
    num_gpu_blocks=9, block_size=3, timing_model=TimingModel("fixed", 10.0, 2.5), num_gpu_blocks_is_explicit=True
)
SCRIPT: list[Action] = [Arrival(0.0, 1, 7, 5, (1, 2, 3)), Arrival(0.5, 0, 9, 4, (1, 2, 4)), Cancel(16.0, 0)]


def recorded(level: str = "passes", **arguments: Any) -> list[bytes]:
    """Lines of a log."""
    return RealtimeRun(**{"config": CONFIG, "level": level, **arguments}).play(SCRIPT).splitlines()


def run_again(tmp_path: Path, lines: list[bytes], **arguments: Any):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return rerun(path, **arguments)


def edited(line: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    value = orjson.loads(line)
    edit(value)
    return orjson.dumps(value)


def with_true_footer(lines: list[bytes]) -> list[bytes]:
    """Event lines that were changed, under a footer that counts and digests them as they are."""
    digest = EventDigest()
    digest.update(bare_lines(b"".join(line + b"\n" for line in lines[1:-1])))
    return [
        *lines[:-1],
        edited(lines[-1], lambda footer: footer.update(events=len(lines) - 2, digest=digest.hexdigest())),
    ]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_log_of_any_compression_is_run_again(tmp_path: Path, suffix: str) -> None:
    data = b"".join(line + b"\n" for line in recorded("kv"))
    compress = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    path = tmp_path / f"log{suffix}"
    path.write_bytes(compress(data))
    result = rerun(path)
    assert (result.same, result.exit_code, result.level, result.clock, result.end, result.stopped) == (
        True, ExitCode.OK, "kv", "measured", "complete", None,
    )  # fmt: skip
    assert result.num_lines == orjson.loads(data.splitlines()[-1])["events"]
    assert result.num_steps == data.count(b'[0,"')


def test_an_accelerated_log_has_no_readings(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": [1]}
    (tmp_path / "t.jsonl").write_bytes(orjson.dumps(row) + b"\n")
    replay(tmp_path / "t.jsonl", None, ReplayOptions(), events=tmp_path / "log.jsonl")
    with pytest.raises(UsageError, match=r"only a realtime run records .*--mode realtime --events") as caught:
        rerun(tmp_path / "log.jsonl")
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_truncated_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="truncated after line 9: no footer"):
        run_again(tmp_path, recorded()[:9])


def test_a_log_whose_footer_alone_is_wrong_is_refused(tmp_path: Path) -> None:
    lines = recorded()
    lines[-1] = edited(lines[-1], lambda footer: footer.update(digest="00"))
    with pytest.raises(LogError, match="digest: the footer must agree"):
        run_again(tmp_path, lines)


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda h: h["options"].pop("num_workers"), r"log.jsonl:1: options.num_workers: must be a whole .*got None"),
        (lambda h: h["options"].update(num_workers=10**9), r"options.num_workers: .* 1 to 65536 \(got 1000000000\)"),
        (lambda h: h["trace"].update(trace_block_size=0), r"trace.trace_block_size: .* \(got 0\)"),
        (lambda h: h.update(trace=[]), r"trace.rows: "),
        (lambda h: h.update(level="all"), r"level: must be one of requests, passes, tokens, kv \(got all\)"),
        (lambda h: h.update(level=[]), r"level: must be one of"),
        (lambda h: h.update(config=7), r"config: must be the engine configuration"),
        (lambda h: h["config"].update(engine=None), r"config: must be the engine configuration"),
        (lambda h: h.update(wall=1), "only a realtime run records"),
    ],
)
def test_a_header_that_lacks_something_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], rule: str
) -> None:
    lines = recorded()
    lines[0] = edited(lines[0], edit)
    with pytest.raises(UsageError, match=rule):
        run_again(tmp_path, lines)


def test_a_configuration_that_this_version_does_not_run_is_refused(tmp_path: Path) -> None:
    lines = recorded()
    lines[0] = edited(lines[0], lambda h: h["config"]["engine"].update(worker_type="prefill"))
    with pytest.raises(ConfigError, match=r"engine\.worker_type: .*not built yet"):
        run_again(tmp_path, lines)
    lines[0] = edited(lines[0], lambda h: h["config"]["engine"].update(blok_size=4))
    with pytest.raises(ConfigError, match="blok_size"):
        run_again(tmp_path, lines)
    profile = {"type": "external", "provider": "dynamo_profile", "config": {"path": "gone.npz"}}
    lines = recorded()
    lines[0] = edited(lines[0], lambda h: h["config"]["engine"].update(timing_model=profile))
    with pytest.raises(ConfigError, match=r"gone\.npz"):
        run_again(tmp_path, lines)


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda e: e["wall"].pop("hash_ids"), r"log.jsonl:2: wall.hash_ids: a rerun needs the hash ids"),
        (lambda e: e["wall"].update(hash_ids=[1, -2]), r"wall.hash_ids: "),
        (lambda e: e["wall"].update(hash_ids=[True]), r"wall.hash_ids: "),
        (lambda e: e.pop("wall"), r"wall.hash_ids: "),
        (lambda e: e.update(wall=[]), r"log.jsonl:2: wall must be a JSON object and the last key"),
        (lambda e: e.update(more=1), r"wall must be a JSON object and the last key"),
        (lambda e: e.update(worker=1), r"worker: must be a whole number from 0 to 0 \(got 1\)"),
        (lambda e: e.update(rank=None), r"rank: must be a whole number from 0 to 0 \(got None\)"),
        (lambda e: e.update(input_tokens=2.5), r"input_tokens: must be a whole number"),
        (lambda e: e.update(request="somebody"), r"row: a request with a name of its own must have its row"),
        (lambda e: e.update(request="r1000"), r"row: must be a whole number from 0 to 999 \(got 1000\)"),
        (lambda e: e.update(request=None), r"request: must be a name"),
        (lambda e: e.update(t_ms=None), r"t_ms: must be a number of ms"),
    ],
)
def test_an_arrival_that_is_none_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], rule: str
) -> None:
    lines = recorded()
    assert orjson.loads(lines[1])["event"] == "arrival"
    lines[1] = edited(lines[1], edit)
    with pytest.raises(LogError, match=rule):
        run_again(tmp_path, lines)


@pytest.mark.parametrize(
    ("steps", "rule"),
    [
        ([[0, "go"]], r"log.jsonl:3: wall.steps: a step must be a list"),
        ([[1, "go", 0.0]], r"wall.steps: the run had 1 workers, from 0 \(got \[1, 'go', 0.0\]\)"),
        ({}, r"wall.steps: must be a list"),
    ],
)
def test_steps_that_are_none_are_refused(tmp_path: Path, steps: object, rule: str) -> None:
    lines = recorded()
    lines[2] = edited(lines[2], lambda event: event["wall"].update(steps=steps))
    with pytest.raises(LogError, match=rule):
        run_again(tmp_path, lines)


@pytest.mark.parametrize(
    ("step", "rule"),
    [
        ([0, "pass_timer", 1.0], "the machine does not take the step: pass_timer in phase turn"),
        ([0, "no_such", 1.0], "the machine does not take the step: unknown stimulus 'no_such'"),
        ([0, "go", -1.0], "the machine does not take the step: clock reading must be finite and not negative"),
        ([0, "command_item", 1.0, 1, 77], "row 77 is submitted, but does not wait on the lane of worker 0"),
        ([0, "command_item", 1.0, 2**63, 1], "the machine does not take the step: "),
        ([0, "cancel_item", 1.0, 1, 77, 0], "row 77 is cancelled, but did not arrive"),
    ],
)
def test_a_step_that_the_machine_does_not_take_is_a_difference(tmp_path: Path, step: list[Any], rule: str) -> None:
    lines = recorded()
    assert orjson.loads(lines[2])["wall"]["steps"][0][1] == "go"
    lines[2] = edited(lines[2], lambda event: event["wall"]["steps"].insert(0, step))
    result = run_again(tmp_path, lines)
    found = result.difference
    assert found is not None
    assert result.exit_code == ExitCode.DIFFERS
    assert found.rule.startswith(rule)
    assert (found.seq, found.line_number, found.worker, found.pass_id, found.rerun) == (1, 3, 0, -1, None)
    assert found.logged is not None
    assert found.logged["seq"] == 1
    assert found.steps[-1].stimulus == step[1]
    assert result.damage is None, "the lines themselves are those of the footer"


def test_a_row_that_arrives_twice_is_a_difference(tmp_path: Path) -> None:
    lines = recorded()
    again = edited(lines[1], lambda event: event.update(seq=1))
    for at in range(2, len(lines) - 1):
        lines[at] = edited(lines[at], lambda event: event.update(seq=event["seq"] + 1))
    result = run_again(tmp_path, with_true_footer([*lines[:2], again, *lines[2:]]))
    assert result.difference is not None
    assert (result.difference.seq, result.difference.rule) == (1, "row 1 arrives, but did before")


def test_a_row_that_no_step_gives_to_its_machine_is_a_difference(tmp_path: Path) -> None:
    data = RealtimeRun(CONFIG).play([Arrival(0.0, 1, 7, 5, (1, 2, 3))], stop_ms=0.0).splitlines()
    bare = [line for line in data if b'"event":"cut"' not in line]
    bare = [*bare[:2], edited(bare[-1], lambda f: (f.update(end="complete", cut=0), f["wall"].pop("steps", None)))]
    result = run_again(tmp_path, with_true_footer(bare))
    assert result.difference is not None
    assert result.difference.rule == "row 1 arrived, but no step gives it to its machine"


def test_a_footer_that_counts_something_else_is_a_difference(tmp_path: Path) -> None:
    lines = recorded()
    lines[-1] = edited(lines[-1], lambda footer: footer.update(finished=7))
    found = run_again(tmp_path, lines).difference
    assert found is not None
    assert found.rule == "the footer counts something else"
    assert [(d.field, d.logged, d.rerun) for d in found.fields()] == [("finished", 7, 2)]


@pytest.mark.parametrize("wall", [7, [], "x"])
def test_a_footer_without_an_object_is_refused(tmp_path: Path, wall: object) -> None:
    lines = recorded()
    lines[-1] = edited(lines[-1], lambda footer: footer.update(wall=wall))
    with pytest.raises(LogError, match="wall: must be an object"):
        run_again(tmp_path, lines)


def test_a_cut_before_the_end_is_a_difference(tmp_path: Path) -> None:
    lines = recorded()
    cut = {"seq": 1, "t_ms": 1.0, "event": "cut", "request": "r1", "worker": 0, "rank": 0, "output_tokens": 0}
    found = run_again(tmp_path, [*lines[:2], orjson.dumps(cut), *lines[2:]]).difference
    assert found is not None
    assert (found.seq, found.logged, found.rerun) == (1, cut, None)


# -- how a run may have ended -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_runs_stopped_amid_their_first_steps_are_the_same_again(tmp_path: Path, seed: int) -> None:
    """Deferred, on the lane, applied and not yet acknowledged: all of it is cut as it was."""
    script = [Arrival(0.0, row, 5, 3, (1, row)) for row in range(3)]
    data = RealtimeRun(CONFIG, seed=seed, level="requests").play(script, stop_ms=0.0, token=seed % 2 == 1)
    result = run_again(tmp_path, data.splitlines())
    assert result.difference is None
    assert result.end == "interrupted"


class Fails:
    """A timing model that raises at its third pass with prefill."""

    def __init__(self) -> None:
        self.left = 2

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("on order")
        return 10.0

    def decode(self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int) -> float:
        return 1.0


class NeedsArguments(Fails):
    def __init__(self, left: int) -> None:
        self.left = left


def stopped_log() -> list[bytes]:
    config = EngineConfig(num_gpu_blocks=9, block_size=3, timing_model=TimingModel("callback", callable=Fails()))
    run = RealtimeRun(config, lateness_ms=(0.0,))
    for row in range(3):
        run.act(Arrival(run.now_ms, row, 5, 2, (row, row)))
        run.until(run.now_ms + 20.0)
    assert run.shells[0].steps[-1].error == "RuntimeError: on order"
    run.cut()
    run.writer.close(stopped=True, wall=run.recorder.text(60.0))
    return run.sink.getvalue().splitlines()


def test_a_run_that_stopped_stops_again(tmp_path: Path) -> None:
    lines = stopped_log()
    result = run_again(tmp_path, lines)
    assert (result.same, result.end, result.stopped) == (True, "stopped", "worker 0: RuntimeError: on order")
    lines[-1] = edited(lines[-1], lambda footer: footer.update(end="interrupted"))
    found = run_again(tmp_path, lines).difference
    assert found is not None
    assert found.rule == "the log ends as interrupted, but a machine stopped (worker 0: RuntimeError: on order)"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("no.such:Model", "No module named 'no'"),
        (f"{__name__}:Nobody", "AttributeError"),
        (f"{__name__}:NeedsArguments", "TypeError"),
        (f"{__name__}:SCRIPT", "must have the methods prefill and decode"),
        ("", "ValueError: Empty module name"),
        ("__main__:Nobody", "cannot be had here"),
    ],
)
def test_a_timing_model_that_cannot_be_had_is_named(tmp_path: Path, name: str, rule: str) -> None:
    lines = stopped_log()
    lines[0] = edited(lines[0], lambda h: h["config"]["engine"]["timing_model"].update(callable=name))
    with pytest.raises(UsageError, match=rule):
        run_again(tmp_path, lines)
    assert run_again(tmp_path, lines, timing_model=Fails()).same


def test_another_timing_model_is_a_difference(tmp_path: Path) -> None:
    class Slow(Fails):
        def decode(self, *args: int) -> float:
            return 1.5

    found = run_again(tmp_path, stopped_log(), timing_model=Slow()).difference
    assert found is not None
    assert (found.worker, found.pass_id) == (0, 1)
    assert "end_ms" in [difference.field for difference in found.fields()]


def test_a_timing_model_where_none_is_needed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the timing model of this run is fixed, which needs no object"):
        run_again(tmp_path, recorded(), timing_model=Fails())


# -- parts ----------------------------------------------------------------------------------------------


def test_memory_is_flat_in_the_length_of_a_log(tmp_path: Path) -> None:
    config = EngineConfig(
        num_gpu_blocks=300, block_size=3, num_gpu_blocks_is_explicit=True, timing_model=TimingModel("fixed", 1.0, 1.0)
    )
    keys = 2**60 + np.arange(1_500 * 200).reshape(1_500, 200)
    script = [Arrival(4.0 * row, row, 600, 2, tuple(keys[row].tolist())) for row in range(len(keys))]
    path = tmp_path / "log"
    path.write_bytes(RealtimeRun(config, level="requests", num_rows=len(keys), lateness_ms=(0.0,)).play(script))
    tracemalloc.start()
    try:
        result = rerun(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.same
    assert path.stat().st_size > 6 << 20
    assert peak_bytes < 6 << 20


def test_fields_are_compared_as_they_are_written() -> None:
    logged = {"a": 1, "b": [1, {"c": 0.0}], "d": None, "f": [1, 2], "g": "x"}
    made = {"a": 1.0, "b": [1, {"c": -0.0}], "e": None, "f": [1], "g": "x"}
    found = [tuple(difference) for difference in field_differences(logged, made)]
    assert found == [("a", 1, 1.0), ("b[1].c", 0.0, -0.0), ("e", None, None), ("f[1]", 2, None), ("d", None, None)]


def test_a_result_can_be_written_as_json(tmp_path: Path) -> None:
    lines = recorded()
    lines[2] = edited(lines[2], lambda event: event.update(t_ms=0.25))
    mapping = orjson.loads(orjson.dumps(run_again(tmp_path, lines).to_mapping()))
    assert list(mapping) == [
        "log", "same", "level", "clock", "lines", "steps", "end", "digest", "stopped", "difference", "damage",
    ]  # fmt: skip
    assert (mapping["same"], mapping["lines"], mapping["difference"]["seq"]) == (False, 1, 1)
    assert mapping["difference"]["fields"][0]["field"] == "t_ms"
    assert mapping["difference"]["steps"][0][1] == "go"
    assert "digest" in mapping["damage"]


def test_records_with_a_payload_are_not_appended_without_it() -> None:
    source, target = EventBuffer(), EventBuffer()
    source.append_record(EventKind.COMMAND, 1.5, 2, 1, 7, a=1, b=2, c=3, d=4)
    source.append_record(EventKind.TERMINAL, 1.5, 2, 1, 7, a=2, c=4, d=-1)
    append_records(target, source.records_array())
    assert target.records_array().tobytes() == source.records_array().tobytes()
    append_records(target, source.records_array(), t_ms=9.0)
    assert target.records_array()["t_ms"].tolist() == [1.5, 1.5, 9.0, 9.0]
    source.append_record(EventKind.TERMINAL, 1.5, 2, 1, 7, words=[1, 2])
    with pytest.raises(ValueError, match="a terminal record cannot be appended without its payload"):
        append_records(target, source.records_array())


def test_the_last_steps_of_the_worker_are_told(tmp_path: Path) -> None:
    lines = recorded("requests")
    lines[-2] = edited(lines[-2], lambda event: event.update(output_tokens=77))
    found = run_again(tmp_path, lines).difference
    assert found is not None
    assert [d.field for d in found.fields()] == ["output_tokens"]
    assert len(found.steps) == 8
    assert found.steps[-1] == StepTaken(0, "pass_timer", found.steps[-1].reading_ms)
    assert not math.isnan(found.steps[-1].reading_ms)
