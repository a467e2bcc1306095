"""Speed of the core's structures one by one: block pool, prefix index, passes of the scheduler, the driver."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mocker_replay._core.block_pool import BlockPool
from mocker_replay._core.driver import Machine
from mocker_replay._core.prefix_index import PrefixIndex
from mocker_replay.events import EventKind
from tests.bench.conftest import refusal
from tests.support.machines import Shell, make_machine, read_records, submit

pytestmark = pytest.mark.bench

NUM_BLOCKS, NUM_RUNS, RUN_BLOCKS = 1_024, 256, 16
NUM_PATHS, PATH_BLOCKS, STEM_BLOCKS = 500, 40, 24
NUM_SEQUENCES, NUM_DECODES = 64, 400


@pytest.mark.benchmark(group="block_pool")
def test_block_pool(benchmark: Any) -> None:
    """Runs of blocks that are acquired, cached and released; four times what fits, so three in four are evicted."""

    def setup() -> tuple[tuple[PrefixIndex, list[list[int]]], dict[str, object]]:
        index = PrefixIndex(4, 4)
        return (
            index,
            [index.path([run * 100 + at for at in range(RUN_BLOCKS)], RUN_BLOCKS) for run in range(NUM_RUNS)],
        ), {}

    def come_and_go(index: PrefixIndex, runs: list[list[int]]) -> BlockPool:
        pool = BlockPool(index, NUM_BLOCKS)
        for run in runs:
            assert pool.py_acquire([], RUN_BLOCKS)
            pool.py_release([pool.py_cache(node * index.stride)[0] for node in run])
        return pool

    pool = benchmark.pedantic(come_and_go, setup=setup, rounds=10)
    pool.check()
    assert (pool.num_free, pool.num_inactive, pool.num_cached) == (0, NUM_BLOCKS, NUM_BLOCKS)
    assert len(set(pool.lru_order())) == NUM_BLOCKS


@pytest.mark.benchmark(group="prefix_index")
def test_prefix_index(benchmark: Any) -> None:
    """Paths with a common stem are interned, found again, and forgotten twice, once a hold."""
    own = PATH_BLOCKS - STEM_BLOCKS
    paths = [[*range(STEM_BLOCKS), *(1_000 * (nth + 1) + at for at in range(own))] for nth in range(NUM_PATHS)]

    def intern_and_forget() -> tuple[int, int, int]:
        index = PrefixIndex(4, 4)
        first = [index.path(path, PATH_BLOCKS) for path in paths]
        num_nodes = index.num_nodes
        again = [index.path(path, PATH_BLOCKS) for path in paths]
        assert again == first
        num_holds = index.num_holds()
        for nodes in first + again:
            index.forget(nodes[-1])
        return num_nodes, num_holds, index.num_nodes

    found = benchmark.pedantic(intern_and_forget, rounds=10, warmup_rounds=1)
    assert found == (STEM_BLOCKS + NUM_PATHS * own, 2 * NUM_PATHS, 0)


def loaded(n_in: int, n_out: int, **settings: Any) -> Machine:
    """A machine with a queue of equal requests, before its first pass."""
    machine = make_machine(
        num_gpu_blocks=64 * NUM_SEQUENCES * 8, max_num_seqs=NUM_SEQUENCES, max_num_batched_tokens=8_192, **settings
    )
    for request in range(NUM_SEQUENCES):
        machine.enqueue(submit(request, request, n_in, n_out))
    return machine


def count(machine: Machine, kind: EventKind) -> int:
    return sum(record.kind == kind for record in read_records(machine.out))


@pytest.mark.benchmark(group="scheduler")
def test_steady_decode(benchmark: Any) -> None:
    """One prefill pass goes before, unmeasured; then every pass decodes the same full batch."""

    def setup() -> tuple[tuple[Machine, float], dict[str, object]]:
        machine = loaded(64, NUM_DECODES)
        return (machine, machine.advance(0.0, 10.0)), {}

    def decode(machine: Machine, now_ms: float) -> Machine:
        machine.advance(now_ms, math.inf)
        return machine

    machine = benchmark.pedantic(decode, setup=setup, rounds=5)
    assert count(machine, EventKind.PASS_START) == NUM_DECODES
    assert count(machine, EventKind.TERMINAL) == NUM_SEQUENCES


@pytest.mark.benchmark(group="scheduler")
def test_prefill(benchmark: Any) -> None:
    """Long prompts in chunks of a pass's tokens, one answer token each."""
    n_in = 2_048

    def setup() -> tuple[tuple[Machine], dict[str, object]]:
        return (loaded(n_in, 1),), {}

    def prefill(machine: Machine) -> Machine:
        machine.advance(0.0, math.inf)
        return machine

    machine = benchmark.pedantic(prefill, setup=setup, rounds=5)
    assert count(machine, EventKind.PASS_START) == NUM_SEQUENCES * n_in // 8_192
    assert count(machine, EventKind.TERMINAL) == NUM_SEQUENCES


@pytest.mark.benchmark(group="driver")
def test_advance(benchmark: Any) -> None:
    """One request alone: nearly all is the driver's own work."""

    def advance() -> Machine:
        machine = make_machine(num_gpu_blocks=NUM_DECODES)
        machine.enqueue(submit(0, 0, 4, NUM_DECODES))
        machine.advance(0.0, math.inf)
        return machine

    machine = benchmark.pedantic(advance, rounds=10, warmup_rounds=1)
    assert count(machine, EventKind.PASS_START) == NUM_DECODES


@pytest.mark.benchmark(group="driver")
def test_step(benchmark: Any) -> None:
    """The same request, stimulus by stimulus through a shell in Python."""

    def step() -> Machine:
        shell = Shell(make_machine(num_gpu_blocks=NUM_DECODES))
        shell.put(submit(0, 0, 4, NUM_DECODES))
        shell.run(math.inf)
        return shell.machine

    machine = benchmark.pedantic(step, rounds=5, warmup_rounds=1)
    assert count(machine, EventKind.PASS_START) == NUM_DECODES


def test_a_build_with_checks_is_not_measured() -> None:
    assert refusal(True, True) is not None
    assert refusal(True, False) is None
    assert refusal(False, True) is None
