"""Gates: what is one, what is refused and why, and when one fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.errors import Fault, UsageError
from mocker_replay.report.compare_gates import read_gates
from mocker_replay.report.compare_metrics import METRIC_NAMES
from mocker_replay.report.compare_result import Basis, MetricResult, VariantResult, Verdict


def variant(**given: Any) -> VariantResult:
    values: dict[str, Any] = {"baseline": 100.0, "variant": 103.0, "interval": (0.01, 0.05)} | given
    metric = MetricResult(
        "p99_ttft_ms", "ms", False, verdict=Verdict.WORSE, basis=Basis.BLOCKS, **values
    )  # fmt: skip
    return VariantResult("b", (metric,), (), 0, 0, 0)


def fails(gate: str, **given: Any) -> bool:
    (read,) = read_gates([gate], goals=False)
    return read.check(variant(**given)).failed


@pytest.mark.parametrize(
    ("gate", "failed"),
    [
        ("p99_ttft_ms > +2%", True), ("p99_ttft_ms>+2%", True), ("  p99_ttft_ms   >  + 2 %  ", True),
        ("p99_ttft_ms > +3%", False), ("p99_ttft_ms >= +3%", True), ("p99_ttft_ms > +2.9%", True),
        ("p99_ttft_ms > +3", False), ("p99_ttft_ms >= +3", True), ("p99_ttft_ms > +2.5", True),
        ("p99_ttft_ms > 103", False), ("p99_ttft_ms >= 103", True), ("p99_ttft_ms > 1.02e2", True),
        ("p99_ttft_ms < -2%", False), ("p99_ttft_ms < +4%", True), ("p99_ttft_ms <= 103.0", True),
        ("p99_ttft_ms > +0.5% certain", True), ("p99_ttft_ms > +2% certain", False),
        ("p99_ttft_ms > +.5 CERTAIN", True),
        ("p99_ttft_ms < +6% certain", True), ("p99_ttft_ms < +4% certain", False),
    ],
)  # fmt: skip
def test_when_a_gate_fails(gate: str, failed: bool) -> None:
    assert fails(gate) is failed


def test_a_baseline_of_nothing() -> None:
    assert fails("p99_ttft_ms > +1000%", baseline=0.0, interval=(2.0, 4.0))
    assert not fails("p99_ttft_ms > +0%", baseline=0.0, variant=0.0, interval=(0.0, 0.0))
    assert fails("p99_ttft_ms >= +0%", baseline=0.0, variant=0.0, interval=(0.0, 0.0))
    assert not fails("p99_ttft_ms < -1%", baseline=0.0, interval=(2.0, 4.0))
    assert fails("p99_ttft_ms > +10% certain", baseline=0.0, interval=(2.0, 4.0))
    assert not fails("p99_ttft_ms > +10% certain", baseline=0.0, interval=(-2.0, 8.0))
    assert fails("p99_ttft_ms > +1 certain", baseline=0.0, interval=(2.0, 4.0))
    assert not fails("p99_ttft_ms > +3 certain", baseline=0.0, interval=(2.0, 4.0))


def test_certain_needs_an_interval_and_a_figure_must_be_there() -> None:
    assert not fails("p99_ttft_ms > +1% certain", interval=None)
    assert fails("p99_ttft_ms > +900%", variant=None)
    assert fails("p99_ttft_ms > +900%", baseline=None)
    assert not fails("p99_ttft_ms > 900", baseline=None)
    (gate,) = read_gates(["p99_ttft_ms > 1"], goals=False)
    told = gate.check(variant(variant=None, reason="the variant has no sample")).told
    assert told == "p99_ttft_ms has no figure: the variant has no sample"


def test_what_is_told() -> None:
    (gate,) = read_gates(["p99_ttft_ms > +2%"], goals=False)
    result = gate.check(variant())
    assert (result.gate, result.variant, result.told) == (
        "p99_ttft_ms > +2%", "b", "p99_ttft_ms 103, baseline 100 (+3.00%)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gate", "rule"),
    [
        ("", "must be METRIC OPERATOR BOUND"), ("p99_ttft_ms", "must be METRIC"), ("p99_ttft_ms > ", "must be METRIC"),
        ("p99_ttft_ms = 3", "must be METRIC"), ("p99_ttft_ms > two", "must be METRIC"), ("> 3", "must be METRIC"),
        ("p99_ttft_ms > +2% or so", "must be METRIC"), ("p99_ttft_ms > +nan", "must be METRIC"),
        ("p99_tftt_ms > +2%", "is no metric of a comparison; did you mean p99_ttft_ms?"),
        ("p99_ttft_ms > 2%", r"a share is a change and needs a sign: \+2% or -2%"),
        ("p99_ttft_ms > 2 certain", "only a change can be certain"),
        ("p99_ttft_ms > +1e999", "must be finite"),
        ("goodput_ratio < 0.9", "needs a goal"),
    ],
)  # fmt: skip
def test_what_is_no_gate(gate: str, rule: str) -> None:
    with pytest.raises(UsageError, match=rule) as caught:
        read_gates([gate, "p50_ttft_ms > 3"], goals=False)
    first, second = caught.value.faults
    assert (first.file, first.value) == ("--fail-if", gate)
    assert "did you mean" in second.rule


@given(st.text(max_size=30))
def test_any_text_is_a_gate_or_refused(text: str) -> None:
    faults: tuple[Fault, ...] = ()
    try:
        read_gates([text], goals=True)
    except UsageError as exc:
        faults = exc.faults
    assert [fault.value for fault in faults] in ([], [text])


@given(
    st.sampled_from(METRIC_NAMES),
    st.sampled_from([">", ">=", "<", "<="]),
    st.sampled_from(["", "+", "-"]),
    st.floats(0, 1e9, allow_nan=False),
    st.booleans(),
)
def test_every_form_is_read_back(name: str, operator: str, sign: str, bound: float, percent: bool) -> None:
    (gate,) = read_gates([f"{name} {operator} {sign}{bound!r}{'%' if percent and sign else ''}"], goals=True)
    value = float(f"{sign}{bound!r}")
    assert (gate.metric, gate.operator) == (name, operator)
    assert gate.bound == (value / 100.0 if percent and sign else value)
    assert (gate.is_change, gate.is_relative) == (bool(sign), percent and bool(sign))
