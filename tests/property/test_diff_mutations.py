"""A thousand logs with one planted mutation each: the first difference is found at its `seq`, every time.

And no false alarm: a run that is done again is the same.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mocker_replay.errors import ExitCode
from mocker_replay.log.diff import diff_logs
from mocker_replay.log.reader import LogError
from tests.support.logs import (
    MUTATIONS,
    LogText,
    generated_log,
    mutate,
    pieces,
    random_run,
    read_log,
    record,
    with_footer,
    write_log,
)

NUM_RUNS = 50
PIECES_OF_A_RUN = 10
NUM_GENERATED = 500


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[LogText]:
    folder = tmp_path_factory.mktemp("runs")
    return [read_log(record(random_run(seed), folder, f"{seed}.jsonl")) for seed in range(NUM_RUNS)]


def cut_from_runs(runs: list[LogText]) -> Iterator[LogText]:
    for seed, log in enumerate(runs):
        yield from pieces(log, PIECES_OF_A_RUN, random.Random(seed))


def generated() -> Iterator[LogText]:
    for seed in range(NUM_GENERATED):
        yield generated_log(seed, num_events=10 + seed % 200)


def check(logs: Iterator[LogText], tmp_path: Path, first_seed: int) -> int:
    """Plant one mutation in each log and hold the diff to it; how many there were."""
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    done = 0
    for seed, log in enumerate(logs, first_seed):
        rng = random.Random(seed)
        kind = MUTATIONS[seed % len(MUTATIONS)]
        mutated = next(filter(None, (mutate(log, kind, rng) for _ in range(20))), None)
        if mutated is None:  # a log of one line has no order
            mutated = mutate(log, "value", rng)
        assert mutated is not None
        write_log(a, log)
        b.write_bytes(mutated.data)
        for first, second in ((a, b), (b, a)):
            # A footer that was not written anew says that nothing has changed, and is believed unless told otherwise.
            diff = diff_logs(first, second, window_lines=1024, verify=not mutated.footer_is_true)
            context = f"seed {seed}, {mutated.kind} at {mutated.seq}, {first.name} first"
            assert diff.first is not None, context
            assert diff.first.seq == mutated.seq, context
            cut = mutated.kind == "cut"
            assert diff.exit_code == (ExitCode.USAGE if cut else ExitCode.DIFFERS), context
            assert bool(any(diff.damage)) is not mutated.footer_is_true, context
            assert_counts(diff, context)
            if mutated.kind in ("missing", "extra"):
                lost = "missing" if (mutated.kind == "missing") == (first == a) else "extra"
                assert diff.counts is not None
                totals = {name: diff.counts.total(name) for name in ("missing", "extra")}
                assert totals == {"missing": 0, "extra": 0} | {lost: 1}, context
            elif mutated.kind == "order":
                assert diff.counts is not None
                assert diff.counts.total("reordered") == 1, context
                assert diff.first.verdict == "reordered", context
        done += 1
    return done


def assert_counts(diff: object, context: str) -> None:
    """Every line of either log is counted once."""
    counts, (num_a, num_b) = diff.counts, diff.num_events  # type: ignore[attr-defined]
    paired = sum(counts.total(name) for name in ("same", "reordered", "moved", "changed"))
    assert paired + counts.total("missing") == num_a, context
    assert paired + counts.total("extra") == num_b, context


def test_mutations_of_logs_cut_from_runs_are_found(runs: list[LogText], tmp_path: Path) -> None:
    assert check(cut_from_runs(runs), tmp_path, 0) == NUM_RUNS * PIECES_OF_A_RUN


def test_mutations_of_generated_logs_are_found(tmp_path: Path) -> None:
    assert check(generated(), tmp_path, 10_000) == NUM_GENERATED


def test_a_run_done_again_is_the_same(tmp_path: Path) -> None:
    compared = functools.partial(diff_logs, tmp_path / "first.jsonl", tmp_path / "again.jsonl")
    for seed in range(200):
        run = random_run(1_000 + seed)
        record(run, tmp_path, "first.jsonl")
        record(run, tmp_path, "again.jsonl")
        for diff in (compared(), compared(verify=True)):
            assert diff.same, f"seed {seed}"
            assert diff.exit_code == ExitCode.OK
            assert diff.settings == ()
        assert diff.counts is not None
        assert diff.counts.total("same") == diff.num_events[0] > 0
        assert [metric for metric in diff.metrics if metric.a != metric.b] == []


def test_a_log_that_is_damaged_anyhow_is_never_the_same(runs: list[LogText], tmp_path: Path) -> None:
    """Bytes changed, lost or doubled anywhere: a difference, or a log that is refused, and never a traceback."""
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for seed in range(400):
        rng = random.Random(seed)
        log = with_footer(runs[seed % len(runs)].header, runs[seed % len(runs)].lines[:150])
        data = bytearray(write_log(a, log).read_bytes())
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(log.header) + 1, len(data))
            change = rng.randrange(4)
            if change == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif change == 1:
                del data[at : at + rng.randint(1, 40)]
            elif change == 2:
                data[at:at] = data[at : at + rng.randint(1, 40)]
            else:
                data[at : at + 1] = rng.choice([b"\n", b"{", b'"', b"\\", b"\0", b"\xff", b"]}"])
        if data == a.read_bytes():
            continue
        b.write_bytes(data)
        for ignore in ((), ("gauges", "ranks.fpm")):
            try:
                diff = diff_logs(a, b, verify=True, ignore=ignore, window_lines=64)
            except LogError:
                continue
            assert diff.exit_code != ExitCode.OK, f"seed {seed}"


def test_pieces_differ_from_run_to_run(runs: list[LogText]) -> None:
    """The proof above is worth something only if its logs are many."""
    kinds = {line[line.index(b'"event":"') + 9 :].split(b'"', 1)[0] for log in runs for line in log.lines}
    assert len(kinds) >= 14
    assert len({tuple(log.lines) for log in cut_from_runs(runs)}) > 450
