"""Telemetry samples: what a fleet's metrics endpoint would have shown at regular times.

Decides the content of a sample and which samples a run has. Never decides when an instant is over: its caller takes a
sample once everything at that instant has been consumed by the collector.

A run has one `baseline` at time 0 (gauges only: its counters are zero and nothing is consumed), a `periodic` sample at
every multiple of the interval while work remains, and a `final` one at the end unless nothing happened since the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mocker_replay._core.collector import Collector
from mocker_replay.errors import ConfigError

Sample = dict[str, Any]
_NOTHING: Final[dict[str, Any]] = dict.fromkeys(
    (
        "arrivals",
        "completions",
        "input_tokens",
        "output_tokens",
        "ttft_count",
        "mean_gap_count",
        "decode_tokens",
        "decode_forwards",
        "preemptions",
        "prefill_preemptions",
        "hit_tokens",
        "prefill_hit_tokens",
        "looked_up_tokens",
        "prefill_looked_up_tokens",
        "ttft_sum_ms",
        "mean_gap_sum_ms",
    ),
    0,
)


class SampledPool(NamedTuple):
    """Workers of one kind; in a sample they are numbered from 0."""

    first_worker: int
    num_workers: int
    dp_size: int
    num_gpu_blocks: int  # of one rank


class TelemetrySampler:
    """Takes samples out of a collector's gauges and interval counters and hands them to `emit`, in order."""

    def __init__(
        self,
        collector: Collector,
        *,
        num_gpu_blocks: int = 0,
        pools: tuple[SampledPool, ...] = (),
        interval_ms: float,
        emit: Callable[[Sample], None],
        router_hits: Callable[[float], tuple[float, int]] | None = None,
    ) -> None:
        if not (math.isfinite(interval_ms) and interval_ms > 0.0):
            raise ConfigError(f"telemetry_sample_interval_ms must be finite and positive, got {interval_ms}")
        self.interval_ms = interval_ms
        self._collector = collector
        everybody = SampledPool(0, collector.num_workers, collector.dp_size, num_gpu_blocks)
        self._pools = pools or (None, everybody)  # prefill workers, the others
        self._emit = emit
        self._router_hits = router_hits  # sum and number of hit rates by the time of a sample; None: round robin
        self._ordinal = 0
        self._num_periodic = 0
        self._sampled_at_ms = 0.0

    @property
    def next_ms(self) -> float:
        """Time of the next periodic sample [ms]."""
        return (self._num_periodic + 1) * self.interval_ms

    def take_baseline(self) -> None:
        """The sample at time 0, before anything is counted."""
        assert self._ordinal == 0, "the baseline comes first and once"
        self._put("baseline", 0.0, _NOTHING, (0.0, 0))

    def take_periodic(self) -> None:
        """The sample at `next_ms`."""
        at_ms = self.next_ms
        self._num_periodic += 1
        self._put("periodic", at_ms, self._collector.take_interval(), self._take_hits(at_ms))

    def finish(self, end_ms: float) -> None:
        """The last sample, at the last processed event, if there is anything new to tell."""
        assert end_ms >= self._sampled_at_ms, "a run ends after its last sample"
        counters, hits = self._collector.take_interval(), self._take_hits(math.inf)
        if end_ms > self._sampled_at_ms or any(counters.values()) or hits[1]:
            self._put("final", end_ms, counters, hits)

    def _put(self, kind: str, at_ms: float, counters: dict[str, Any], hits: tuple[float, int]) -> None:
        prefill, decode = self._pools
        assert decode is not None, "somebody decodes"
        self._emit(
            {
                "sample_ordinal": self._ordinal,
                "kind": kind,
                "interval_start_ms": self._sampled_at_ms,
                "sampled_at_ms": at_ms,
                "traffic": _traffic(counters, (at_ms - self._sampled_at_ms) / 1000.0, hits),
                "prefill_scheduler_metrics": [] if prefill is None else self._gauges(prefill),
                "decode_scheduler_metrics": self._gauges(decode),
                "prefill_interval_metrics": _interval_metrics(counters, of_prefill_workers=True),
                "decode_interval_metrics": _interval_metrics(counters, of_prefill_workers=False),
                "router_pending_prefill_requests": 0,
                "router_pending_decode_requests": 0,
                "active_prefill_ids": [] if prefill is None else list(range(prefill.num_workers)),
                "active_decode_ids": list(range(decode.num_workers)),
                "starting_prefill_ids": [],
                "starting_decode_ids": [],
                "draining_prefill_ids": [],
                "draining_decode_ids": [],
            }
        )
        self._ordinal += 1
        self._sampled_at_ms = at_ms

    def _take_hits(self, at_ms: float) -> tuple[float, int]:
        """Hit rates of the interval that ends with a sample; the final one is behind everything."""
        return (0.0, 0) if self._router_hits is None else self._router_hits(at_ms)

    def _gauges(self, pool: SampledPool) -> list[dict[str, Any]]:
        total, gauges = pool.num_gpu_blocks, self._collector.gauges().tolist()
        return [
            {
                "worker_id": worker,
                "dp_rank": rank,
                "active_blocks": active,
                "inactive_blocks": inactive,
                "total_blocks": total,
                "active_cache_usage": active / total,
                "physical_cache_usage": (active + inactive) / total,
                "running_requests": running,
                "waiting_requests": waiting,
            }
            for worker in range(pool.num_workers)
            for rank in range(pool.dp_size)
            for active, inactive, running, waiting in (
                gauges[(pool.first_worker + worker) * self._collector.dp_size + rank],
            )
        ]


def _traffic(counters: dict[str, Any], duration_s: float, hits: tuple[float, int]) -> dict[str, Any]:
    completions, forwards = counters["completions"], counters["decode_forwards"]
    return {
        "duration_s": duration_s,
        "arriving_requests": counters["arrivals"],
        "completed_requests": completions,
        "avg_isl": _mean(counters["input_tokens"], completions),
        "avg_osl": _mean(counters["output_tokens"], completions),
        "avg_ttft_ms": _mean(counters["ttft_sum_ms"], counters["ttft_count"]),
        "avg_itl_ms": _mean(counters["mean_gap_sum_ms"], counters["mean_gap_count"]),
        "ttft_count": counters["ttft_count"],
        "itl_count": counters["mean_gap_count"],
        "avg_router_kv_hit_rate": _mean(*hits),
        "router_kv_hit_rate_count": hits[1],
        "avg_accept_length": counters["decode_tokens"] / forwards if forwards else None,
        "accept_length_forward_count": forwards,
    }


def _interval_metrics(counters: dict[str, Any], *, of_prefill_workers: bool) -> dict[str, int]:
    """Counters of the schedulers; a flavour reports what it found in the cache here, or its preemptions."""
    told = {"cache_hit_tokens": "hit_tokens", "cache_total_tokens": "looked_up_tokens", "preemptions": "preemptions"}
    prefill = {name: counters[f"prefill_{counter}"] for name, counter in told.items()}
    return prefill if of_prefill_workers else {name: counters[told[name]] - prefill[name] for name in told}


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
