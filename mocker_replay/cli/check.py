"""`mocker-replay check`: every fault of a trace in one pass, and a profile of a faultless one.

It decides what goes to which stream; faults are found by the readers, figures by `mocker_replay.trace.check`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import structs

from mocker_replay.cli import flags
from mocker_replay.cli.run import transforms_of
from mocker_replay.errors import ExitCode, Fault, TraceError, UsageError

if TYPE_CHECKING:
    from mocker_replay.trace.base import TraceFacts
    from mocker_replay.trace.check import Pool, Spread, TraceProfile
    from mocker_replay.trace.repair import Repaired

_POOL: Final = "Requests that cannot fit"
_FIX: Final = "Repairs"


def check(
    ctx: typer.Context,
    trace: flags.Traces,
    trace_format: flags.TraceFormat = "auto",
    trace_block_size: flags.TraceBlockSize = None,
    timestamp_unit: flags.TimestampUnit = "ms",
    closed_loop: flags.ClosedLoop = False,
    missing_timestamps: flags.MissingTimestamps = "refuse",
    surplus_hash_ids: flags.SurplusHashIds = "refuse",
    missing_hash_ids: flags.MissingHashIds = "refuse",
    estimate_prefix: flags.EstimatePrefix = None,
    failed_rows: flags.FailedRows = None,
    max_text_gib: flags.MaxTextGib = None,
    weka_nested_timestamp_basis: flags.WekaNestedTimestampBasis = None,
    trace_shared_prefix_ratio: flags.TraceSharedPrefixRatio = None,
    trace_num_prefix_groups: flags.TraceNumPrefixGroups = None,
    transform: flags.Transforms = None,
    num_gpu_blocks: Annotated[
        int | None, typer.Option(rich_help_panel=_POOL, help="Hold requests against a pool of so many KV blocks.")
    ] = None,
    block_size: Annotated[int, typer.Option(rich_help_panel=_POOL, help="Tokens of a KV block.")] = 64,
    max_model_len: Annotated[
        int | None, typer.Option(rich_help_panel=_POOL, help="Tokens of a request, prompt and output.")
    ] = None,
    fix: Annotated[
        str | None,
        typer.Option(metavar="OUT", rich_help_panel=_FIX, help="Write a repaired copy and tell what was repaired."),
    ] = None,
    fix_drop: Annotated[
        bool, typer.Option("--fix-drop", rich_help_panel=_FIX, help="Leave out rows that cannot be repaired.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Faults, warnings and profile as one JSON object.")] = False,
) -> int:
    """Find every fault of TRACE in one pass; profile it if there is none.

    The profile goes to standard output, faults and warnings to standard error; with --json all of them go to standard
    output as one object. With --fix the profile is that of the copy, which is written only if nothing is wrong with it
    any more. Exit codes: 0 no fault, or none that is left in the copy, 2 faults or bad usage.
    """
    given = ctx.params
    pool = _pool_and_transforms(trace, given)
    from mocker_replay.cli.check_fix import tell_fixes, write_repaired
    from mocker_replay.cli.console import complain, warn

    repaired = None
    try:
        if fix is None:
            facts, profile = _profiled(trace, given, pool)
        else:
            repaired, facts, profile = write_repaired(trace, given, pool)
    except TraceError as error:
        if json:
            _print_json(trace, given, error, None, None, None)
        else:
            complain(error)
        return int(ExitCode.USAGE)
    if json:
        _print_json(trace, given, None, facts, profile, repaired)
        return int(ExitCode.OK)
    if fix is not None and repaired is not None:
        tell_fixes(trace, fix, repaired)
    warn(facts.warnings)
    if fix != "-":
        sys.stdout.write(_text(facts, profile))
    return int(ExitCode.OK)


def _profiled(trace: list[str], given: Mapping[str, Any], pool: Pool | None) -> tuple[TraceFacts, TraceProfile]:
    from mocker_replay.cli.reading import open_by_flags
    from mocker_replay.trace.check import profile_trace
    from mocker_replay.trace.transforms import transformed

    source = transformed(open_by_flags(trace, given), given["transform"] or ())
    try:
        return source.scan(), profile_trace(source, pool)
    finally:
        source.close()


def _pool_and_transforms(trace: list[str], given: Mapping[str, Any]) -> Pool | None:
    """The pool to hold requests against; all faults of the flags are told together."""
    from mocker_replay.cli.check_fix import fix_faults

    faults = list(fix_faults(trace, given))
    transforms_of(given["transform"], faults)
    pool = None
    try:
        pool = _pool(given["num_gpu_blocks"], given["block_size"], given["max_model_len"])
    except UsageError as exc:
        faults += exc.faults
    if faults:
        raise UsageError.of(faults)
    return pool


def _pool(num_gpu_blocks: int | None, block_size: int, max_model_len: int | None) -> Pool | None:
    from mocker_replay.trace.base import MAX_TOKENS
    from mocker_replay.trace.check import Pool

    given = {"--num-gpu-blocks": num_gpu_blocks, "--block-size": block_size, "--max-model-len": max_model_len}
    rule = f"must be from 1 to {MAX_TOKENS}"
    faults = [
        Fault(flag, 0, "", str(value), rule)
        for flag, value in given.items()
        if value is not None and not 1 <= value <= MAX_TOKENS
    ]
    if max_model_len is not None and num_gpu_blocks is None:
        faults.append(Fault("--max-model-len", 0, "", "", "is of use only with --num-gpu-blocks"))
    if faults:
        raise UsageError.of(faults)
    return None if num_gpu_blocks is None else Pool(num_gpu_blocks, block_size, max_model_len)


def _print_json(
    traces: list[str],
    given: Mapping[str, Any],
    error: TraceError | None,
    facts: TraceFacts | None,
    profile: TraceProfile | None,
    repaired: Repaired | None,
) -> None:
    import orjson

    faults, omitted = ((), 0) if error is None else (error.faults, error.omitted)
    names = [trace.encode(errors="backslashreplace").decode() for trace in traces]  # a path need not be Unicode
    found = [{"line": f.line or None, "field": f.field, "value": f.value, "rule": f.rule} for f in faults]
    document: dict[str, object] = {
        "trace": names[0] if len(names) == 1 else names,
        "num_faults": len(faults) + omitted,
        "faults": found,
        "warnings": [] if facts is None else facts.warnings,
        "format": None if facts is None else facts.format,
        "digest": None if facts is None else facts.digest,
        **_more(error, facts),
        "profile": None if profile is None else profile.to_mapping(),
    }
    if facts is not None and facts.lineage is not None:
        document |= facts.lineage.to_mapping()
    if given["fix"] is not None:
        from mocker_replay.cli.check_fix import listed

        document["fixed"] = None if repaired is None else given["fix"].encode(errors="backslashreplace").decode()
        document["fixes"] = [] if repaired is None else listed(repaired.fixes)
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")


def _more(error: TraceError | None, facts: TraceFacts | None) -> dict[str, object]:
    """What only some traces have: a hint at another format, assumptions of the reader."""
    more: dict[str, object] = {}
    if error is not None and error.hint:
        more["hint"] = error.hint
    if facts is not None and facts.assumptions is not None:
        more["assumed"] = structs.asdict(facts.assumptions)
    return more


def _text(facts: TraceFacts, profile: TraceProfile) -> str:
    lines = [
        ("trace", f"{facts.name} ({facts.format}, {profile.trace_block_size} tokens a {_unit_of_blocks(facts)})"),
        *_assumed(facts),
        ("rows", f"{profile.num_rows:,}"),
        ("sessions", _sessions(profile)) if facts.graph is None else ("graph", _graph(facts)),
        ("span", _span(profile)),
        ("timestamps", _timestamps(profile)),
        ("arrivals", _arrivals(profile)),
        ("prompt tokens", _spread(profile.input_tokens)),
        ("output tokens", _spread(profile.output_tokens)),
        ("think time ms", _spread(profile.think_time_ms) if profile.think_time_ms else "none"),
        ("prefix sharing", _sharing(profile)),
    ]
    if facts.lineage is not None:
        lines.insert(1, ("transforms", " ".join(facts.lineage.steps)))
    if profile.cancel_after_ms:
        text = _spread(profile.cancel_after_ms)
        lines.append(("patience ms", f"{text}; of the clients of {profile.num_rows_with_patience:,} rows"))
    if profile.num_zero_output_rows:
        lines.append(("zero outputs", f"{profile.num_zero_output_rows:,} of the rows"))
    if profile.num_repeated_request_ids:
        lines.append(
            ("request ids", f"{profile.num_repeated_request_ids:,} repeat an earlier one; logs cannot tell them apart")
        )
    if profile.misfits is not None:
        lines += _misfits(profile)
    return "".join(f"{name:<16}{text}\n" for name, text in lines)


def _assumed(facts: TraceFacts) -> list[tuple[str, str]]:
    return [] if facts.assumptions is None else [("assumed", "; ".join(facts.assumptions.texts()))]


def _unit_of_blocks(facts: TraceFacts) -> str:
    has_ids = facts.assumptions is None or facts.assumptions.estimate_prefix is None
    return "hash id" if has_ids else "block"


def _graph(facts: TraceFacts) -> str:
    assert facts.graph is not None, "only graphs have plays"
    return (
        f"{facts.graph.num_plays:,} plays, {facts.graph.num_edges:,} dependencies, "
        f"{facts.num_sessions:,} conversations; models {', '.join(facts.graph.models)}"
    )


def _sessions(profile: TraceProfile) -> str:
    if not profile.num_multi_turn_sessions:
        return f"{profile.num_sessions:,}, one turn each"
    return (
        f"{profile.num_sessions:,}, {profile.num_multi_turn_sessions:,} with several turns, at most {profile.max_turns}"
    )


def _span(profile: TraceProfile) -> str:
    text = f"{profile.span_ms:,.15g} ms"
    return (
        text if profile.mean_arrivals_per_s is None else f"{text}, {profile.mean_arrivals_per_s:,.4g} arrivals a second"
    )


def _arrivals(profile: TraceProfile) -> str:
    text = f"{profile.num_tied_arrivals:,} at the instant of another, up to {profile.max_arrivals_at_once:,} at once"
    return f"{text}, {profile.num_distinct_arrivals:,} instants" if profile.num_tied_arrivals else text


def _timestamps(profile: TraceProfile) -> str:
    order = "in order" if profile.is_sorted else "not in order"
    likely = profile.likely_timestamp_unit
    doubt = "" if likely == profile.timestamp_unit else f", but look like {likely}"
    unit = "dates and times" if profile.timestamp_unit == "datetime" else profile.timestamp_unit
    return f"read as {unit}{doubt}, {order}"


def _spread(spread: Spread) -> str:
    figures = (
        ("min", spread.min), ("mean", spread.mean), ("p50", spread.p50),
        ("p90", spread.p90), ("p99", spread.p99), ("max", spread.max),
    )  # fmt: skip
    return "  ".join(f"{name} {value:,.6g}" for name, value in figures)


def _sharing(profile: TraceProfile) -> str:
    return (
        f"{profile.reusable_input_ratio:.1%} of prompt tokens, {profile.num_rows_sharing_prefix:,} rows; "
        f"{profile.num_distinct_blocks:,} of {profile.num_blocks:,} blocks are distinct"
    )


def _misfits(profile: TraceProfile) -> list[tuple[str, str]]:
    assert profile.misfits is not None
    if not profile.misfits:
        return [("fit", "every request fits the pool")]
    lines = []
    for misfit in profile.misfits:
        shown = ", ".join(map(str, misfit.lines)) + (", ..." if misfit.count > len(misfit.lines) else "")
        lines.append((misfit.outcome, f"{misfit.count:,}: {misfit.reason} (lines {shown})"))
    return lines
