"""`mocker-replay compare`: variants of an engine on one trace, side by side.

It decides what is printed where and which exit code is returned; the runs are `mocker_replay.compare`, the verdicts
`mocker_replay.report.compare_verdict`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mocker_replay.cli import flags
from mocker_replay.cli.run import (
    engine_overrides,
    flag_of,
    override_names,
    place_of,
    replay_options_of,
    run,
    with_run_settings,
)
from mocker_replay.errors import ConfigError, ExitCode, Fault, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mocker_replay.compare.run import Comparison, Replicates
    from mocker_replay.compare.variants import Shared, Variant
    from mocker_replay.report.compare_gates import Gate
    from mocker_replay.report.compare_result import GateResult
    from mocker_replay.report.compare_verdict import Rules

TITLE: Final = "mocker-replay compare"
_HOW: Final = "Comparison"
_OUT: Final = "Outputs"
_REPLICATES_MAX: Final = 1000


def compare(ctx: typer.Context, **given: Any) -> int:
    """Run TRACE with each variant and compare them with the first one, metric by metric.

    A verdict (better, worse, same, undecided) says whether a difference would hold for other traffic of this kind. What
    a variant says wins over the flags below, which all variants share. Exit codes: 0 compared, 1 a gate (--fail-if)
    failed, 2 bad usage, configuration or trace, 3 engine stuck or invariant broken, 130 interrupted.
    """
    settings = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()} | ctx.params
    variants, gates, replicates, rules = _settings(settings)
    from mocker_replay.cli.progress import shown_progress
    from mocker_replay.compare.run import run_comparison

    with shown_progress(quiet=given["quiet"]) as progress:
        found = run_comparison(given["trace"], variants, replicates=replicates, rules=rules, progress=progress)
    results = [gate.check(result) for gate in gates for result in found.results]
    _report(found, results, given)
    return int(ExitCode.DIFFERS if any(result.failed for result in results) else ExitCode.OK)


def _compare_parameters(
    trace: flags.Trace,
    variant: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]FILE|JSON",
            rich_help_panel=_HOW,
            help="An engine configuration as --engine-config takes it, with name, policy and options of a run beside "
            "it. Given twice or more; the first is the baseline.",
        ),
    ],
    replicates: Annotated[
        int,
        typer.Option(rich_help_panel=_HOW, help="Run each variant over so many jittered arrivals, the same for all."),
    ] = 0,
    jitter: Annotated[
        float, typer.Option(rich_help_panel=_HOW, help="Largest share by which a gap becomes shorter or longer.")
    ] = 0.5,
    jitter_seed: Annotated[int, typer.Option(rich_help_panel=_HOW, help="Seed of the jitter.")] = 1,
    margin: Annotated[
        str,
        typer.Option(metavar="SHARE", rich_help_panel=_HOW, help="Changes within it are the same, such as 1% or 0.01."),
    ] = "1%",
    confidence: Annotated[
        float, typer.Option(rich_help_panel=_HOW, help="Of all intervals of a comparison together.")
    ] = 0.95,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GATE",
            rich_help_panel=_HOW,
            help="Exit 1 where a variant falls under it: 'p99_ttft_ms > +2%' (change), 'mean_ttft_ms > +5' (change "
            "in ms), 'failed_requests > 0' (figure), 'p99_ttft_ms > +2% certain'. May be given again.",
        ),
    ] = None,
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE", rich_help_panel=_OUT, help="The tables as Markdown.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", rich_help_panel=_OUT, help="Everything as one JSON object on standard output.")
    ] = False,
    junit: Annotated[
        str | None, typer.Option(metavar="FILE", rich_help_panel=_OUT, help="JUnit XML of the gates.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", rich_help_panel=_OUT, help="Annotations of GitHub Actions for failed gates.")
    ] = False,
    quiet: flags.Quiet = False,
) -> None:
    """Parameters of `compare` that are not those of `run`."""  # fmt: skip


compare.__signature__ = with_run_settings(_compare_parameters)  # type: ignore[attr-defined]


def _settings(
    given: Mapping[str, Any],
) -> tuple[Sequence[Variant], Sequence[Gate], Replicates, Rules]:
    """What to run and how to judge it; all faults of the command line and of the variants are reported together."""
    from mocker_replay.cli.timing_model import search_working_directory
    from mocker_replay.compare.run import Replicates
    from mocker_replay.compare.variants import read_variants
    from mocker_replay.report.compare_gates import read_gates
    from mocker_replay.report.compare_verdict import Rules

    search_working_directory()  # a variant may name a policy of the user's
    faults = [*_number_faults(given), *_output_faults(given)]
    margin = _share(given["margin"])
    if margin is None:
        faults.append(Fault("--margin", 0, "", given["margin"], "must be a share from 0 to 1, such as 1% or 0.01"))
    variants: Sequence[Variant] = ()
    gates: Sequence[Gate] = ()
    shared = _shared(given, faults)
    try:
        variants = read_variants(given["variant"], shared)
    except UsageError as exc:
        faults += exc.faults
    goals = [getattr(v.options, name) for v in variants for name in ("sla_ttft_ms", "sla_itl_ms", "sla_e2e_ms")]
    try:
        # Where the variants are at fault it is not known whether they have goals.
        gates = read_gates(given["fail_if"] or (), goals=not variants or any(goal is not None for goal in goals))
    except UsageError as exc:
        faults += exc.faults
    if faults:
        raise UsageError.of(list(dict.fromkeys(faults)))
    replicates = Replicates(given["replicates"], given["jitter"], given["jitter_seed"])
    return variants, gates, replicates, Rules(given["confidence"], margin or 0.0)


def _shared(given: Mapping[str, Any], faults: list[Fault]) -> Shared:
    """What the flags say for all variants."""
    from mocker_replay.compare.variants import Shared
    from mocker_replay.config.loading import overridden, read_document

    options = replay_options_of(given, faults)
    try:
        document, origin = read_document(given["engine_config"])
    except ConfigError as exc:
        faults += exc.faults
        document, origin = read_document(None)
    document, origin = overridden(document, origin, engine_overrides(given, faults), override_names())
    return Shared(options, document, origin, flag_of)


def _number_faults(given: Mapping[str, Any]) -> Iterator[Fault]:
    if not 0 <= given["replicates"] <= _REPLICATES_MAX:
        yield Fault("--replicates", 0, "", str(given["replicates"]), f"must be from 0 to {_REPLICATES_MAX}")
    if not 0.0 < given["jitter"] <= 1.0:
        yield Fault("--jitter", 0, "", str(given["jitter"]), "must be above 0 and at most 1")
    if not 0 <= given["jitter_seed"] < 2**64:
        yield Fault("--jitter-seed", 0, "", str(given["jitter_seed"]), "must be from 0 to 2^64-1")
    if not 0.5 <= given["confidence"] < 1.0:
        yield Fault("--confidence", 0, "", str(given["confidence"]), "must be at least 0.5 and below 1")


def _share(text: str) -> float | None:
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100.0 if text.strip().endswith("%") else 1.0)
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


def _output_faults(given: Mapping[str, Any]) -> Iterator[Fault]:
    """Two outputs in one place, an output over the trace, reports of gates that are none."""
    taken = {} if given["trace"] == "-" else {place_of(given["trace"]): "the trace"}
    if given["json"]:
        taken["-"] = "--json"
    for name in ("markdown", "junit"):
        place = given[name]
        if place is not None:
            earlier = taken.setdefault(place_of(place), flag_of(name))
            if earlier != flag_of(name):
                where = "standard output" if place == "-" else place
                yield Fault(flag_of(name), 0, "", "", f"{where} is already taken by {earlier}")
    for name in ("junit", "github"):
        if given[name] and not given["fail_if"]:
            yield Fault(flag_of(name), 0, "", "", "is only of use with --fail-if")


def _report(found: Comparison, gates: Sequence[GateResult], given: Mapping[str, Any]) -> None:
    """What people and CI read; annotations go to standard error where standard output is data."""
    from mocker_replay.cli.compare_text import markdown_of, render_comparison, render_gates
    from mocker_replay.outputs import open_output

    is_data = given["json"] or "-" in (given["markdown"], given["junit"])
    if given["markdown"] is not None:
        with open_output(given["markdown"]) as output:
            output.write(markdown_of(found, gates).encode())
    if given["junit"] is not None:
        from mocker_replay.cli.ci_reports import write_junit

        write_junit(given["junit"], TITLE, _cases(gates, given["trace"]))
    if given["json"]:
        import orjson

        sys.stdout.write(orjson.dumps(found.to_mapping(gates), option=orjson.OPT_INDENT_2).decode() + "\n")
        sys.stderr.write(render_gates(gates, only_failed=True))
    elif is_data:
        sys.stderr.write(render_gates(gates, only_failed=True))
    elif given["quiet"]:
        sys.stdout.write(render_gates(gates, only_failed=True))
    else:
        render_comparison(found, gates)
    if given["github"]:
        from mocker_replay.cli.ci_reports import github_lines

        (sys.stderr if is_data else sys.stdout).write(github_lines(TITLE, _cases(gates, given["trace"])))


def _cases(gates: Sequence[GateResult], trace: str) -> list[Any]:
    from mocker_replay.cli.ci_reports import Case

    return [
        Case(
            f"{gate.variant}: {gate.gate}",
            "failed" if gate.failed else "passed",
            gate.told,
            f"{gate.variant} fails {gate.gate}: {gate.told}\n",
            None if trace == "-" else trace,
        )
        for gate in gates
    ]
