"""Telemetry samples: traffic of an interval and the gauges published at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.model.request import ceil_div

if TYPE_CHECKING:
    from tests.model.engine_model import Figures
    from tests.model.worker import Worker


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _interval_metrics(preemptions: int, hit_tokens: int = 0, total_tokens: int = 0) -> dict[str, int]:
    return {"cache_hit_tokens": hit_tokens, "cache_total_tokens": total_tokens, "preemptions": preemptions}


def _without_total(gauges: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in gauges.items() if name != "preemptions"}


# What a sample says of the roles and states that workers of one kind, all active, never have.
NO_PREFILL_ROLE: dict[str, Any] = {
    "prefill_scheduler_metrics": [],
    "prefill_interval_metrics": _interval_metrics(0),
    "router_pending_prefill_requests": 0,
    "router_pending_decode_requests": 0,
    "active_prefill_ids": [],
    "starting_prefill_ids": [],
    "starting_decode_ids": [],
    "draining_prefill_ids": [],
    "draining_decode_ids": [],
}


@dataclass
class Interval:
    """What happened since the last sample."""

    since_ms: float
    arrivals: int = 0
    hit_rates: list[float] = field(default_factory=list)  # of placements by cached prefixes
    forwards: int = 0
    forward_tokens: int = 0
    ends: list[Figures] = field(default_factory=list)
    hit_tokens: int = 0
    total_tokens: int = 0

    @property
    def empty(self) -> bool:
        return not (self.arrivals or self.forwards or self.ends or self.total_tokens)

    def traffic(self, at_ms: float) -> dict[str, Any]:
        ttft = [f.token_ms[0] - f.arrival_ms for f in self.ends if f.token_ms and f.arrival_ms is not None]
        gaps = [(f.token_ms[-1] - f.token_ms[0]) / (len(f.token_ms) - 1) for f in self.ends if len(f.token_ms) > 1]
        ttft = [v for v in ttft if v > 0.0]  # zeros are not counted
        return {
            "duration_s": (at_ms - self.since_ms) / 1000.0,
            "arriving_requests": self.arrivals,
            "completed_requests": len(self.ends),
            "avg_isl": _mean([f.turn.input_tokens for f in self.ends]),
            "avg_osl": _mean([len(f.token_ms) for f in self.ends]),
            "avg_ttft_ms": _mean(ttft),
            "avg_itl_ms": _mean(gaps),
            "ttft_count": len(ttft),
            "itl_count": len(gaps),
            "avg_router_kv_hit_rate": _mean(self.hit_rates),
            "router_kv_hit_rate_count": len(self.hit_rates),
            "avg_accept_length": self.forward_tokens / self.forwards if self.forwards else None,
            "accept_length_forward_count": self.forwards,
        }


class Telemetry:
    """A baseline at 0, a sample at every multiple of the interval, a last one when the run ends in between."""

    def __init__(self, interval_ms: float) -> None:
        self.interval_ms = interval_ms
        self.samples: list[dict[str, Any]] = []
        self.tick = 1
        self.interval = Interval(0.0)
        self.told_preemptions = 0

    def arrived(self, figures: Figures, block_size: int) -> None:
        self.interval.arrivals += 1
        if figures.overlap_blocks is not None:
            prompt_blocks = ceil_div(figures.turn.input_tokens, block_size)
            self.interval.hit_rates.append(figures.overlap_blocks / prompt_blocks)

    def decoded(self, batch: int, tokens: int) -> None:
        self.interval.forwards += batch
        self.interval.forward_tokens += tokens

    def looked_up(self, hit_tokens: int, computed_tokens: int) -> None:
        """A pass of a flavour that counts what its admissions found."""
        self.interval.hit_tokens += hit_tokens
        self.interval.total_tokens += hit_tokens + computed_tokens

    def ended(self, figures: Figures) -> None:
        if figures.status == "completed":
            self.interval.ends.append(figures)

    @property
    def next_ms(self) -> float:
        """The next multiple of the interval."""
        return self.tick * self.interval_ms

    def baseline(self, workers: Sequence[Worker]) -> None:
        """What stands when the instant 0 is over; it uses nothing up."""
        self._append("baseline", 0.0, Interval(0.0), workers)

    def due(self, now_ms: float, workers: Sequence[Worker]) -> None:
        """A sample at the time of an event, if its time has come."""
        if self.next_ms == now_ms:
            self._append("periodic", now_ms, self.interval, workers)
            self.interval = Interval(now_ms)
            self.tick += 1

    def final(self, now_ms: float, workers: Sequence[Worker]) -> None:
        if now_ms > self.interval.since_ms or not self.interval.empty:
            self._append("final", now_ms, self.interval, workers)

    def _append(self, kind: str, at_ms: float, interval: Interval, workers: Sequence[Worker]) -> None:
        preemptions = 0
        if kind != "baseline":
            total = sum(gauges["preemptions"] for worker in workers for gauges in worker.published)
            preemptions, self.told_preemptions = total - self.told_preemptions, total
        self.samples.append(
            {
                "sample_ordinal": len(self.samples),
                "kind": kind,
                "interval_start_ms": interval.since_ms,
                "sampled_at_ms": at_ms,
                "traffic": interval.traffic(at_ms),
                "decode_scheduler_metrics": [
                    {"worker_id": worker.index, "dp_rank": rank, **_without_total(gauges)}
                    for worker in workers
                    for rank, gauges in enumerate(worker.published)
                ],
                "decode_interval_metrics": _interval_metrics(preemptions, interval.hit_tokens, interval.total_tokens),
                "active_decode_ids": [worker.index for worker in workers],
                **NO_PREFILL_ROLE,
            }
        )

    def as_dict(self) -> dict[str, Any]:
        return {"sample_interval_ms": self.interval_ms, "samples": self.samples}
