"""Pooled gaps against a naive model that keeps every token time."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay._core.collector import Collector
from mocker_replay._core.event_buffer import KIND_NAMES, EventBuffer

KIND = {name: number for number, name in enumerate(KIND_NAMES)}
COMPLETED, CANCELLED, FAILED = 0, 2, 3

# One pass of one rank: its length, and per request how many tokens it emits (0: it sits this pass out).
PASS = st.tuples(
    st.sampled_from([0.0, 0.25, 1.0, 7.5]),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.lists(st.sampled_from([None, None, None, COMPLETED, CANCELLED, FAILED]), min_size=4, max_size=4),
)
RANK = st.lists(PASS, max_size=12)


class RankScript:
    """Emission schedule of one rank, told twice: as records and as token times."""

    def __init__(self, rank: int, buffer: EventBuffer) -> None:
        self.rank = rank
        self.buffer = buffer
        self.previous_ms = math.nan
        self.tokens: dict[int, list[float]] = {}
        self.emitted_last: set[int] = set()
        self.ended: dict[int, int] = {}

    def put(self, kind: str, t_ms: float, request: int = -1, **fields: float) -> None:
        self.buffer.append_record(KIND[kind], t_ms, rank=self.rank, request=request, **fields)  # type: ignore[arg-type]

    def arrive(self, request: int) -> None:
        self.put("arrival", 0.0, request, a=1, b=100, c=-1)
        self.tokens[request] = []

    def run_pass(self, end_ms: float, bursts: list[int], ends: list[int | None]) -> None:
        live = [request for request in self.tokens if request not in self.ended]
        burst = {r: bursts[i] for i, r in enumerate(self.tokens) if r in live and bursts[i]}
        steady = [r for r in burst if self.tokens[r] and r in self.emitted_last]
        self.put("rank_end", end_ms, x=self.previous_ms, a=sum(burst.values()), b=len(steady), c=len(burst))
        for request, count in burst.items():
            times = self.tokens[request]
            if not times:
                self.put("first_token", end_ms, request)
            elif request not in steady:
                self.put("resumed", end_ms, request, x=times[-1])
            if len(times) < 2 <= len(times) + count:
                self.put("second_token", end_ms, request)
            times.extend([end_ms] * count)
        for i, request in enumerate(self.tokens):
            status = ends[i]
            if request in live and status is not None and (status != COMPLETED or self.tokens[request]):
                self.end(request, end_ms, status)
        self.emitted_last = set(burst)
        self.previous_ms = end_ms

    def end(self, request: int, t_ms: float, status: int) -> None:
        times = self.tokens[request]
        last_ms = times[-1] if times else math.nan
        self.put("terminal", t_ms, request, a=status, b=len(times), d=-1, x=last_ms)
        self.ended[request] = status

    def cut(self, t_ms: float) -> None:
        for request, times in self.tokens.items():
            if request not in self.ended:
                self.put("cut", t_ms, request, a=len(times), x=times[-1] if times else math.nan)


def require_equal(collector: Collector, scripts: list[RankScript]) -> None:
    """Pool and columns are what the token times of all requests say."""
    expected: Counter[float] = Counter()
    columns = collector.columns()
    for script in scripts:
        for request, times in script.tokens.items():
            if script.ended.get(request) == COMPLETED:
                expected.update(b - a for a, b in itertools.pairwise(times))
            assert columns["output_tokens"][request] == len(times)
            assert columns["status"][request] == script.ended.get(request, -2)
            for name, index in (("first_token_ms", 0), ("second_token_ms", 1)):
                if len(times) > index:
                    assert columns[name][request] == times[index]
                else:
                    assert math.isnan(columns[name][request])
    values, weights = collector.gaps()
    assert dict(zip(values.tolist(), weights.tolist(), strict=True)) == dict(expected)
    assert values.tolist() == sorted(values.tolist())


@settings(max_examples=300, deadline=None)
@given(ranks=st.lists(RANK, min_size=1, max_size=2), start_ms=st.sampled_from([0.0, 0.1, 1e6 / 3]))
def test_pool_equals_a_model_with_every_token(
    ranks: list[list[tuple[float, list[int], list[int | None]]]], start_ms: float
) -> None:
    buffer = EventBuffer()
    scripts = [RankScript(rank, buffer) for rank in range(len(ranks))]
    for i, script in enumerate(scripts):
        for request in range(4):
            script.arrive(4 * i + request)
    collector = Collector(1, len(ranks))
    for script, passes in zip(scripts, ranks, strict=True):
        now_ms = start_ms
        for length_ms, bursts, ends in passes:
            now_ms += length_ms
            script.run_pass(now_ms, bursts, ends)
            collector.consume(buffer)
            buffer.clear()
        script.cut(now_ms)
    collector.consume(buffer)

    require_equal(collector, scripts)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), num_ranks=st.integers(1, 3))
def test_long_runs_forget_what_is_final(seed: int, num_ranks: int) -> None:
    """Hundreds of passes with requests that come and go, among them some that stay to the end."""
    random = Random(seed)
    buffer = EventBuffer()
    collector = Collector(1, num_ranks)
    scripts = [RankScript(rank, buffer) for rank in range(num_ranks)]
    now_ms = dict.fromkeys(range(num_ranks), random.choice([0.0, 0.1, 1e6 / 3]))
    stays = random.choice([0.0, 0.05, 0.5])
    next_request = 0
    for _ in range(300):
        rank = random.randrange(num_ranks)
        script = scripts[rank]
        while len(script.tokens) - len(script.ended) < 3:
            script.arrive(next_request)
            next_request += 1
        now_ms[rank] += random.choice([0.0, 0.25, 1.0, 7.5, random.random()])
        bursts = [random.choice([0, 1, 1, 1, 2]) for _ in script.tokens]
        ends = [
            random.choice([COMPLETED, COMPLETED, CANCELLED, FAILED])
            if random.random() < 0.1 and random.random() >= stays else None
            for _ in script.tokens
        ]  # fmt: skip
        script.run_pass(now_ms[rank], bursts, ends)
        collector.consume(buffer)
        buffer.clear()
    for rank, script in enumerate(scripts):
        script.cut(now_ms[rank])
    collector.consume(buffer)
    require_equal(collector, scripts)
