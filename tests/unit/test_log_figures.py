"""Figures taken from the lines of a log: those of the summary of the run, in flat memory."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from msgspec import structs

from mocker_replay._core.log_figures import EXACT_MAX, SAMPLES, LogFigures
from mocker_replay.replay import replay
from tests.support.logs import generated_lines, random_run, read_log

FIGURES = ("mean", "median", "p99")


def figures_of(lines: list[bytes]) -> LogFigures:
    figures = LogFigures()
    figures.feed(b"".join(line + b"\n" for line in lines))
    return figures


@pytest.mark.parametrize("seed", range(30))
def test_figures_are_those_of_the_summary(seed: int, tmp_path: Path) -> None:
    run = random_run(seed, level="tokens")
    options = run.options
    if seed % 3 == 0:
        options = structs.replace(options, max_sim_time_ms=30.0)
    config = dict(run.config)
    if seed % 4 == 0:
        config["engine"] = {**config["engine"], "aic_nextn": 2, "aic_nextn_accept_rates": "0.7,0.5"}
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in run.rows), encoding="utf-8")
    summary = replay(trace, config, options, events=tmp_path / "log.jsonl", event_level="tokens").summary
    figures = figures_of(read_log(tmp_path / "log.jsonl").lines)
    counts = figures.line_counts()
    named = {"completed": "finish", "rejected": "rejection", "failed": "failure", "cancelled": "cancellation"}
    assert {name: counts[kind] for name, kind in named.items()} == {name: summary[f"{name}_requests"] for name in named}
    assert counts["arrival"] == summary["num_requests"]
    assert counts["preemption"] == summary["preemptions"]
    assert counts["cut"] == summary["cut_requests"]
    assert figures.totals() == (summary["total_output_tokens"], summary["duration_ms"])
    for name, (count, *found, is_exact) in figures.describe().items():
        assert is_exact
        if count == 0:
            assert found == [None, None, None]
            assert summary[f"mean_{name}"] == 0.0
            continue
        mean, *percentiles = (summary[f"{statistic}_{name}"] for statistic in FIGURES)
        assert found[1:] == percentiles, name
        assert found[0] == pytest.approx(mean, rel=1e-12), name


def test_a_copy_goes_on_by_itself() -> None:
    lines = [line[:-1] for line in generated_lines(3, 600, 5)]
    whole = figures_of(lines)
    for cut in (0, 1, 100, 301, len(lines)):
        first = figures_of(lines[:cut])
        second = first.copy()
        second.feed(b"".join(line + b"\n" for line in lines[cut:]))
        assert second.describe() == whole.describe()
        assert second.line_counts() == whole.line_counts()
        assert second.totals() == whole.totals()
        assert first.line_counts() == figures_of(lines[:cut]).line_counts()


def test_very_many_samples_are_kept_in_buckets() -> None:
    rng = random.Random(1)
    figures = LogFigures()
    values = []
    for number in range(EXACT_MAX + 5_000):
        ttft_ms = rng.choice([0.0, rng.expovariate(1e-3), rng.lognormvariate(3.0, 2.0)])
        values.append(ttft_ms)
        who = f'"request":"r{number}"'
        figures.feed(
            f'{{"t_ms":0.0,"event":"arrival",{who}}}\n'
            f'{{"t_ms":{ttft_ms!r},"event":"first_token",{who}}}\n'
            f'{{"t_ms":1e6,"event":"finish",{who},"output_tokens":1,"last_token_ms":{ttft_ms!r}}}\n'.encode()
        )
    values.sort()
    count, mean, median, p99, is_exact = figures.describe()["ttft_ms"]
    assert (count, is_exact) == (len(values), False)
    assert mean == pytest.approx(math.fsum(values) / len(values), rel=1e-15)
    for found, percent in ((median, 50), (p99, 99)):
        exact = values[math.floor((len(values) - 1) * percent / 100 + 0.5)]
        assert found == pytest.approx(exact, rel=0.5e-3)
    assert figures.copy().describe() == figures.describe()


def test_lines_that_contradict_each_other_are_counted_as_they_stand() -> None:
    figures = LogFigures()
    figures.feed(
        b'{"t_ms":5.0,"event":"finish","request":"r0","output_tokens":4,"last_token_ms":5.0}\n'
        b'{"t_ms":1.0,"event":"arrival","request":"r1"}\n'
        b'{"t_ms":3.0,"event":"tokens","request":"r1","tokens":99999999999999,"total":1}\n'
        b'{"t_ms":null,"event":"first_token","request":"r1"}\n'
        b'{"t_ms":"x","event":"pass_start","worker":-1,"pass":0}\n'
        b'{"t_ms":2.0,"event":"pass_end","worker":99999999999,"pass":0}\n'
    )
    assert figures.line_counts()["finish"] == 1
    assert {name: figures.describe()[name][0] for name in SAMPLES} == dict.fromkeys(SAMPLES, 0)
    assert figures.place_of(0) is None


def test_the_place_of_a_worker_and_the_worker_of_a_request() -> None:
    figures = LogFigures()
    figures.feed(
        b'{"seq":0,"t_ms":0.5,"event":"arrival","request":"a \\"b\\"","worker":1,"rank":0}\n'
        b'{"seq":1,"t_ms":1.0,"event":"pass_start","worker":1,"pass":7,"end_ms":2.0,"ranks":[]}\n'
    )
    assert figures.place_of(1) == (7, "pass_start", 1.0)
    assert figures.place_of(0) is None
    assert figures.place_of(2) is None
    assert figures.worker_of(b'"a \\"b\\""') == 1
    assert figures.worker_of(b'"a"') is None
    with pytest.raises(IndexError):
        figures.feed(b"a\n", 3)


def test_requests_that_ended_are_forgotten() -> None:
    figures = LogFigures()
    for line in generated_lines(5, 40_000, 50):
        figures.feed(line)
    number = figures.line_counts()["arrival"]
    assert number > 1_000
    assert [figures.worker_of(f'"r{i}"'.encode()) for i in range(number)] == [None] * number
