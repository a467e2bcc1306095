"""Realtime runs with faults from outside and inside: full disks, models that fail, signals, callers who ask too much.

Most of them run on the controllable clock, so that the fault comes in the same turn each time.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec import structs

from mocker_replay.config import EngineConfig, RealtimeOptions, ReplayOptions, TimingModel
from mocker_replay.errors import ExitCode, InvariantError, OutputError, UsageError
from mocker_replay.log.reader import EventLogReader
from mocker_replay.log.wall import bare_lines
from mocker_replay.outputs import Output
from mocker_replay.replay import replay
from mocker_replay.replay.realtime_view import RealtimeView
from mocker_replay.replay.rerun import rerun
from tests.conftest import MakeTrace, make_row
from tests.sim.test_run_faults import FailsAt, OutOfRangeAt, write_trace
from tests.support.descriptors import num_descriptors
from tests.support.realtime_replay import Pace, virtual_time

ROOT = Path(__file__).resolve().parent.parent.parent
CLI = [sys.executable, "-m", "mocker_replay"]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
REALTIME = ReplayOptions(mode="realtime")
CLOCKS = ("measured", "nominal")


def outputs_in(folder: Path) -> dict[str, Path]:
    return {"events": folder / "events.jsonl", "requests": folder / "requests.jsonl", "summary": folder / "s.json"}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def footer_of(path: Path) -> dict[str, Any]:
    with EventLogReader(path) as log:
        log.verify()
        assert log.footer is not None
        return log.footer


def balances(footer: dict[str, Any]) -> bool:
    return footer["arrived"] == sum(footer[name] for name in ("finished", "failed", "rejected", "cancelled", "cut"))


# -- engines that cannot go on ------------------------------------------------------------------------


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("model", [FailsAt, OutOfRangeAt])
@pytest.mark.parametrize("seed", range(4))
def test_a_model_that_fails_in_mid_run(seed: int, model: type[FailsAt], clock: str, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 60, seed)
    options = ReplayOptions(num_workers=1 + seed % 3)
    at = 3 + 11 * seed

    def config() -> EngineConfig:
        return EngineConfig(timing_model=TimingModel("callback", callable=model(at)), num_gpu_blocks=200)

    outputs = outputs_in(tmp_path)
    with pytest.raises(InvariantError) as accelerated:
        replay(trace, config(), options, event_level="kv", **outputs)
    expected = {name: path.read_bytes() for name, path in outputs.items()}
    pace = Pace(seed, (0.0, 0.5, 20.0), (0.0, 0.001))
    with virtual_time(pace), pytest.raises(InvariantError, match=r"the run stopped at .* ms: .*") as caught:
        replay(
            trace, config(), structs.replace(options, mode="realtime"),
            realtime=RealtimeOptions(clock=clock), event_level="kv", **outputs,
        )  # fmt: skip
    for error in (accelerated, caught):
        assert ("own fault" if model is FailsAt else "out of range") in str(error.value)
    footer = footer_of(outputs["events"])
    assert footer["end"] == "stopped"
    assert balances(footer)
    assert footer["cut"] > 0
    summary = orjson.loads(outputs["summary"].read_bytes())
    assert summary["cut"] is True
    assert summary["interrupted"] is False
    ended = footer["arrived"] - footer["cut"]
    assert len(outputs["requests"].read_bytes().splitlines()) == ended
    again = rerun(outputs["events"], timing_model=model(at))
    assert again.difference is None, again.difference
    assert again.stopped is not None
    if clock == "nominal":
        assert bare_lines(outputs["events"].read_bytes()) == expected["events"]
        assert outputs["requests"].read_bytes() == expected["requests"]
        assert str(caught.value).splitlines()[1:] == str(accelerated.value).splitlines()[1:], "who waits for what"


@pytest.mark.parametrize("clock", CLOCKS)
def test_requests_that_can_never_run_end_as_failed(clock: str, make_trace: MakeTrace, tmp_path: Path) -> None:
    # A draft of three tokens never fits into a pool of one block of two.
    rows = [make_row(0, 3, 8), make_row(1.0, 3, 1), make_row(2.0, 1, 1)]
    config = EngineConfig(num_gpu_blocks=2, block_size=2, aic_nextn=3, aic_nextn_accept_rates=(1.0, 1.0, 1.0))
    with virtual_time():
        result = replay(
            make_trace(rows), config, REALTIME, realtime=RealtimeOptions(clock=clock), events=tmp_path / "e.jsonl"
        )
    footer = footer_of(tmp_path / "e.jsonl")
    assert result.exit_code is ExitCode.REQUESTS_FAILED
    assert footer["end"] == "complete"
    assert footer["failed"] > 0
    assert balances(footer)
    assert rerun(tmp_path / "e.jsonl").same


# -- outputs that fail --------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("seed", range(8))
def test_a_disk_that_is_full_in_mid_run(seed: int, clock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 40, seed)
    left = random.Random(seed).choice([0, 1, 2, 5, 17, 60])
    write = Output.write

    def write_or_fail(output: Output, data: bytes) -> int:
        nonlocal left
        if output.name.endswith("events.jsonl"):
            left -= 1
            if left < 0:
                output._fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return write(output, data)

    monkeypatch.setattr(Output, "write", write_or_fail)
    options = ReplayOptions(mode="realtime", num_workers=1 + seed % 2)
    with virtual_time(), pytest.raises(OutputError, match=r"events\.jsonl: No space left"):
        replay(trace, {}, options, realtime=RealtimeOptions(clock=clock), **outputs_in(tmp_path))
    assert names_in(tmp_path) == ["t.jsonl"]


@pytest.mark.parametrize("output", ["events", "requests", "summary"])
def test_a_full_device(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocker_replay.outputs.BUFFER_BYTES", 4096)
    trace = write_trace(tmp_path / "t.jsonl", 40, 2)
    outputs = outputs_in(tmp_path) | {output: "/dev/full"}
    with virtual_time(), pytest.raises(OutputError, match=r"/dev/full.*No space left"):
        replay(trace, {}, REALTIME, **outputs)  # type: ignore[arg-type]
    assert "summary" not in names_in(tmp_path)
    assert not any("partial" in name for name in names_in(tmp_path))


# -- callers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_view_that_fails_ends_the_run_with_its_error(clock: str, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 200, 3)
    views: list[RealtimeView] = []

    def watch(view: RealtimeView) -> None:
        views.append(view)
        if len(views) == 3:
            raise ZeroDivisionError("the view's own fault")

    with virtual_time(), pytest.raises(ZeroDivisionError, match="own fault"):
        replay(trace, {}, REALTIME, realtime=RealtimeOptions(clock=clock), watch=watch, **outputs_in(tmp_path))
    assert names_in(tmp_path) == ["t.jsonl"]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("at", [1, 40, 97])
def test_an_observer_that_fails_ends_the_run_with_its_error(at: int, clock: str, make_trace: MakeTrace) -> None:
    trace = make_trace([make_row(0, 64, 90), make_row(0, 64, 7)])  # the last token is the 97th
    seen = 0

    def observe(row: int, signal: object, wall_ms: float) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            raise ZeroDivisionError("the observer's own fault")

    with virtual_time(), pytest.raises(ZeroDivisionError, match="own fault"):
        replay(trace, {}, REALTIME, realtime=RealtimeOptions(clock=clock), observe=observe)


@pytest.mark.parametrize("clock", CLOCKS)
def test_an_observer_hears_of_every_token(clock: str, make_trace: MakeTrace) -> None:
    trace = make_trace([make_row(n, 64, 10 + 7 * n) for n in range(5)])
    seen: list[tuple[int, int | None]] = []
    with virtual_time():
        replay(
            trace, {}, REALTIME, realtime=RealtimeOptions(clock=clock),
            observe=lambda row, signal, wall_ms: seen.append((row, signal.position)),
        )  # fmt: skip
    assert sorted(seen) == [(n, position) for n in range(5) for position in range(10 + 7 * n)]


def test_views_tell_what_happens(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 100, 3)
    views: list[RealtimeView] = []
    with virtual_time(Pace(0, (0.0, 2.0))):
        result = replay(trace, {"engine": {"num_gpu_blocks": 500}}, REALTIME, watch=views.append)
    told = result.summary["realtime"]
    assert len(views) == int((told["wall_duration_ms"] + 20.0) / 250.0)
    for before, view in itertools.pairwise(views):
        assert before.wall_ms < view.wall_ms
        assert before.rows_arrived <= view.rows_arrived <= view.rows_total == 100
        assert before.max_lateness_ms <= view.max_lateness_ms <= told["max_lateness_ms"]
        assert view.recent_lateness_ms <= view.max_lateness_ms
        assert 0 <= view.in_flight <= told["in_flight"]["max"]
        assert view.running + view.waiting <= view.in_flight
        assert view.active_blocks <= view.total_blocks == 500
        arrived = view.rows_arrived - before.rows_arrived
        assert view.arrivals_per_s == pytest.approx(arrived * 1000.0 / (view.wall_ms - before.wall_ms))
    assert max(view.in_flight for view in views) > 0
    most_ms = max(view.recent_lateness_ms for view in views)
    assert most_ms == views[-1].max_lateness_ms == pytest.approx(2.0, abs=1e-3)


def test_a_running_loop_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 5, 4)
    before = num_descriptors()

    async def within() -> None:
        with pytest.raises(UsageError, match=r"event loop of its own.*asyncio\.to_thread"):
            replay(trace, {}, REALTIME, events="/dev/stdout/none/of/this", summary=tmp_path / "deep" / "s.json")
        # An accelerated run needs none.
        assert replay(trace, {}).exit_code is ExitCode.OK
        speed = structs.replace(REALTIME, arrival_speedup_ratio=100.0)
        result = await asyncio.to_thread(replay, trace, {"engine": {"speedup_ratio": 1000.0}}, speed)
        assert result.summary["completed_requests"] == 5

    asyncio.run(within())
    assert names_in(tmp_path) == ["t.jsonl"]
    assert num_descriptors() == before


# -- Ctrl-C and other ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("turns", [(1, 2), (3, 30), (30, 31), (30, 32), (60, 61), (60, 65), (200, 201)])
def test_the_second_ctrl_c_ends_at_once(turns: tuple[int, int], clock: str, tmp_path: Path) -> None:
    """The first one's orderly end is under way, or over; nothing that looks whole is left where it was not."""
    trace = write_trace(tmp_path / "t.jsonl", 40, 5)
    pace = Pace(interrupt_turn=turns[0], second_turn=turns[1])
    handler = signal.getsignal(signal.SIGINT)  # ignored where the tests were started in the background
    interrupted = False
    try:
        with virtual_time(pace):
            result = replay(trace, {}, REALTIME, realtime=RealtimeOptions(clock=clock), **outputs_in(tmp_path))
    except KeyboardInterrupt:
        interrupted = True
        assert names_in(tmp_path) == ["t.jsonl"]
    else:
        assert result.exit_code is ExitCode.INTERRUPTED
        assert footer_of(tmp_path / "events.jsonl")["end"] == "interrupted"
    if turns[1] == turns[0] + 1:
        assert interrupted, "no end is orderly within one turn"
    assert signal.getsignal(signal.SIGINT) is handler


