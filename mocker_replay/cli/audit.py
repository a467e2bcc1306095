"""`mocker-replay audit`: a log checked on its own; clean, or every rule it breaks and where.

It decides what is printed and which exit code is returned; the rules are in `mocker_replay.log.audit`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mocker_replay.cli.console import complain, plain

if TYPE_CHECKING:
    from mocker_replay.log.audit.findings import Finding
    from mocker_replay.log.audit.run import AuditReport

_LABEL_WIDTH: Final = 16
_LISTED: Final = 40  # findings shown as text; --json has all that were kept


def audit(
    log: Annotated[str, typer.Argument(help="Event log of any level, plain, .gz or .zst; - is standard input.")],
    summary: Annotated[
        str | None,
        typer.Option(help="Summary of the same run (--summary of run), to be derived again from a full log."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but findings and errors.")] = False,
) -> int:
    """Hold LOG against every rule that its level can decide, by code that shares nothing with the engine.

    The report goes to standard output. Exit codes: 0 clean, 1 findings, 2 no event log, truncated or damaged, or bad
    usage.
    """
    from mocker_replay.log.audit.run import audit as audit_log
    from mocker_replay.log.audit.run import read_summary
    from mocker_replay.log.reader import LogError

    report = audit_log(log, None if summary is None else read_summary(summary))
    if json:
        import orjson

        sys.stdout.write(orjson.dumps(report.to_mapping(), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        for finding in report.findings[:_LISTED]:
            sys.stdout.write(plain(f"{report.log}:{_finding_text(finding)}") + "\n")
        if report.num_findings > _LISTED:
            sys.stdout.write(f"... {report.num_findings - _LISTED:,} further findings are not listed\n")
        if not quiet:
            sys.stdout.write("".join(f"{label:<{_LABEL_WIDTH}}{text}\n" for label, text in _text(report)))
    if report.damage is not None:
        complain(LogError(report.damage))
    return int(report.exit_code)


def _finding_text(finding: Finding) -> str:
    where = f"{finding.line}: " + ("" if finding.seq is None else f"seq {finding.seq}: ")
    figures = ""
    if finding.stated is not None or finding.derived is not None:
        figures = f" (it says {_value(finding.stated)}, should be {_value(finding.derived)})"
    return f"{where}{finding.rule}: {finding.text}{figures}"


def _value(value: Any) -> str:
    import orjson

    return orjson.dumps(value).decode()


def _text(report: AuditReport) -> Iterator[tuple[str, str]]:
    if report.damage is None:
        told = f"{report.num_findings:,} findings in" if report.num_findings else "clean,"
        yield "log", f"{plain(report.log)}: {told} {report.num_events:,} lines"
    yield "level", str(report.setup.level)
    for rule, count in report.by_rule.items():
        yield "broken", f"{rule}: {count:,}"
    by_reason: dict[str, list[str]] = {}
    for rule, why in report.not_checked.items():
        by_reason.setdefault(why, []).append(rule)
    for why, rules in by_reason.items():
        yield "not checked", f"{', '.join(rules)}: {why}"
    by_reason = {}
    for figure, why in report.figures_not_compared.items():
        by_reason.setdefault(why, []).append(figure)
    for why, figures in by_reason.items():
        yield "not compared", f"{', '.join(figures)}: {why}"
