"""Collector: hand-made event records against figures worked out by hand."""

from __future__ import annotations

import math

import pytest

from mocker_replay._core.collector import COLUMN_TYPES, Collector
from mocker_replay._core.event_buffer import KIND_NAMES, EventBuffer

KIND = {name: number for number, name in enumerate(KIND_NAMES)}
COMPLETED, REJECTED, CANCELLED, FAILED = range(4)


class Script:
    """Writes records the way the engine orders them, for one rank unless told otherwise."""

    def __init__(self) -> None:
        self.buffer = EventBuffer()
        self.previous_ms: dict[tuple[int, int], float] = {}

    def put(self, kind: str, t_ms: float, **fields: object) -> None:
        self.buffer.append_record(KIND[kind], t_ms, **fields)  # type: ignore[arg-type]

    def arrive(self, request: int, t_ms: float = 0.0, tokens: tuple[int, int] = (8, 4), **fields: object) -> None:
        self.put("arrival", t_ms, rank=fields.pop("rank", 0), request=request, a=tokens[0], b=tokens[1], c=-1, **fields)

    def rank_end(
        self,
        t_ms: float,
        emitters: int,
        steady: int,
        *,
        tokens: int | None = None,
        forwards: int | None = None,
        accepted: int | None = None,
        prefill: int = 0,
        worker: int = 0,
        rank: int = 0,
    ) -> None:
        x = self.previous_ms.get((worker, rank), math.nan)
        self.put(
            "rank_end",
            t_ms,
            worker=worker,
            rank=rank,
            x=x,
            a=emitters if tokens is None else tokens,
            b=steady,
            c=emitters,
            d=prefill,
            e=steady if forwards is None else forwards,
            f=steady if accepted is None else accepted,
        )
        self.previous_ms[worker, rank] = t_ms

    def end(
        self,
        request: int,
        t_ms: float,
        output: int,
        status: int = COMPLETED,
        last_ms: float = math.nan,
        reason: int = 0,
        words: list[int] | None = None,
    ) -> None:
        self.put(
            "terminal",
            t_ms,
            rank=0,
            request=request,
            a=status,
            b=output,
            c=reason,
            d=-1,
            x=last_ms,
            words=words,
        )

    def collect(self, num_workers: int = 1, dp_size: int = 1) -> Collector:
        collector = Collector(num_workers, dp_size)
        collector.consume(self.buffer)
        return collector


def pooled(collector: Collector) -> list[tuple[float, int]]:
    values, weights = collector.gaps()
    return list(zip(values.tolist(), weights.tolist(), strict=True))


def two_requests(status_of_second: int) -> Script:
    """r0: tokens at 10, 12, 13, 14; r1: tokens at 12, 13, 14. r0 completes, r1 ends as asked."""
    script = Script()
    for request in range(2):
        script.arrive(request, float(request))
        script.put("admission", float(request), rank=0, request=request, a=4 * request)
    script.rank_end(10.0, 1, 0, prefill=8)
    script.put("first_token", 10.0, rank=0, request=0)
    script.rank_end(12.0, 2, 1, prefill=4)
    script.put("second_token", 12.0, rank=0, request=0)
    script.put("first_token", 12.0, rank=0, request=1)
    script.rank_end(13.0, 2, 2)
    script.put("second_token", 13.0, rank=0, request=1)
    script.rank_end(14.0, 2, 2)
    script.end(0, 14.0, 4, last_ms=14.0)
    script.end(1, 14.0, 3, status_of_second, last_ms=14.0)
    return script


def test_gaps_are_weighted_by_the_requests_that_emitted_after_the_previous_pass() -> None:
    assert pooled(two_requests(COMPLETED).collect()) == [(1.0, 4), (2.0, 1)]


@pytest.mark.parametrize("status", [CANCELLED, FAILED])
def test_gaps_of_a_request_that_did_not_complete_are_taken_back(status: int) -> None:
    assert pooled(two_requests(status).collect()) == [(1.0, 2), (2.0, 1)]


def test_columns_hold_what_the_records_said() -> None:
    collector = two_requests(CANCELLED).collect()
    columns = collector.columns()
    assert collector.num_rows == 2
    assert columns["arrival_ms"].tolist() == [0.0, 1.0]
    assert columns["first_admit_ms"].tolist() == [0.0, 1.0]
    assert columns["first_token_ms"].tolist() == [10.0, 12.0]
    assert columns["second_token_ms"].tolist() == [12.0, 13.0]
    assert columns["last_token_ms"].tolist() == [14.0, 14.0]
    assert columns["terminal_ms"].tolist() == [14.0, 14.0]
    assert columns["output_tokens"].tolist() == [4, 3]
    assert columns["reused_tokens_max"].tolist() == [0, 4]
    assert columns["status"].tolist() == [COMPLETED, CANCELLED]
    assert not columns["status"].flags.writeable
    for name, (dtype, _) in COLUMN_TYPES.items():
        assert columns[name].dtype == dtype, name