TORN_RUN = """
import asyncio, gc, itertools, os, sys
from mocker_replay.config import EngineConfig, RealtimeOptions, ReplayOptions, TimingModel
from mocker_replay.replay import replay

run_handle, left = asyncio.events.Handle._run, 0

def run_or_tear(handle):
    global left
    left -= 1
    if left == 0:
        raise KeyboardInterrupt
    return run_handle(handle)

asyncio.events.Handle._run = run_or_tear
config = EngineConfig(timing_model=TimingModel("fixed", 1.0, 0.2))
for clock in ("measured", "nominal"):
    for left_at_start in itertools.count(1, 7):
        left = left_at_start
        try:
            replay(
                sys.argv[1], config, ReplayOptions(mode="realtime", num_workers=2),
                realtime=RealtimeOptions(clock=clock), watch=lambda view: None, events=sys.argv[2] + "/e.jsonl",
            )
        except KeyboardInterrupt:
            assert os.listdir(sys.argv[2]) == []
        else:
            os.unlink(sys.argv[2] + "/e.jsonl")
            break
        for _ in range(3):  # finalisers hold what they call until they have run
            gc.collect()
        assert not [found for found in gc.get_objects() if isinstance(found, asyncio.Task)]
    print(clock, left_at_start > 100)
"""


