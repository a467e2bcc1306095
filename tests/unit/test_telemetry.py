"""Telemetry samples: the peer's own samples of a time-limited run, told again from records by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mocker_replay._core.collector import Collector
from mocker_replay._core.event_buffer import KIND_NAMES, EventBuffer
from mocker_replay.errors import ConfigError
from mocker_replay.report.telemetry import TelemetrySampler

from .recompute import case_path

KIND = {name: number for number, name in enumerate(KIND_NAMES)}


class Run:
    """A collector, fed record by record, with a sampler on it."""

    def __init__(self, interval_ms: float = 50.0, num_gpu_blocks: int = 1000) -> None:
        self.collector = Collector(1, 1)
        self.samples: list[dict[str, Any]] = []
        self.sampler = TelemetrySampler(
            self.collector, num_gpu_blocks=num_gpu_blocks, interval_ms=interval_ms, emit=self.samples.append
        )

    def put(self, kind: str, t_ms: float, **fields: Any) -> None:
        buffer = EventBuffer()
        buffer.append_record(KIND[kind], t_ms, rank=0, **fields)
        self.collector.consume(buffer)

    def arrive(self, request: int, t_ms: float, *gauges: int) -> None:
        self.put("arrival", t_ms, request=request, a=64, b=5, c=-1)
        self.gauges(t_ms, *gauges)

    def gauges(self, t_ms: float, active: int, inactive: int, running: int, waiting: int) -> None:
        self.put("gauges", t_ms, a=active, b=inactive, c=running, d=waiting)

    def one_request(self) -> None:
        """Prompt of one block, first token at 10, four more 1 ms apart."""
        previous_ms = math.nan
        for i, t_ms in enumerate((10.0, 11.0, 12.0, 13.0, 14.0)):
            self.put("rank_end", t_ms, a=1, b=min(i, 1), c=1, e=min(i, 1), f=min(i, 1), x=previous_ms)
            if i == 0:
                self.put("first_token", t_ms, request=0)
            previous_ms = t_ms
        self.put("terminal", 14.0, request=0, a=0, b=5, d=-1, x=14.0)
        self.gauges(14.0, 0, 1, 0, 0)


def expected(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(case_path(name).read_text())["expect"]["telemetry"]
    return told


def test_samples_of_a_run_that_ends_on_a_tick() -> None:
    run = Run()
    run.arrive(0, 0.0, 0, 0, 0, 1)
    run.sampler.take_baseline()
    run.one_request()
    assert run.sampler.next_ms == 50.0
    run.sampler.take_periodic()
    run.arrive(1, 100.0, 0, 1, 0, 1)
    run.sampler.take_periodic()
    run.sampler.finish(100.0)
    assert {"sample_interval_ms": 50.0, "samples": run.samples} == expected("mooncake-max-sim-time-100_0")


def test_samples_of_a_run_that_ends_between_ticks() -> None:
    run = Run()
    run.arrive(0, 0.0, 0, 0, 0, 1)
    run.sampler.take_baseline()
    run.one_request()
    run.sampler.finish(14.0)
    assert {"sample_interval_ms": 50.0, "samples": run.samples} == expected("mooncake-max-sim-time-14_0")


def test_an_end_at_time_zero_is_told_when_something_was_counted() -> None:
    run = Run()
    run.arrive(0, 0.0, 0, 0, 0, 0)
    run.sampler.take_baseline()
    run.sampler.finish(0.0)
    assert [(sample["kind"], sample["sampled_at_ms"]) for sample in run.samples] == [("baseline", 0.0), ("final", 0.0)]
    assert run.samples[1]["traffic"]["arriving_requests"] == 1


def test_sample_times_are_multiples_not_sums() -> None:
    run = Run(interval_ms=0.1)
    run.sampler.take_baseline()
    for _ in range(3):
        run.sampler.take_periodic()
    assert [sample["sampled_at_ms"] for sample in run.samples] == [0.0, 0.1, 0.2, 0.30000000000000004]
    assert run.samples[3]["traffic"]["duration_s"] == 0.00010000000000000003
    assert [sample["sample_ordinal"] for sample in run.samples] == [0, 1, 2, 3]


def test_every_rank_has_its_gauges() -> None:
    collector = Collector(2, 2)
    samples: list[dict[str, Any]] = []
    TelemetrySampler(collector, num_gpu_blocks=8, interval_ms=1.0, emit=samples.append).take_baseline()
    metrics = samples[0]["decode_scheduler_metrics"]
    assert [(rank["worker_id"], rank["dp_rank"]) for rank in metrics] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert samples[0]["active_decode_ids"] == [0, 1]


@pytest.mark.parametrize("interval_ms", [0.0, -1.0, math.inf, math.nan])
def test_an_interval_that_is_no_interval_is_refused(interval_ms: float) -> None:
    with pytest.raises(ConfigError, match="telemetry_sample_interval_ms"):
        Run(interval_ms=interval_ms)
