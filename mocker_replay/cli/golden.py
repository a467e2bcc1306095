"""`mocker-replay golden record|check|update|list`: blessed runs.

It decides what is printed where and which exit code is returned; goldens are `mocker_replay.golden`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mocker_replay.cli import flags
from mocker_replay.cli.console import plain
from mocker_replay.cli.run import pool_settings, run, run_settings, with_run_settings
from mocker_replay.errors import ExitCode, Fault, UsageError

if TYPE_CHECKING:
    from mocker_replay.cli.ci_reports import Case
    from mocker_replay.config import TimingCallable
    from mocker_replay.golden.check import GoldenUpdate
    from mocker_replay.golden.manifest import GoldenError, Manifest
    from mocker_replay.golden.result import GoldenResult

SUBVERBS: Final = {
    "record": "Run a trace and bless what comes of it.",
    "check": "Run goldens afresh and compare.",
    "update": "Bless what has changed.",
    "list": "Tell what goldens there are.",
}
TITLE: Final = "mocker-replay golden"
_GOLDEN: Final = "Golden"
_OUT: Final = "Outputs"

Folder = Annotated[str, typer.Option("--dir", metavar="DIR", rich_help_panel=_GOLDEN, help="Folder of goldens.")]
TimingModelFlag = Annotated[
    str | None,
    typer.Option(
        "--timing-model", metavar="MODULE:NAME", rich_help_panel=_GOLDEN,
        help="Where the timing model is, if a golden used a Python object that has moved.",
    ),
]  # fmt: skip
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Goldens, by name or pattern ('chat-*'); all of them if none."),
]
Json = Annotated[bool, typer.Option("--json", rich_help_panel=_OUT, help="The result as one JSON object.")]
Junit = Annotated[str | None, typer.Option("--junit", metavar="FILE", rich_help_panel=_OUT, help="JUnit XML.")]
Github = Annotated[bool, typer.Option("--github", rich_help_panel=_OUT, help="Annotations of GitHub Actions.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=_OUT, help="Nothing but differences and errors.")]


def record(ctx: typer.Context, **given: Any) -> int:
    """Run TRACE with the settings of `run` and keep what comes of it as the golden NAME.

    Kept are the settings, the summary, and digests of the event log; with --with-log the log itself, so that `check`
    can show the first event that differs. Nothing is overwritten. Exit codes: 0 recorded, 2 bad usage, configuration
    or trace, or the name is taken, 3 the run stood still or lost a request, 130 interrupted.
    """
    from mocker_replay.golden.folder import GoldenFolder
    from mocker_replay.golden.record import record_golden

    settings = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()} | ctx.params
    config, options, _ = run_settings(given["trace"], settings)
    pools = pool_settings(settings, options)
    folder = GoldenFolder(given["goldens"])
    golden = record_golden(
        folder,
        given["name"],
        given["trace"],
        pools.get("decode_config", config),
        options,
        prefill=pools.get("prefill_config"),
        level=given["event_level"],
        with_log=given["with_log"],
        tolerances=_tolerances(given["tolerance"] or ()),
    )
    if not given["quiet"]:
        log = golden.manifest.log
        text = f"{log['events']:,} events of level {golden.manifest.level}, digest {log['digest'][:12]}"
        sys.stdout.write(f"recorded        {plain(str(folder.place(given['name'])))}: {text}\n")
    return int(ExitCode.OK)


def _record_parameters(
    name: Annotated[str, typer.Argument(help="Name of the golden.")],
    trace: flags.Trace,
    goldens: Folder = "goldens",
    with_log: Annotated[
        bool, typer.Option("--with-log", rich_help_panel=_GOLDEN, help="Keep the event log, too, compressed.")
    ] = False,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=SHARE",
            rich_help_panel=_GOLDEN,
            help="Let a mean, deviation, rate or share of the summary differ by this share; may be given again.",
        ),
    ] = None,
    event_level: flags.EventLevel = "passes",
    num_prefill_workers: flags.NumPrefillWorkers = None,
    num_decode_workers: flags.NumDecodeWorkers = None,
    prefill_engine_config: flags.PrefillEngineConfig = None,
    decode_engine_config: flags.DecodeEngineConfig = None,
    quiet: flags.Quiet = False,
) -> None:
    """Parameters of `record` that are not those of `run`."""  # fmt: skip


record.__signature__ = with_run_settings(_record_parameters)  # type: ignore[attr-defined]


def _tolerances(texts: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, _, share = text.partition("=")
        try:
            found[name] = float(share)
        except ValueError:
            raise UsageError.of(
                [Fault("--tolerance", 0, "", text, "must be FIELD=SHARE, such as std_ttft_ms=1e-12")]
            ) from None
    return found


def check(
    names: Names = None,
    goldens: Folder = "goldens",
    timing_model: TimingModelFlag = None,
    json: Json = False,
    junit: Junit = None,
    github: Github = False,
    quiet: Quiet = False,
) -> int:
    """Run goldens afresh under their recorded settings and require the same events and figures.

    A trace, timing profile or schema that is another one is told apart from a run that has changed. Exit codes, the
    gravest of all goldens: 0 the same, 1 different, 2 a golden that cannot be read or compared, or bad usage, 3 the run
    stood still or lost a request, 130 interrupted.
    """
    from mocker_replay.cli.golden_text import render_results
    from mocker_replay.golden.check import check_golden
    from mocker_replay.golden.folder import GoldenFolder
    from mocker_replay.golden.result import exit_code_of

    folder = GoldenFolder(goldens)
    model = _model(timing_model)
    results = [check_golden(folder, name, timing_model=model) for name in folder.matching(names or ())]
    _report(folder, results, junit, github, json)
    if json:
        same = exit_code_of(results) == ExitCode.OK
        _print_json({"same": same, "goldens": [result.to_mapping() for result in results]})
    else:
        sys.stdout.write(render_results(results, quiet=quiet))
    return int(exit_code_of(results))


def update(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Goldens, by name or pattern ('chat-*').")],
    goldens: Folder = "goldens",
    with_log: Annotated[
        bool | None,
        typer.Option(
            "--with-log/--without-log", rich_help_panel=_GOLDEN, help="Keep the log from now on, or no longer."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=_GOLDEN, help="Show what would change and write nothing.")
    ] = False,
    timing_model: TimingModelFlag = None,
    json: Json = False,
) -> int:
    """Run goldens afresh under their recorded settings, show what changes, and keep the new runs.

    Refused where CI is set. A run that lost a request is never kept. Exit codes: 0 updated or nothing to do, 2 no such
    golden or bad usage, 3 the run stood still or lost a request, 130 interrupted.
    """
    from mocker_replay.cli.golden_text import render_updates
    from mocker_replay.golden.check import refuse_in_ci, update_or_tell
    from mocker_replay.golden.folder import GoldenFolder

    refuse_in_ci()
    folder = GoldenFolder(goldens)
    model = _model(timing_model)
    updates: list[GoldenUpdate] = [
        update_or_tell(folder, name, with_log=with_log, dry_run=dry_run, timing_model=model)
        for name in folder.matching(names)
    ]
    if json:
        _print_json({"goldens": [found.to_mapping() for found in updates]})
    else:
        sys.stdout.write(render_updates(updates, dry_run=dry_run))
    return int(max(found.exit_code for found in updates))


def list_(names: Names = None, goldens: Folder = "goldens", json: Json = False) -> int:
    """Tell what goldens there are: their events, level and trace, and whether the log is stored. Nothing is run.

    Exit codes: 0 told, 2 no golden, or one that cannot be read.
    """
    from mocker_replay.cli.golden_text import render_list
    from mocker_replay.golden.folder import GoldenFolder

    folder = GoldenFolder(goldens)
    found = {name: folder.manifest_or_error(name) for name in folder.matching(names or ())}
    if json:
        _print_json({"goldens": [_listed(name, golden) for name, golden in found.items()]})
    else:
        sys.stdout.write(render_list(found))
    return int(ExitCode.USAGE if any(isinstance(golden, UsageError) for golden in found.values()) else ExitCode.OK)


def _listed(name: str, golden: Manifest | GoldenError) -> dict[str, object]:
    if isinstance(golden, UsageError):
        return {"name": name, "error": str(golden)}
    return {"name": name, "level": golden.level, "trace": golden.trace, "log": golden.log, "error": None}


def _model(text: str | None) -> TimingCallable | None:
    from mocker_replay.cli.timing_model import own_timing_model, search_working_directory

    search_working_directory()
    return None if text is None else own_timing_model(text)


def _report(folder: Any, results: Sequence[GoldenResult], junit: str | None, github: bool, json: bool) -> None:
    """What CI reads; annotations go to standard error where standard output is JSON."""
    from mocker_replay.cli.ci_reports import github_lines, write_junit

    cases = [_case(folder, result) for result in results]
    if junit is not None:
        write_junit(junit, TITLE, cases)
    if github:
        (sys.stderr if json else sys.stdout).write(github_lines(TITLE, cases))


def _case(folder: Any, result: GoldenResult) -> Case:
    from mocker_replay.cli.ci_reports import Case
    from mocker_replay.cli.golden_text import headline, render_results

    if result.exit_code == ExitCode.OK:
        return Case(result.name, "passed")
    differs = result.exit_code == ExitCode.DIFFERS
    file = str(folder.path / result.name / "manifest.json")
    text = render_results([result], quiet=True)
    return Case(result.name, "failed" if differs else "error", headline(result), text, file)


def _print_json(document: object) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