def test_the_second_ctrl_c_may_tear_the_loop_anywhere(make_trace: MakeTrace, tmp_path: Path) -> None:
    """It comes between a task and its next step, which is lost: whoever waited for that task would wait for ever."""
    trace = make_trace([make_row(n * 2.0, 64, 5) for n in range(5)])
    folder = tmp_path / "out"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", TORN_RUN, str(trace), str(folder)],
        env=ENV, text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "measured True\nnominal True\n", "")


@pytest.mark.parametrize("mode", ["accelerated", "realtime"])
def test_sigterm_ends_as_it_ends_any_process(mode: str, make_trace: MakeTrace, tmp_path: Path) -> None:
    """Nobody is told; what was being written stands under its temporary name."""
    folder = tmp_path / "out"
    folder.mkdir()
    flags = ["--mode", mode, "--events", str(folder / "e.jsonl"), "--quiet"]
    (tmp_path / "slow.py").write_text(SLOW_MODEL)
    trace = make_trace([make_row(0, 64, 100_000)])
    process = subprocess.Popen(
        [*CLI, "run", str(trace), "--timing-model", "slow:Slow", *flags], env=ENV, cwd=tmp_path,
    )  # fmt: skip
    while not names_in(folder):
        time.sleep(0.01)
    process.terminate()
    assert process.wait(timeout=60) == -signal.SIGTERM
    (left,) = names_in(folder)
    assert left.startswith(".e.jsonl.")
    assert left.endswith(".partial")


