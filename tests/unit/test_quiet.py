"""What a realtime run asks of kernel and collector, and that both are left as they were."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mocker_replay._core.thread_slice import set_thread_slice_ns, thread_slice_ns
from mocker_replay.config import RealtimeOptions, ReplayOptions
from mocker_replay.replay import replay
from mocker_replay.shells.quiet import quiet


def in_a_thread(body: Callable[[], None]) -> None:
    """Slices belong to a thread; this one's is gone afterwards."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.enable()
    gc.unfreeze()


def keeps_slices() -> bool:
    """Kernels before 6.12 take the wish and forget it."""
    kept: list[bool] = []

    def ask() -> None:
        set_thread_slice_ns(2_000_000)
        kept.append(thread_slice_ns() == 2_000_000)

    in_a_thread(ask)
    return kept[0]


# -- slices -----------------------------------------------------------------------------------------


def test_a_slice_is_set_for_the_thread_alone() -> None:
    before_ns = thread_slice_ns()

    def ask() -> None:
        nice = os.nice(0)
        set_thread_slice_ns(1_500_000)
        assert thread_slice_ns() in (1_500_000, before_ns)
        assert os.nice(0) == nice

    in_a_thread(ask)
    assert thread_slice_ns() == before_ns


def test_no_slice_is_negative() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1 ns"):
        set_thread_slice_ns(-1)


def test_the_slice_is_short_in_the_quiet_and_as_before_after_it() -> None:
    if not keeps_slices():
        pytest.skip("this kernel has no slices of a thread's own")

    def run() -> None:
        set_thread_slice_ns(2_000_000)
        with quiet():
            assert thread_slice_ns() == 100_000
        assert thread_slice_ns() == 2_000_000

    in_a_thread(run)


def test_a_thread_of_another_policy_is_left_alone() -> None:
    def run() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError:
            pytest.skip("the policy of this thread cannot be changed")
        with pytest.raises(OSError, match="sched_setattr"):
            set_thread_slice_ns(1_000_000)
        with quiet():
            assert os.sched_getscheduler(0) == os.SCHED_IDLE
        assert os.sched_getscheduler(0) == os.SCHED_IDLE

    in_a_thread(run)


# -- the collector ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("collector")
def test_collections_are_rare_in_the_quiet() -> None:
    gc.set_threshold(700, 11, 12)
    with quiet():
        assert gc.get_threshold() == (50_000, 11, 12)
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    assert gc.get_threshold() == (700, 11, 12)
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("collector")
def test_whoever_collects_less_still_does() -> None:
    gc.set_threshold(90_000, 5, 5)
    with quiet():
        assert gc.get_threshold() == (90_000, 5, 5)


@pytest.mark.usefixtures("collector")
def test_what_others_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with quiet():
        assert gc.get_freeze_count() == frozen
    assert gc.get_freeze_count() == frozen


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("switched_off", [gc.disable, lambda: gc.set_threshold(0)], ids=["disabled", "no threshold"])
def test_a_collector_that_is_off_is_left_alone(switched_off: Callable[[], None]) -> None:
    switched_off()
    before = gc.get_threshold()
    with quiet():
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("collector")
def test_a_failure_inside_leaves_things_as_they_were() -> None:
    gc.set_threshold(700, 10, 10)
    before_ns = thread_slice_ns()
    with pytest.raises(KeyError), quiet():
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0
    assert thread_slice_ns() == before_ns


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("output_buffering", ["full", 100])
def test_a_run_makes_no_cycles(tmp_path: Path, output_buffering: int | str) -> None:
    """So that nothing is kept by collecting rarely. What a run has once, however long it is, may be a cycle."""
    trace = tmp_path / "trace.jsonl"

    def cycles_of(num_rows: int) -> int:
        rows = [
            {"timestamp": row, "input_length": 40, "output_length": 8, "hash_ids": [row]} for row in range(num_rows)
        ]
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        gc.collect()
        gc.disable()
        replay(
            trace,
            {"engine": {"num_gpu_blocks": 256, "speedup_ratio": 100.0}},
            ReplayOptions(mode="realtime"),
            realtime=RealtimeOptions(output_buffering=output_buffering),
        )
        return gc.collect()

    cycles_of(2)  # whatever is imported late
    assert cycles_of(120) < cycles_of(2) + 60
