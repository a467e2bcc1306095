"""What a comparison found, for people and programs. Holds facts; decides nothing."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs


class Verdict(enum.StrEnum):
    """What may be said of a metric of a variant, against the baseline."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"  # the whole interval lies within the margin
    UNDECIDED = "undecided"


class Basis(enum.StrEnum):
    """What a verdict rests on."""

    BLOCKS = "blocks"  # stretches of the trace
    REPLICATES = "replicates"  # jittered arrivals
    BOTH = "both"  # the wider interval of the two
    EXACT = "exact"  # counts, or runs in which every request has the same figure
    NONE = "none"


class MetricResult(Struct, frozen=True):
    """One metric of one variant."""

    name: str
    unit: str
    higher_is_better: bool
    baseline: float | None  # with replicates the mean over them; None where there is no sample
    variant: float | None
    verdict: Verdict
    basis: Basis
    interval: tuple[float, float] | None = None  # of `relative`; of `change` where the baseline is 0
    num_blocks: int | None = None
    reason: str = ""  # why it is undecided

    @property
    def change(self) -> float | None:
        return None if self.baseline is None or self.variant is None else self.variant - self.baseline

    @property
    def relative(self) -> float | None:
        """The change as a share of the baseline; None where that is 0."""
        return None if self.change is None or not self.baseline else self.change / abs(self.baseline)

    def to_mapping(self) -> dict[str, object]:
        return {
            "name": self.name,
            "unit": self.unit,
            "better": "higher" if self.higher_is_better else "lower",
            "baseline": self.baseline,
            "variant": self.variant,
            "change": self.change,
            "relative": self.relative,
            "interval": None if self.interval is None else list(self.interval),
            "interval_of": None if self.interval is None else "relative" if self.baseline else "change",
            "verdict": self.verdict.value,
            "basis": self.basis.value,
            "blocks": self.num_blocks,
            "reason": self.reason or None,
        }


class PairSummary(Struct, frozen=True):
    """One latency of the same request in both runs, over all requests that have it in both."""

    name: str
    num_pairs: int
    num_lower: int  # the variant's is lower
    num_equal: int
    num_higher: int
    median_change: float | None
    largest_increase: float | None
    largest_increase_row: int | None  # row of the trace
    largest_decrease: float | None
    largest_decrease_row: int | None


class VariantResult(Struct, frozen=True):
    """One variant against the baseline."""

    variant: str
    metrics: tuple[MetricResult, ...]
    pairs: tuple[PairSummary, ...]
    num_completed_both: int  # with replicates summed over them
    num_completed_baseline_only: int
    num_completed_variant_only: int

    def metric(self, name: str) -> MetricResult:
        return next(metric for metric in self.metrics if metric.name == name)

    def to_mapping(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "metrics": [metric.to_mapping() for metric in self.metrics],
            "pairs": {
                "completed_in_both": self.num_completed_both,
                "completed_in_baseline_only": self.num_completed_baseline_only,
                "completed_in_variant_only": self.num_completed_variant_only,
                "latencies": [structs.asdict(pair) for pair in self.pairs],
            },
        }


class GateResult(Struct, frozen=True):
    """One gate, held against one variant."""

    gate: str
    variant: str
    failed: bool
    told: str  # the figures, in words

    def to_mapping(self) -> Mapping[str, object]:
        return structs.asdict(self)