SLOW_MODEL = """
import time

class Slow:
    def prefill(self, batch_size, mean_isl, mean_prefix):
        return 10.0

    def decode(self, batch_size, active_kv_tokens, mean_context_length, total_kv_tokens):
        time.sleep(0.001)
        return 10.0
"""


# -- what is left behind ------------------------------------------------------------------------------


def test_nothing_is_left_behind(make_trace: MakeTrace, tmp_path: Path) -> None:
    """Runs that end in each way, on the real clock, at a speed at which none takes long."""
    trace = make_trace([make_row(n * 2.0, 64 + 40 * n, 10, request_id=f"row {n}") for n in range(12)])
    counts: list[tuple[int, int, int]] = []
    for n in range(24):
        clock = CLOCKS[n % 2]
        broken = TimingModel("callback", callable=FailsAt(2)) if n % 3 == 2 else TimingModel("fixed", 1.0, 0.5)
        options = ReplayOptions(
            mode="realtime", num_workers=1 + n % 2, max_sim_time_ms=9.0 if n % 3 == 1 else None,
        )  # fmt: skip
        try:
            replay(
                trace, EngineConfig(timing_model=broken), options, realtime=RealtimeOptions(clock=clock),
                watch=lambda view: None, events=tmp_path / "e.jsonl",
            )  # fmt: skip
        except InvariantError:
            assert n % 3 == 2
        gc.collect()
        tasks = sum(isinstance(found, asyncio.Task) for found in gc.get_objects())
        counts.append((num_descriptors(), threading.active_count(), tasks))
    assert set(counts[6:]) == {counts[6]}
