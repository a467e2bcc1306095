"""`mocker-replay diff`: two event logs, compared.

It decides what is printed where and which exit code is returned; the comparison is `mocker_replay.log.diff`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mocker_replay.errors import ExitCode
from mocker_replay.outputs import refuse_overwriting

if TYPE_CHECKING:
    from mocker_replay.cli.ci_reports import Case
    from mocker_replay.log.diff_result import LogDiff

_HOW: Final = "What is compared"
_OUT: Final = "Outputs"
TITLE = "mocker-replay diff"


def diff(
    a: Annotated[str, typer.Argument(help="Event log that is right: plain, .gz or .zst; - is standard input.")],
    b: Annotated[str, typer.Argument(help="Event log to hold against it.")],
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            rich_help_panel=_HOW,
            help="Leave a field of event lines out, by name or dotted path (ranks.fpm); may be given again.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", rich_help_panel=_HOW, help="Read the events even where both footers agree.")
    ] = False,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", rich_help_panel=_HOW, help="Tell settings without effect on events, too.")
    ] = False,
    window: Annotated[
        int, typer.Option(metavar="LINES", rich_help_panel=_HOW, help="Lines of a log that may wait for a partner.")
    ] = 131_072,
    history: Annotated[
        int, typer.Option(metavar="LINES", rich_help_panel=_OUT, help="Earlier lines told of what differs first.")
    ] = 8,
    json: Annotated[bool, typer.Option("--json", rich_help_panel=_OUT, help="The result as one JSON object.")] = False,
    junit: Annotated[str | None, typer.Option(metavar="FILE", rich_help_panel=_OUT, help="JUnit XML.")] = None,
    github: Annotated[
        bool, typer.Option("--github", rich_help_panel=_OUT, help="Annotations of GitHub Actions.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel=_OUT, help="Nothing but a difference and errors.")
    ] = False,
) -> int:
    """Name the first event in which two logs differ, count all others by class, and compare the figures.

    Equal logs are recognised by their footers, which are believed: --verify reads. The key `wall` never counts. Of two
    levels the lower one is compared. Exit codes: 0 the same, 1 different, 2 unreadable, truncated or bad usage.
    """  # fmt: skip
    from mocker_replay.cli.ci_reports import github_lines, write_junit
    from mocker_replay.cli.diff_text import render_diff
    from mocker_replay.log.diff import diff_logs

    if junit is not None:
        refuse_overwriting("--junit", junit, {"A": a, "B": b})
    result = diff_logs(
        a, b, ignore=ignore or (), verify=verify, all_settings=all_settings, window_lines=window, history_lines=history
    )
    case = case_of(result)
    if junit is not None:
        write_junit(junit, TITLE, [case])
    if json:
        import orjson

        sys.stdout.write(orjson.dumps(result.to_mapping(), option=orjson.OPT_INDENT_2).decode() + "\n")
    elif result.exit_code != ExitCode.OK or not quiet:
        sys.stdout.write(render_diff(result))
    if github:
        stream = sys.stderr if json else sys.stdout
        stream.write(github_lines(TITLE, [case]))
    return int(result.exit_code)


def case_of(result: LogDiff) -> Case:
    """A comparison as CI sees it."""
    from mocker_replay.cli.ci_reports import Case
    from mocker_replay.cli.diff_text import headline, render_diff

    name = f"{result.a} against {result.b}"
    if result.exit_code == ExitCode.OK:
        return Case(name, "passed")
    differs = result.exit_code == ExitCode.DIFFERS
    return Case(name, "failed" if differs else "error", headline(result), render_diff(result), result.b)