def test_totals_count_every_pass() -> None:
    totals = two_requests(COMPLETED).collect().totals()
    assert totals["rank_passes"] == 4
    assert totals["tokens"] == 7
    assert totals["prefill_tokens"] == 12
    assert totals["decode_tokens"] == totals["decode_forwards"] == 5
    assert totals["arrivals"] == 2


def preempted(status: int) -> Script:
    """r0 emits at 10, 11, is preempted, resumes at 31 and emits at 32; r1 emits at each pass end from 10 to 32."""
    script = Script()
    for request in range(2):
        script.arrive(request)
        script.put("admission", 0.0, rank=0, request=request, a=2)
    script.rank_end(10.0, 2, 0)
    for request in range(2):
        script.put("first_token", 10.0, rank=0, request=request)
    script.rank_end(11.0, 2, 2)
    script.put("preemption", 11.0, rank=0, request=0, a=2, b=1, words=[0] * 7)
    script.rank_end(21.0, 1, 1)
    script.put("admission", 21.0, rank=0, request=0, a=6, b=1)
    script.rank_end(31.0, 2, 1)
    script.put("resumed", 31.0, rank=0, request=0, x=11.0)
    script.rank_end(32.0, 2, 2)
    script.end(1, 32.0, 5, last_ms=32.0)
    script.end(0, 32.0, 4, status, last_ms=32.0)
    return script


def test_an_interruption_is_one_gap() -> None:
    assert pooled(preempted(COMPLETED).collect()) == [(1.0, 4), (10.0, 2), (20.0, 1)]


def test_an_interrupted_request_that_fails_leaves_nothing_behind() -> None:
    assert pooled(preempted(FAILED).collect()) == [(1.0, 2), (10.0, 2)]


def test_readmissions_are_kept_beside_the_first_admission() -> None:
    columns = preempted(COMPLETED).collect().columns()
    assert columns["num_admissions"].tolist() == [2, 1]
    assert columns["num_preemptions"].tolist() == [1, 0]
    assert columns["first_admit_ms"].tolist() == [0.0, 0.0]
    assert columns["reused_tokens_first"].tolist() == [2, 2]
    assert columns["reused_tokens_max"].tolist() == [6, 2]
    assert columns["readmission_request"].tolist() == [0]
    assert columns["readmission_ms"].tolist() == [21.0]
    assert columns["readmission_reused_tokens"].tolist() == [6]


@pytest.mark.parametrize(("status", "expected"), [(COMPLETED, [(0.0, 5), (1.0, 1)]), (CANCELLED, [])])
def test_burst_tokens_are_gaps_of_zero(status: int, expected: list[tuple[float, int]]) -> None:
    script = Script()
    script.arrive(0, tokens=(8, 7))
    script.rank_end(11.0, 1, 0, tokens=4)
    script.put("first_token", 11.0, rank=0, request=0)
    script.put("second_token", 11.0, rank=0, request=0)
    script.rank_end(12.0, 1, 1, tokens=3, accepted=4)
    script.end(0, 12.0, 7, status, last_ms=12.0)
    collector = script.collect()
    assert pooled(collector) == expected
    interval = collector.take_interval()
    # The first pass is no decode pass; the second accepted four tokens and needed three.
    assert (interval["decode_tokens"], interval["decode_forwards"]) == (4, 1)


def test_a_cut_request_keeps_its_figures_but_not_its_gaps() -> None:
    script = Script()
    script.arrive(0)
    for t_ms, steady in ((10.0, 0), (11.0, 1), (12.0, 1)):
        script.rank_end(t_ms, 1, steady)
        if not steady:
            script.put("first_token", t_ms, rank=0, request=0)
    script.put("cut", 12.0, rank=0, request=0, a=3, x=12.0)
    collector = script.collect()
    assert pooled(collector) == []
    assert collector.columns()["status"].tolist() == [-2]
    assert collector.columns()["output_tokens"].tolist() == [3]
    assert math.isnan(collector.columns()["terminal_ms"][0])


def test_passes_of_no_length_count_as_zero_gaps() -> None:
    script = Script()
    script.arrive(0)
    for i in range(3):
        script.rank_end(5.0, 1, min(i, 1))
        if i == 0:
            script.put("first_token", 5.0, rank=0, request=0)
    script.end(0, 5.0, 3, last_ms=5.0)
    assert pooled(script.collect()) == [(0.0, 2)]


