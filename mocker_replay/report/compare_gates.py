"""Gates: conditions under which a comparison fails, such as `p99_ttft_ms > +2%`.

Decides their grammar and when one fails. Grammar, with blanks wherever one likes:

    gate   = metric operator bound [ "certain" ]
    operator = ">" | ">=" | "<" | "<="
    bound  = sign number "%"     relative change to the baseline
           | sign number         change, in the unit of the metric
           | number              the variant's own figure

"certain": the gate fails only if the whole interval of the change is beyond the bound.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from mocker_replay.config.origin import nearest
from mocker_replay.errors import Fault, UsageError
from mocker_replay.report.compare_metrics import METRICS
from mocker_replay.report.compare_result import GateResult, MetricResult, VariantResult

FLAG: Final = "--fail-if"
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_GATE = re.compile(
    r"\s*(?P<metric>[A-Za-z_]\w*)\s*(?P<operator>[<>]=?)"
    r"\s*(?P<sign>[+-]?)\s*(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)\s*(?P<percent>%?)\s*(?P<certain>certain)?\s*",
    re.IGNORECASE,
)
_FORM: Final = "must be METRIC OPERATOR BOUND, such as 'p99_ttft_ms > +2%' or 'failed_requests > 0'"


class Gate(Struct, frozen=True):
    """One condition."""

    text: str
    metric: str
    operator: str
    bound: float  # a share where it is relative
    is_change: bool
    is_relative: bool
    is_certain: bool

    def check(self, variant: VariantResult) -> GateResult:
        """Whether the variant falls under the condition. A figure that does not exist does."""
        found = variant.metric(self.metric)
        measured = self._measured(found)
        if measured is None:
            told = f"{self.metric} has no figure: {found.reason}"
            return GateResult(self.text, variant.variant, True, told)
        holds = _OPERATORS[self.operator](measured, self.bound)
        told = _told(found)
        if self.is_certain and holds:
            holds = self._is_certainly_beyond(found)
            told += ", certain" if holds else ", not certain"
        return GateResult(self.text, variant.variant, holds, told)

    def _measured(self, found: MetricResult) -> float | None:
        if found.variant is None or not self.is_change:
            return found.variant
        if found.change is None or not self.is_relative:
            return found.change
        if found.relative is None:  # from 0 to something is more than any share
            return math.copysign(math.inf, found.change) if found.change else 0.0
        return found.relative

    def _is_certainly_beyond(self, found: MetricResult) -> bool:
        if found.interval is None:
            return False
        nearest_end = found.interval[0 if self.operator in (">", ">=") else 1]
        if self.is_relative and not found.baseline:  # its interval is one of the change
            beyond_zero = nearest_end > 0 if self.operator in (">", ">=") else nearest_end < 0
            return beyond_zero
        scale = 1.0 if self.is_relative or not found.baseline else abs(found.baseline)
        return _OPERATORS[self.operator](nearest_end * scale, self.bound)


def read_gates(texts: Sequence[str], *, goals: bool) -> tuple[Gate, ...]:
    """Gates from their texts.

    Args:
        goals: the runs have an SLA.

    Raises:
        UsageError: every text that is none, with the rule it breaks.
    """
    gates, faults = [], []
    for text in texts:
        found = _read(text, goals=goals)
        if isinstance(found, Gate):
            gates.append(found)
        else:
            faults.append(Fault(FLAG, 0, "", text, found))
    if faults:
        raise UsageError.of(faults)
    return tuple(gates)


def _read(text: str, *, goals: bool) -> Gate | str:
    """The gate, or the rule that the text breaks."""
    match = _GATE.fullmatch(text)
    if match is None:
        return _FORM
    name = match["metric"]
    metric = next((metric for metric in METRICS if metric.name == name), None)
    if metric is None:
        near = nearest(name, [metric.name for metric in METRICS])
        return f"{name} is no metric of a comparison" + (f"; did you mean {near}?" if near else "")
    if metric.needs_goals and not goals:
        return f"{name} needs a goal (--sla-ttft-ms, --sla-itl-ms or --sla-e2e-ms)"
    is_change, is_relative, is_certain = bool(match["sign"]), bool(match["percent"]), bool(match["certain"])
    if is_relative and not is_change:
        return f"a share is a change and needs a sign: +{match['number']}% or -{match['number']}%"
    if is_certain and not is_change:
        return "only a change can be certain: give the bound a sign"
    bound = float(match["sign"] + match["number"])
    if not math.isfinite(bound):
        return "the bound must be finite"
    bound = bound / 100.0 if is_relative else bound
    return Gate(" ".join(text.split()), name, match["operator"], bound, is_change, is_relative, is_certain)


def _told(found: MetricResult) -> str:
    relative = "" if found.relative is None else f" ({found.relative:+.2%})"
    return f"{found.name} {_number(found.variant)}, baseline {_number(found.baseline)}{relative}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
