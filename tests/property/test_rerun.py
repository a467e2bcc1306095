"""Guarantee A: a realtime log, run again in virtual time, gives the same lines; and a log that was changed does not."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mocker_replay._core.log_encoder import LEVELS
from mocker_replay.config import EngineConfig, TimingModel
from mocker_replay.log.digest import EventDigest
from mocker_replay.log.wall import with_wall
from mocker_replay.replay.rerun import rerun
from mocker_replay.replay.rerun_result import RerunResult
from tests.support.realtime import TRACE_BLOCK_SIZE, Action, Arrival, Cancel, RealtimeRun

many = settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
timings = st.tuples(st.sampled_from([0.0, 1.0, 2.5, 10.0]), st.sampled_from([0.0, 0.5, 1.0])).map(
    lambda pair: TimingModel("fixed", *pair)
) | st.just(TimingModel())
times_ms = st.integers(0, 120).map(lambda n: n / 2.0)
texts = st.text(st.sampled_from('",\\wal{}:') | st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    """Small pools and budgets, so that everything runs short."""
    return EngineConfig(
        num_gpu_blocks=draw(st.integers(3, 14)),
        block_size=draw(st.integers(2, 6)),
        max_model_len=draw(st.sampled_from([None, None, 12, 30])),
        max_num_seqs=draw(st.sampled_from([1, 2, 4, None])),
        max_num_batched_tokens=draw(st.sampled_from([8, 20, None])),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 3])),
        enable_prefix_caching=draw(st.sampled_from([True, True, False])),
        preemption_mode=draw(st.sampled_from(["lifo", "fifo"])),
        timing_model=draw(timings),
        dp_size=draw(st.sampled_from([1, 1, 2])),
        num_gpu_blocks_is_explicit=True,
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Any], list[Action], dict[str, Any]]:
    """Arguments of a run, its script, and how it ends."""
    config = draw(configs())
    num_workers = draw(st.integers(1, 3))
    rows = draw(st.permutations(range(draw(st.integers(1, 12)))))
    script: list[Action] = []
    for row in rows:
        n_in = draw(st.integers(1, 24))
        family, count = draw(st.integers(0, 2)), -(-n_in // TRACE_BLOCK_SIZE)
        shared = draw(st.integers(0, count))
        hash_ids = tuple(family if i < shared else 2**64 - 1 - 1_000 * row - i for i in range(count))
        place = draw(st.integers(0, num_workers - 1)), draw(st.integers(0, config.dp_size - 1))
        session = draw(st.sampled_from([(-1, 0), (-1, 0), (row, 3)]))
        script.append(Arrival(draw(times_ms), row, n_in, draw(st.integers(0, 24)), hash_ids, *place, *session))
    cancels = st.builds(Cancel, times_ms, st.sampled_from(rows), st.booleans(), st.booleans())
    script += draw(st.lists(cancels, max_size=6))
    names = draw(st.dictionaries(st.sampled_from(rows), texts, max_size=4))
    arguments = {
        "config": config,
        "num_workers": num_workers,
        "level": draw(st.sampled_from(LEVELS)),
        "names": names,
        "seed": draw(st.integers(0, 2**32)),
        "cut_wall_in_footer": draw(st.booleans()),
    }
    end = draw(st.sampled_from([math.inf, 12.25]) | st.sampled_from([action.at_ms for action in script]))
    return arguments, script, {"stop_ms": end, "token": draw(st.booleans())}


def rerun_bytes(data: bytes) -> RerunResult:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(data)
        return rerun(path)


@given(runs())
@many
def test_a_recorded_run_is_the_same_again(run: tuple[dict[str, Any], list[Action], dict[str, Any]]) -> None:
    arguments, script, end = run
    data = RealtimeRun(**arguments).play(script, **end)
    footer = orjson.loads(data.splitlines()[-1])
    ends = sum(footer[name] for name in ("finished", "failed", "rejected", "cancelled", "cut"))
    assert footer["arrived"] == ends, "the recorded run itself must balance"
    result = rerun_bytes(data)
    assert result.difference is None, result.difference
    assert (result.num_lines, result.digest, result.end) == (footer["events"], footer["digest"], footer["end"])


# -- logs that were changed ---------------------------------------------------------------------------


class Log:
    """A recorded log as lists of (bare event, wall or None), to be changed and written anew."""

    def __init__(self, data: bytes) -> None:
        self.header, *lines, self.footer = data.splitlines()
        self.lines: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        for line in lines:
            event = orjson.loads(line)
            self.lines.append((event, event.pop("wall", None)))

    def steps(self) -> list[tuple[int, list[Any]]]:
        """(seq of the line that tells of it, step) for those that stand before the footer."""
        return [(seq, step) for seq, (_, wall) in enumerate(self.lines) if wall for step in wall.get("steps", ())]

    def bytes(self, *, true_footer: bool) -> bytes:
        """The changed log; `true_footer`: with the number and digest of its lines as they are now."""
        bare = [orjson.dumps(event) for event, _ in self.lines]
        footer = orjson.loads(self.footer)
        if true_footer:
            digest = EventDigest()
            digest.update(b"".join(line + b"\n" for line in bare))
            footer |= {"events": len(bare), "digest": digest.hexdigest()}
        walls = [wall for _, wall in self.lines]
        whole = [with_wall(line, orjson.dumps(wall)) if wall else line for line, wall in zip(bare, walls, strict=True)]
        return b"".join(line + b"\n" for line in (self.header, *whole, orjson.dumps(footer)))


def recorded(run: Any) -> Log:
    arguments, script, end = run
    return Log(RealtimeRun(**arguments).play(script, **end))


few = settings(max_examples=40, suppress_health_check=list(HealthCheck))


def test_a_log_written_anew_is_the_same_log() -> None:
    data = RealtimeRun(EngineConfig(num_gpu_blocks=9, block_size=3)).play(SMALL)
    assert Log(data).bytes(true_footer=True) == data


SMALL: list[Action] = [Arrival(0.0, 1, 7, 5, (1, 2, 3)), Arrival(0.5, 0, 9, 4, (1, 2, 4)), Cancel(30.0, 0)]


def leaves(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every plain value below."""
    keys = value if isinstance(value, dict) else range(len(value))
    found = []
    for key in keys:
        found += leaves(value[key]) if isinstance(value[key], dict | list) else [(value, key)]
    return found


