"""Which object a policy's name stands for, what its hooks are given, and how answers that are none are refused."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import orjson
import pytest

from mocker_replay import policies
from mocker_replay._core.python_policy import RankFacts, RequestFacts
from mocker_replay.config import ReplayOptions
from mocker_replay.errors import InvariantError, UsageError
from mocker_replay.policies import BUILT_IN, Policy, RankLoad, load_policy, ready
from mocker_replay.replay import ReplayResult, replay
from tests.conftest import make_row
from tests.support.policies import LeastLoaded, OddJobs, SameAsNone

ENGINE = {
    "engine": {
        "num_gpu_blocks": 12, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 16,
        "timing_model": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0},
    }
}  # fmt: skip


def write_trace(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    trace = folder / "trace.jsonl"
    trace.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return trace


def row(n_in: int, n_out: int, at_ms: float = 0.0, **more: Any) -> dict[str, Any]:
    return make_row(at_ms, n_in, n_out, hash_ids=[1000 + n_in + n_out], **more)


def run(folder: Path, rows: Sequence[dict[str, Any]], policy: Policy | str, **options: Any) -> tuple[ReplayResult, Any]:
    """The result, and the lines of the log."""
    named = {"policy": policy} if isinstance(policy, str) else {}
    log = folder / "log.jsonl"
    result = replay(
        write_trace(folder, rows), ENGINE, ReplayOptions(**named, **options), events=log,
        policy=None if isinstance(policy, str) else policy,
    )  # fmt: skip
    return result, [orjson.loads(line) for line in log.read_bytes().splitlines()]


def admitted(lines: list[dict[str, Any]]) -> list[str]:
    return [line["request"] for line in lines if line["event"] == "admission"]


# -- names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_names(name: str) -> None:
    loaded = load_policy(name, {})
    assert loaded.is_fcfs == (name == "fcfs")
    assert loaded.placing is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sfj", {}, r"policy: must be one of fcfs, sjf, .*MODULE:CLASS; did you mean sjf\? \(got sfj\)"),
        ("fcfs", {"a": 1}, r'policy_options: fcfs takes no options \(got \{"a": 1\}\)'),
        ("sjf", {"a": 1}, r"policy_options: sjf refuses them: TypeError: .*"),
        ("lpm", {"max_waiting": 0}, r"lpm refuses them: ValueError: max_waiting must be at least 1"),
        ("edf", {"default_deadline_ms": -1}, r"default_deadline_ms must be positive \(got -1.0\)"),
        ("no_such_module:Class", {}, r"cannot be imported: ModuleNotFoundError"),
        ("tests.support.policies:NoClass", {}, r"cannot be imported: AttributeError"),
        ("tests.support.policies:ODD_JOBS", {}, r"must name a class"),
        (
            "tests.support.machines:Row",
            {"due_ms": 1, "n_in": 1, "n_out": 1, "hash_ids": ""},
            r"must be a mocker_replay",
        ),
        (
            "mocker_replay.policies:Policy",
            {},
            r"must override one of order_key, choose_victim, may_admit, token_budget, pl",
        ),
    ],
)
def test_a_policy_that_cannot_be_had(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_policy(name, options)


def test_an_entry_point_is_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("odd", "tests.support.policies:OddJobs", policies.ENTRY_POINTS)
    broken = EntryPoint("broken", "no_such_module:Odd", policies.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: EntryPoints([point, broken]))
    loaded = load_policy("odd", {})
    assert isinstance(loaded.scheduling.target, OddJobs)  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=r"must be one of fcfs, .*, broken, odd, or MODULE:CLASS; did you mean odd"):
        load_policy("od", {})
    with pytest.raises(UsageError, match="cannot be loaded: ModuleNotFoundError"):
        load_policy("broken", {})


def test_an_object_is_named_by_its_class() -> None:
    loaded = ready(OddJobs())
    assert loaded.name == "tests.support.policies:OddJobs"
    assert loaded.placing is None
    assert ready(LeastLoaded()).scheduling is None


# -- what is asked ------------------------------------------------------------------------------------


def test_priorities_and_deadlines_of_rows(tmp_path: Path) -> None:
    rows = [row(8, 1), row(12, 1), row(4, 3, priority=5, deadline_ms=1), row(16, 1, priority=-5, deadline_ms=2.5)]
    assert admitted(run(tmp_path, rows, "fcfs")[1]) == ["r0", "r1", "r2", "r3"]
    assert admitted(run(tmp_path, rows, "sjf")[1]) == ["r2", "r0", "r1", "r3"]
    assert admitted(run(tmp_path, rows, "priority")[1]) == ["r3", "r0", "r1", "r2"]
    assert admitted(run(tmp_path, rows, "edf")[1]) == ["r2", "r3", "r0", "r1"]
    by_default = admitted(run(tmp_path, rows, "edf", policy_options={"default_deadline_ms": 2.0})[1])
    assert by_default == ["r2", "r0", "r1", "r3"]


def test_what_a_hook_is_told(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Seeing(Policy):
        max_matches = 5

        def order_key(self, request: RequestFacts, rank: RankFacts) -> float:
            seen.append((request, rank))
            return 0.0

    rows = [row(8, 2, priority=3), row(8, 2, 10.0, deadline_ms=7.5)]
    rows[1]["hash_ids"] = rows[0]["hash_ids"]
    run(tmp_path, rows, Seeing())
    (first, rank), (second, later) = seen
    assert (first.row, first.input_tokens, first.output_tokens, first.priority) == (0, 8, 2, 3)
    assert (first.arrival_ms, first.deadline_ms, first.match_tokens) == (0.0, math.inf, 0)
    assert (second.arrival_ms, second.deadline_ms, second.match_tokens) == (10.0, 17.5, 8)
    assert (rank.worker, rank.rank, rank.now_ms, rank.pass_number, rank.num_running, rank.num_waiting) == (0,) * 5 + (
        1,
    )
    assert (later.now_ms, later.pass_number, later.num_running) == (10.0, 1, 1)
    assert (rank.block_size, rank.num_blocks, rank.num_free_blocks) == (4, 12, 12)
    assert (rank.max_num_seqs, rank.max_num_batched_tokens, rank.budget_tokens) == (2, 16, 16)
    with pytest.raises(AttributeError):
        first.priority = 1


def test_victims_are_told_in_order_of_admission(tmp_path: Path) -> None:
    seen: list[list[tuple[int, int, int]]] = []

    class Oldest(Policy):
        reason = "oldest"

        def choose_victim(self, running: Sequence[RequestFacts], rank: RankFacts) -> int:
            seen.append([(r.row, r.generated_tokens, r.num_blocks) for r in running])
            return 0

    result, lines = run(tmp_path, [row(12, 30), row(13, 30)], Oldest())
    assert seen[0] == [(0, 13, 6), (1, 12, 6)]
    (first, *_) = [line for line in lines if line["event"] == "decision"]
    assert (first["kind"], first["request"], first["instead_of"], first["reason"]) == ("victim", "r0", "r1", "oldest")
    assert result.summary["policy_decisions"]["victim"] == len(seen)


def test_a_policy_that_answers_as_the_engine_would_makes_the_same_run(tmp_path: Path) -> None:
    rows = [row(4 + 3 * i % 17, 5 + 7 * i % 11, 2.0 * i) for i in range(20)]
    _, plain = run(tmp_path, rows, "fcfs")
    result, same = run(tmp_path, rows, SameAsNone())
    assert same[1:] == plain[1:]
    assert same[0]["options"]["policy"] == "tests.support.policies:SameAsNone"
    assert set(result.summary["policy_decisions"].values()) == {0}


def test_placement_by_a_policy(tmp_path: Path) -> None:
    rows = [row(40, 4), row(4, 1), row(4, 2), row(4, 3)]
    result, lines = run(tmp_path, rows, LeastLoaded(), num_workers=2)
    assert [line["worker"] for line in lines if line["event"] == "arrival"] == [0, 1, 1, 1]
    decision = next(line for line in lines if line["event"] == "decision")
    assert (decision["request"], decision["worker"], decision["instead_of"]) == ("r2", 1, [0, 0])
    assert result.summary["policy_decisions"]["placement"] == 1
    with pytest.raises(UsageError, match="places requests itself: it cannot stand beside router_mode kv_router"):
        run(tmp_path, rows, LeastLoaded(), router_mode="kv_router")


def test_loads_are_those_of_the_event_stream(tmp_path: Path) -> None:
    seen: list[tuple[RankLoad, ...]] = []

    class Watching(Policy):
        def place(self, request: RequestFacts, ranks: Sequence[RankLoad]) -> tuple[int, int]:
            seen.append(tuple(ranks))
            return 0, 0

    run(tmp_path, [row(8, 2), row(4, 1, 5.0), row(4, 1, 50.0)], Watching(), num_workers=2)
    assert seen[0] == (RankLoad(0, 0, 0, 0, 0, 0, 0, 12), RankLoad(1, 0, 0, 0, 0, 0, 0, 12))
    assert seen[1][0] == RankLoad(0, 0, 1, 10, 0, 1, 0, 12), "a command has been published, the pass has not ended"
    assert seen[2][0] == RankLoad(0, 0, 0, 0, 0, 0, 0, 12)


# -- answers that are none ----------------------------------------------------------------------------


def raising(*_: Any) -> Any:
    raise RuntimeError("no answer")


@pytest.mark.parametrize(
    ("hook", "answer", "message"),
    [
        ("order_key", lambda *_: float("nan"), r"order_key must be a number \(got nan for row 0\)"),
        ("order_key", lambda *_: "first", r"policy Answering: order_key must be a number \(got 'first'\)"),
        ("order_key", raising, r"RuntimeError\('no answer'\)"),
        ("choose_victim", lambda *_: 9, r"choose_victim must be an index of the 2 running requests \(got 9\)"),
        ("choose_victim", lambda *_: -1, r"choose_victim must be an index of the 2 running requests \(got -"),
        ("choose_victim", lambda *_: None, r"choose_victim must be a whole number \(got None\)"),
        ("may_admit", lambda *_: 1, r"may_admit must be True or False \(got 1\)"),
        ("may_admit", raising, r"RuntimeError\('no answer'\)"),
        ("token_budget", lambda *_: 0, r"token_budget must lie from 1 to max_num_batched_tokens 16 \(got 0\)"),
        ("token_budget", lambda *_: 17, r"token_budget must lie from 1 to max_num_batched_tokens 16 \(got 17\)"),
        ("token_budget", lambda *_: 2.0, r"token_budget must be a whole number \(got 2.0\)"),
        ("place", lambda *_: (0, 1), r"place must be \(worker, rank\), from \(0, 0\) to \(0, 0\) \(got \(0, 1\)\)"),
        ("place", lambda *_: 0, r"place must be \(worker, rank\), from"),
        ("place", raising, r"RuntimeError\('no answer'\)"),
    ],
)
def test_an_answer_that_is_none_ends_the_run(
    tmp_path: Path, hook: str, answer: Callable[..., Any], message: str
) -> None:
    kind = type("Answering", (Policy,), {hook: lambda self, *args: answer(*args)})
    with pytest.raises(InvariantError, match=f"(?s)the run stopped at .* ms: .*{message}"):
        run(tmp_path, [row(12, 30), row(13, 30)], kind())


def test_holding_everybody_back_is_no_way_to_wait(tmp_path: Path) -> None:
    class Never(Policy):
        def may_admit(self, request: RequestFacts, rank: RankFacts) -> bool:
            return False

    with pytest.raises(InvariantError, match=r"rank 0 runs nothing, and all 2 requests that could enter are held back"):
        run(tmp_path, [row(12, 30), row(13, 30)], Never())


@pytest.mark.parametrize("reason", ["", "Big", "with space", "x" * 41, "é"])
def test_a_reason_is_a_short_word(tmp_path: Path, reason: str) -> None:
    class Talking(Policy):
        def token_budget(self, rank: RankFacts) -> int:
            return 5

    Talking.reason = reason
    with pytest.raises(InvariantError, match="the reason of a policy has 1 to 40 small letters, digits or _"):
        run(tmp_path, [row(12, 3)], Talking())


def test_facts_can_be_made_by_hand() -> None:
    """So that a policy is tested without a run."""
    facts = RequestFacts(3, 100, 20, priority=1, deadline_ms=5.0)
    assert OddJobs().order_key(facts, RankFacts()) == 1
    assert "row=3" in repr(facts)
    assert "num_running=7" in repr(RankFacts(num_running=7))


def test_the_module_is_light() -> None:
    assert "mocker_replay._core.python_policy" in sys.modules
    assert not [name for name in vars(policies) if name in ("numpy", "orjson")]
