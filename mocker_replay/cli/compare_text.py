"""A comparison as text for people: tables for a screen, Markdown for a page. Decides form, never content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

    from mocker_replay.compare.run import Comparison
    from mocker_replay.report.compare_result import GateResult, MetricResult, PairSummary, VariantResult

_STYLES: Final = {"better": "green", "worse": "red", "same": "dim", "undecided": "yellow"}
_TABLE_WIDTH: Final = 130  # no table is as wide
_HEADERS: Final = ("metric", "baseline", "variant", "change", "interval", "verdict")


def render_comparison(found: Comparison, gates: Sequence[GateResult]) -> None:
    """Print everything on standard output: coloured tables in a terminal, plain text elsewhere."""
    from mocker_replay.cli.console import summary_console

    console = summary_console(on_stderr=False)
    for line in _head(found):
        console.print(line, soft_wrap=True, markup=False)
    for result in found.results:
        console.print()
        console.print(f"{result.variant} against {found.baseline.variant.name}", style="bold", markup=False)
        console.print(_table(result), width=_TABLE_WIDTH, crop=False)  # rather wrapped by the terminal than cut
        for line in _notes(result):
            console.print(line, soft_wrap=True, markup=False)
    console.print()
    for line in _speeds(found):
        console.print(line, soft_wrap=True, markup=False, style="dim")
    for gate in gates:
        console.print(_gate_line(gate), soft_wrap=True, markup=False, style="bold red" if gate.failed else "green")


def markdown_of(found: Comparison, gates: Sequence[GateResult]) -> str:
    """The same as Markdown."""
    blocks = ["\n".join(f"{line}  " for line in _head(found)).rstrip()]
    for result in found.results:
        blocks.append(f"### {_cell(result.variant)} against {_cell(found.baseline.variant.name)}")
        rows = ["| " + " | ".join(_HEADERS) + " |", "|---|--:|--:|--:|--:|---|"]
        rows += ["| " + " | ".join(_cell(text) for text in _cells(metric)) + " |" for metric in result.metrics]
        blocks.append("\n".join(rows))
        notes = [f"* {_cell(line)}" for line in _notes(result)]
        if notes:
            blocks.append("\n".join(notes))
    if gates:
        rows = ["| gate | variant | result | figures |", "|---|---|---|---|"]
        for gate in gates:
            told = (f"`{gate.gate}`", gate.variant, "**failed**" if gate.failed else "passed", gate.told)
            rows.append("| " + " | ".join(_cell(text) for text in told) + " |")
        blocks.append("\n".join(rows))
    blocks.append("\n".join(f"* {_cell(line)}" for line in _speeds(found)))
    return "\n\n".join(blocks) + "\n"


def render_gates(gates: Sequence[GateResult], *, only_failed: bool = False) -> str:
    """Gates, a line each."""
    return "".join(f"{_gate_line(gate)}\n" for gate in gates if gate.failed or not only_failed)


def _gate_line(gate: GateResult) -> str:
    return f"{'FAILED' if gate.failed else 'passed'}  {gate.gate}  {gate.variant}: {gate.told}"


def _head(found: Comparison) -> Iterator[str]:
    trace, rules, replicates = found.trace, found.rules, found.replicates
    yield f"Comparison on {trace.name}: {trace.num_rows:,} rows, digest {trace.digest[:12]}"
    for warning in trace.warnings:
        yield f"warning: {warning}"
    if replicates.count:
        yield (
            f"{replicates.count} replicates: gaps between arrivals up to {replicates.jitter:.0%} shorter or longer, "
            f"seed {replicates.seed}; figures are means over them"
        )
    yield (
        f"intervals hold together with {rules.confidence:.4g} confidence; changes within {rules.margin:.4g} of the "
        "baseline are the same"
    )


def _table(result: VariantResult) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in _HEADERS:
        table.add_column(name, justify="left" if name in ("metric", "verdict") else "right", no_wrap=True)
    for metric in result.metrics:
        *cells, verdict = _cells(metric)
        table.add_row(*map(Text, cells), Text(verdict, style=_STYLES[verdict]))
    return table


def _cells(metric: MetricResult) -> tuple[str, ...]:
    return (
        metric.name,
        _figure(metric.baseline),
        _figure(metric.variant),
        _change(metric),
        _interval(metric),
        metric.verdict.value,
    )


def _change(metric: MetricResult) -> str:
    if metric.change is None:
        return ""
    sign = "+" if metric.change > 0 else ""
    return f"{sign}{_figure(metric.change)}" if metric.relative is None else f"{metric.relative:+.2%}"


def _interval(metric: MetricResult) -> str:
    if metric.interval is None or metric.basis.value == "exact":
        return ""
    low, high = metric.interval
    return f"{low:+.2%} {high:+.2%}" if metric.baseline else f"{low:+.4g} {high:+.4g}"


def _figure(value: float | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _notes(result: VariantResult) -> Iterator[str]:
    only = [
        (result.num_completed_baseline_only, "the baseline"),
        (result.num_completed_variant_only, "the variant"),
    ]
    for number, where in only:
        if number:
            yield f"warning: {number:,} requests completed only in {where}; latencies are of those that completed"
    for pair in result.pairs:
        yield _pair_line(pair)
    reasons: dict[str, list[str]] = {}
    for metric in result.metrics:
        if metric.reason:
            reasons.setdefault(metric.reason, []).append(metric.name)
    for reason, names in reasons.items():
        yield f"undecided, {reason}: {', '.join(names)}"


def _pair_line(pair: PairSummary) -> str:
    if pair.median_change is None:
        return f"{pair.name}: no request has it in both runs"
    text = (
        f"{pair.name} of {pair.num_pairs:,} requests: {pair.num_lower:,} lower, {pair.num_equal:,} equal, "
        f"{pair.num_higher:,} higher; median change {pair.median_change:+.4g} ms"
    )
    for word, value, row in (
        ("most", pair.largest_increase, pair.largest_increase_row),
        ("least", pair.largest_decrease, pair.largest_decrease_row),
    ):
        if value is not None:
            text += f", {word} {value:+.4g} ms (row {row})"
    return text


def _speeds(found: Comparison) -> Iterator[str]:
    from mocker_replay.compare.run import speed_of

    for runs in found.runs:
        speed = speed_of(runs)
        yield (
            f"replay of {speed['variant']}: {speed['wall_time_ms']:,.1f} ms, "
            f"{speed['requests_per_s']:,.0f} requests/s (wall clock)"
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