def other(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    return value + 1 if isinstance(value, int) else value + "x"


@given(runs(), st.data())
@few
def test_a_changed_value_is_found_in_its_line(run: Any, data: st.DataObject) -> None:
    log = recorded(run)
    # Arrivals are taken as the log has them; so is the time of a cut.
    made = [seq for seq, (event, _) in enumerate(log.lines) if event["event"] not in ("arrival", "cut")]
    assume(made)
    seq = data.draw(st.sampled_from(made))
    container, key = data.draw(st.sampled_from(leaves(log.lines[seq][0])))
    before = container[key]
    container[key] = other(before)
    for true_footer in (True, False):
        result = rerun_bytes(log.bytes(true_footer=true_footer))
        assert result.difference is not None
        assert (result.difference.seq, result.difference.line_number, result.num_lines) == (seq, seq + 2, seq)
        (found,) = result.difference.fields()
        assert found.field.endswith(str(key)) or isinstance(key, int)
        assert (found.logged, found.rerun) == (container[key], before)
        assert (result.damage is None) == true_footer


@given(runs(), st.data())
@few
def test_a_missing_line_is_found_where_it_was(run: Any, data: st.DataObject) -> None:
    log = recorded(run)
    assume(log.lines)
    seq = data.draw(st.integers(0, len(log.lines) - 1))
    del log.lines[seq]
    result = rerun_bytes(log.bytes(true_footer=True))
    assert result.difference is not None
    assert result.difference.seq == seq


@given(runs(), st.data())
@few
def test_an_extra_line_is_found_where_it_is(run: Any, data: st.DataObject) -> None:
    log = recorded(run)
    assume(log.lines)
    seq = data.draw(st.integers(0, len(log.lines) - 1))
    event, wall = log.lines[seq]
    renumbered = data.draw(st.booleans())
    log.lines.insert(seq + 1, (event | {"seq": seq + 1} if renumbered else event, wall))
    if renumbered:
        for at in range(seq + 2, len(log.lines)):
            log.lines[at][0]["seq"] = at
    result = rerun_bytes(log.bytes(true_footer=True))
    assert result.difference is not None
    assert result.difference.seq == seq + 1


@given(runs(), st.data())
@few
def test_a_later_reading_at_a_pass_start_moves_it(run: Any, data: st.DataObject) -> None:
    log = recorded(run)
    starts = [
        seq for seq, (event, wall) in enumerate(log.lines) if event["event"] == "pass_start" and wall and wall["steps"]
    ]
    assume(starts)
    seq = data.draw(st.sampled_from(starts))
    wall = log.lines[seq][1]
    assert wall is not None
    assert wall["steps"][-1][1] == "go"
    wall["steps"][-1][2] = 1e6
    result = rerun_bytes(log.bytes(true_footer=True))
    assert result.difference is not None
    assert result.difference.seq == seq
    differing = [difference.field for difference in result.difference.fields()]
    assert differing[0] == "t_ms"
    assert result.difference.steps[-1].reading_ms == 1e6


# The list of places where a reading enters the model is complete: these are not on it.
WITHOUT_EFFECT = ("published", "pass_timer", "boundary_finish", "lane_counts", "lane_empty", "yielded")


@given(runs(), st.lists(st.floats(0.0, 1e9), min_size=1))
@few
def test_a_reading_that_does_not_matter_does_not_matter(run: Any, readings: list[float]) -> None:
    log = recorded(run)
    for at, (_, step) in enumerate(log.steps()):
        if step[1] in WITHOUT_EFFECT:
            step[2] = readings[at % len(readings)]
    assert rerun_bytes(log.bytes(true_footer=True)).same


@given(runs(), st.data())
@few
def test_a_step_that_is_missing_is_missed_at_the_next_one(run: Any, data: st.DataObject) -> None:
    log = recorded(run)
    steps = log.steps()
    pairs = []
    for at, (_, step) in enumerate(steps):
        following = [(seq, later[1]) for seq, later in steps[at + 1 :] if later[0] == step[0]]
        if step[1] == "published" and following and following[0][1] != "cancel":
            pairs.append((step, following[0][0]))
    assume(pairs)
    step, seq = data.draw(st.sampled_from(pairs))
    for _, wall in log.lines:
        if wall:
            wall["steps"] = [kept for kept in wall.get("steps", ()) if kept is not step]
    result = rerun_bytes(log.bytes(true_footer=True))
    assert result.difference is not None
    assert result.difference.seq == seq
    assert "does not take the step" in result.difference.rule
    assert "while publishing" in result.difference.rule