def test_ranks_have_passes_of_their_own() -> None:
    script = Script()
    for request, (worker, rank) in enumerate([(0, 1), (1, 0)]):
        script.arrive(request, worker=worker, rank=rank)
        script.rank_end(10.0, 1, 0, worker=worker, rank=rank)
        script.put("first_token", 10.0, worker=worker, rank=rank, request=request)
        script.rank_end(11.0 + request, 1, 1, worker=worker, rank=rank)
        script.end(request, 11.0 + request, 2, (COMPLETED, CANCELLED)[request], last_ms=11.0 + request)
    assert pooled(script.collect(num_workers=2, dp_size=2)) == [(1.0, 1)]


def test_rejection_keeps_its_figures_and_has_no_admission() -> None:
    script = Script()
    script.arrive(0, 3.0, (100, 2))
    script.end(0, 10.0, 0, REJECTED, reason=3, words=[7, 4])
    columns = script.collect().columns()
    assert columns["status"].tolist() == [REJECTED]
    assert columns["reason"].tolist() == [3]
    assert (columns["needed"][0], columns["available"][0]) == (7, 4)
    assert columns["num_admissions"].tolist() == [0]
    assert math.isnan(columns["first_admit_ms"][0])


def test_gauges_are_the_newest_of_each_rank() -> None:
    script = Script()
    script.put("gauges", 0.0, worker=0, rank=1, a=1, b=2, c=3, d=4)
    script.put("gauges", 1.0, worker=0, rank=1, a=5, b=6, c=7, d=8, e=1)
    assert script.collect(dp_size=2).gauges().tolist() == [[0, 0, 0, 0], [5, 6, 7, 8]]


def test_a_preemption_counts_for_telemetry_when_gauges_are_published() -> None:
    script = Script()
    script.arrive(0)
    script.put("preemption", 3.0, rank=0, request=0, words=[0] * 7)
    collector = script.collect()
    assert collector.totals()["preemptions"] == 1
    assert collector.take_interval()["preemptions"] == 0
    later = Script()
    later.put("gauges", 4.0, rank=0)
    collector.consume(later.buffer)
    assert collector.take_interval()["preemptions"] == 1


def test_an_interval_is_taken_once() -> None:
    collector = two_requests(CANCELLED).collect()
    interval = collector.take_interval()
    assert interval["arrivals"] == 2
    assert (interval["completions"], interval["input_tokens"], interval["output_tokens"]) == (1, 8, 4)
    assert (interval["ttft_sum_ms"], interval["ttft_count"]) == (10.0, 1)
    assert (interval["mean_gap_sum_ms"], interval["mean_gap_count"]) == (4.0 / 3, 1)
    assert not any(collector.take_interval().values())


def test_rows_may_arrive_out_of_order_and_far_apart() -> None:
    script = Script()
    script.arrive(5000, 1.0)
    script.arrive(2, 2.0)
    columns = script.collect().columns()
    assert len(columns["status"]) == 5001
    assert columns["status"][[2, 5000]].tolist() == [-2, -2]
    assert (columns["status"] == -1).sum() == 4999
    assert columns["worker"][3] == -1


def test_arrays_handed_out_survive_growth() -> None:
    script = Script()
    script.arrive(0, 1.0)
    collector = script.collect()
    early = collector.columns()
    later = Script()
    for request in range(1, 5000):
        later.arrive(request, 2.0)
    collector.consume(later.buffer)
    assert early["arrival_ms"].tolist() == [1.0]
    assert collector.columns()["arrival_ms"][:2].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (("first_token", {"rank": 0, "request": 0}), "has not arrived"),
        (("terminal", {"rank": 0, "request": 9, "d": -1}), "has not arrived"),
        (("arrival", {"rank": 3, "request": 0}), "no such worker or rank"),
        (("arrival", {"rank": 0, "request": -1}), "not negative"),
        (("rank_end", {"rank": 0, "b": 1, "c": 1, "a": 1, "x": 99.0}), "not ended before"),
        (("rank_end", {"rank": 0, "b": 1, "c": 1, "a": 1}), "not ended before"),
    ],
)
def test_contradicting_records_are_refused(record: tuple[str, dict[str, int]], message: str) -> None:
    script = Script()
    script.put(record[0], 1.0, **record[1])
    with pytest.raises(RuntimeError, match=message):
        script.collect()


def test_a_token_count_that_passes_do_not_bear_out_is_refused() -> None:
    script = Script()
    script.arrive(0)
    script.rank_end(1.0, 1, 0)
    script.put("first_token", 1.0, rank=0, request=0)
    script.rank_end(2.0, 1, 1)
    script.end(0, 2.0, 5, CANCELLED, last_ms=2.0)
    with pytest.raises(RuntimeError, match="another number of tokens"):
        script.collect()
