"""Logs of random runs in virtual time: small pools, tight budgets, clients that leave, every level and router."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from mocker_replay.config import ReplayOptions
from mocker_replay.errors import InvariantError
from mocker_replay.log.digest import EventDigest
from mocker_replay.policies import Policy
from mocker_replay.replay import replay
from tests.fuzz.generate import make_case
from tests.fuzz.graphs import make_graph_case
from tests.parity.cases import Case
from tests.support.policies import LeastLoaded, OddJobs

LEVELS = ("requests", "passes", "tokens", "kv")
COUNTED = {
    "arrival": "arrived",
    "finish": "finished",
    "failure": "failed",
    "rejection": "rejected",
    "cancellation": "cancelled",
    "cut": "cut",
}


@dataclass
class Log:
    """A log taken apart, to be changed and put together again."""

    header: dict[str, Any]
    events: list[dict[str, Any]]
    footer: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def level(self) -> str:
        return str(self.header["level"])

    @property
    def engine(self) -> dict[str, Any]:
        engine: dict[str, Any] = self.header["config"]["engine"]
        return engine

    def copy(self) -> Log:
        """One that can be changed."""
        header, events, footer, summary = orjson.loads(
            orjson.dumps([self.header, self.events, self.footer, self.summary])
        )
        return Log(header, events, footer, summary)

    def recount(self) -> None:
        """Number the lines anew and make the footer true to them."""
        for seq, event in enumerate(self.events):
            event["seq"] = seq
        counts = {name: sum(event["event"] == kind for event in self.events) for kind, name in COUNTED.items()}
        self.footer |= {"events": len(self.events), **counts}

    def resign(self) -> None:
        """Make the digest true to the lines."""
        digest = EventDigest()
        digest.update(b"".join(orjson.dumps(event) + b"\n" for event in self.events))
        self.footer["digest"] = digest.hexdigest()

    def bytes(self) -> bytes:
        return b"".join(orjson.dumps(line) + b"\n" for line in (self.header, *self.events, self.footer))


def read_log(data: bytes, summary: dict[str, Any] | None = None) -> Log:
    header, *events, footer = map(orjson.loads, data.splitlines())
    return Log(header, events, footer, summary or {})


def with_impatience(case: Case, rng: random.Random) -> Case:
    """The same rows, some of them with a client that leaves: often at a pass end, sometimes at once."""
    rows = [json.loads(line) for line in case.trace_text.splitlines()]
    for row in rows:
        if rng.random() < 0.4:
            row["cancel_after_ms"] = rng.choice((0, 0, 1, 1.5, 10, 12, 20, 50, round(rng.uniform(0, 200), 3)))
    return replace(case, trace_text="".join(json.dumps(row) + "\n" for row in rows))


class Failing:
    """A timing model that fails after so many answers: the run cannot go on, in mid-pass."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def _answer(self, ms: float) -> float:
        self.answers -= 1
        if self.answers < 0:
            raise RuntimeError("no more answers")
        return ms

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        return self._answer(7.25)

    def decode(self, batch_size: int, active: int, mean_context: int, total: int) -> float:
        return self._answer(1.5)


def stopped_log(seed: int, level: str) -> Log:
    """The log of a random run whose engine may stop."""
    rng = random.Random(seed)
    case = make_case(seed)
    while case.format != "mooncake" or "decode_speedup_ratio" in case.config["engine"]:
        case = make_case(rng.getrandbits(32))
    case = with_impatience(case, rng)
    args = {name: value for name, value in case.args.items() if name != "telemetry_sample_interval_ms"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = case.config_with_files(folder)
        config["engine"]["timing_model"] = Failing(rng.randrange(30))
        events = folder / "events.jsonl"
        with contextlib.suppress(InvariantError):
            replay(case.write_trace(folder), config, ReplayOptions(**args), events=events, event_level=level)
        return read_log(events.read_bytes())


def some_policy(seed: int, args: dict[str, Any], case: Case) -> Policy | None:
    """For a third of the runs a policy: by name in `args`, or an object. No other draw of a run changes with it."""
    rng = random.Random(seed ^ 0x9E3779B9)
    kind = rng.randrange(12)
    if kind < 3:
        args["policy"] = ("sjf", "lpm", "edf")[kind]
    elif kind == 3 and case.config["engine"].get("enable_chunked_prefill", True):
        return OddJobs()
    elif kind == 4 and args.get("router_mode") != "kv_router":
        return LeastLoaded()
    return None


@lru_cache(maxsize=256)
def graph_log(seed: int, level: str) -> Log:
    """The log of a random graph of requests. Not to be changed: `copy` it."""
    case = make_graph_case(seed)
    args = {name: value for name, value in case.args.items() if name != "telemetry_sample_interval_ms"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace, config = case.write_trace(folder), case.config_with_files(folder)
        outputs = {"events": folder / "events.jsonl", "summary": folder / "summary.json"}
        replay(trace, config, ReplayOptions(**args), event_level=level, **outputs)
        summary = orjson.loads(outputs["summary"].read_bytes())
        return read_log(outputs["events"].read_bytes(), summary)


@lru_cache(maxsize=256)
def random_log(seed: int, level: str | None = None) -> Log:
    """The log of a random run and its summary; the same seed always gives the same. Not to be changed: `copy` it."""
    rng = random.Random(seed)
    case = make_case(seed)
    while case.format != "mooncake":
        case = make_case(rng.getrandbits(32))
    args = dict(case.args)
    if rng.random() < 0.5:
        case = with_impatience(case, rng)
    if rng.random() < 0.3:
        args["num_workers"] = rng.randint(1, 3)
    if rng.random() < 0.3:
        args["router_mode"] = "kv_router"
    if rng.random() < 0.15:
        args["max_sim_time_ms"] = round(rng.uniform(0, 60), 3)
    policy = some_policy(seed, args, case)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        replay(
            case.write_trace(folder),
            case.config_with_files(folder),
            ReplayOptions(**args),
            events=folder / "events.jsonl",
            event_level=level or rng.choice(LEVELS),
            summary=folder / "summary.json",
            telemetry=rng.random() < 0.3,
            policy=policy,
        )
        summary = orjson.loads((folder / "summary.json").read_bytes())
        return read_log((folder / "events.jsonl").read_bytes(), summary)
