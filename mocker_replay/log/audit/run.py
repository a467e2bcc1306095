"""One pass over a log: every line through every rule.

Decides the order in which rules see a line: its form, its place among the lines, then its request and its figures,
before and after it takes effect; and what happens when requests cannot be told apart. Never decides a rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct, field

from mocker_replay.errors import ExitCode
from mocker_replay.events import EventLevel, LogEvent
from mocker_replay.log.audit.cache import Cache
from mocker_replay.log.audit.decisions import Decisions
from mocker_replay.log.audit.ends import Ends
from mocker_replay.log.audit.figures import Figures
from mocker_replay.log.audit.findings import Finding, Findings, Place
from mocker_replay.log.audit.form import Event, Form
from mocker_replay.log.audit.gauges import Gauges
from mocker_replay.log.audit.handoffs import Handoffs
from mocker_replay.log.audit.header import Setup, read_setup
from mocker_replay.log.audit.host_tiers import HostTiers
from mocker_replay.log.audit.ledger import Group, Ledger
from mocker_replay.log.audit.life import Life
from mocker_replay.log.audit.limits import Limits
from mocker_replay.log.audit.order import Order
from mocker_replay.log.audit.passes import Passes
from mocker_replay.log.audit.plays import Plays
from mocker_replay.log.audit.pools import Pools
from mocker_replay.log.audit.rules import HANDOFF_RULES, HOST_RULES, LEVEL_ORDER, OF_ROLES, RULES, Rule, decided_by
from mocker_replay.log.audit.summary import compare, derive
from mocker_replay.log.audit.tokens import Tokens
from mocker_replay.log.audit.totals import Totals
from mocker_replay.log.audit.work import Work
from mocker_replay.log.reader import EventLogReader, LogError

Handler = Callable[[Event], None]
Closer = Callable[[Group], None]

# Rules that do not need to know which request a line means.
NAMELESS: Final = frozenset(
    {
        "form", "seq", "time", "grouping", "pass-pair", "pass-number", "pass-time", "wall-time", "idle-rank", "pool",
        "kv-stored", "kv-removed", "kv-run", "kv-chain", "kv-pool", "preemption-gauges", "left-over",
        "footer", "digest", "end-word",
    }
)  # fmt: skip


class AuditReport(Struct):
    """What an audit found."""

    log: str
    setup: Setup
    num_events: int = 0
    num_findings: int = 0
    findings: list[Finding] = field(default_factory=list)  # by line; not all of them if there are very many
    by_rule: dict[str, int] = field(default_factory=dict)
    not_checked: dict[str, str] = field(default_factory=dict)  # rule -> why
    figures_not_compared: dict[str, str] = field(default_factory=dict)  # figure of the summary -> why
    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)  # that there are for such a log
    damage: str | None = None  # why the log could not be read to its end

    @property
    def exit_code(self) -> ExitCode:
        if self.damage is not None:
            return ExitCode.USAGE
        return ExitCode.DIFFERS if self.num_findings else ExitCode.OK

    def to_mapping(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "log": self.log.encode(errors="backslashreplace").decode(),
            "level": str(self.setup.level),
            "events": self.num_events,
            "num_findings": self.num_findings,
            "findings": [finding.to_mapping() for finding in self.findings],
            "by_rule": self.by_rule,
            "checked": [name for name in self.rules if name not in self.not_checked],
            "not_checked": self.not_checked,
            "figures_not_compared": self.figures_not_compared,
            "damage": self.damage,
        }


def audit(log: str | os.PathLike[str], summary: Mapping[str, Any] | None = None) -> AuditReport:
    """Hold a log against every rule that its level can decide.

    Args:
        log: an event log, plain or compressed; `-` is standard input.
        summary: the stored summary of the same run, to be derived again from the lines.

    Raises:
        LogError: no event log. One that ends early or is damaged further on is a report that says so.
    """
    with EventLogReader(log, check_footer=False) as reader:
        setup = read_setup(reader.header, reader.name)
        checked = decided_by(setup.level) - ({"summary"} if summary is None else set())
        if setup.has_tier and setup.level is not EventLevel.REQUESTS:
            checked |= set(HOST_RULES)
        if setup.num_prefill_workers:
            checked = (checked | decided_by(setup.level, HANDOFF_RULES)) & OF_ROLES
        one_pass = (_PassOfRoles if setup.num_prefill_workers else _Pass)(
            setup, Findings(checked), with_figures="summary" in checked
        )
        report = AuditReport(reader.name, setup)
        try:
            for line in reader.lines():
                one_pass.take(line)
        except LogError as exc:
            report.damage = str(exc)
        else:
            one_pass.finish(reader, summary)
        one_pass.report_to(report, summary)
    return report


class _Pass:
    """The rule families, and which of their handlers see an event."""

    def __init__(self, setup: Setup, findings: Findings, *, with_figures: bool) -> None:
        self.setup, self.findings = setup, findings
        self.ledger = ledger = Ledger(setup)
        self.form = Form(setup, findings)
        self.order = Order(setup, ledger, findings)
        self.life = Life(setup, ledger, findings)
        self.tokens = Tokens(setup, ledger, findings)
        self.passes = Passes(setup, ledger, findings)
        self.totals = Totals(setup, findings)
        self.plays = Plays(setup, findings)
        self.tiers = HostTiers(setup, findings)
        self.figures = Figures() if with_figures else None
        self.untold: dict[str, str] = {}
        ends, work = Ends(setup, ledger, findings), Work(setup, ledger, findings)
        limits, gauges = Limits(setup, ledger, findings), Gauges(setup, ledger, findings)
        cache, decisions = Cache(setup, ledger, findings), Decisions(setup, ledger, findings)
        self._nameless = _merged(self.passes.before, limits.any, gauges.any, cache.any, self.totals.any)
        by_name = (
            self.life.before, ends.before, self.tokens.before, self.passes.before_by_name, work.before,
            decisions.before, self.plays.before, self.tiers.before,
        )  # fmt: skip
        self._before = _merged(*by_name, limits.before, gauges.before, cache.before)
        if self.figures is not None:
            self._before = _merged(self._before, self.figures.any)
        self._after = _merged(limits.after, gauges.after, self.passes.after_by_name)
        self._closing_nameless = _merged(cache.closing_any)
        self._closing = _merged(
            self.life.closing, work.closing, self.passes.closing_by_name, self.tokens.closing, gauges.closing,
            decisions.closing,
        )  # fmt: skip
        self.suspended: Place | None = None  # the line from which on requests cannot be told apart
        self._line = 1

    def take(self, line: bytes) -> None:
        """One event line."""
        self._line += 1
        self.findings.here = self.ledger.here = Place(self._line, self._line - 2)
        event = self.form.read(line)
        if event is None:
            self.order.skip()
            return
        self.order.count(event)
        group = self.order.leaves(event)
        if group is not None:
            self._close(group)
        if event["event"] == LogEvent.ARRIVAL and self.suspended is None and self.life.repeats_a_live_name(event):
            self._suspend()
        kind = event["event"]
        self.order.enter(event)
        for handler in self._nameless.get(kind, ()):
            handler(event)
        if self.suspended is None:
            self.life.any_line(event)
            if self.figures is not None:
                self.figures.note_time(event)
            for handler in self._before.get(kind, ()):
                handler(event)
        self.ledger.apply(event)
        if self.suspended is None:
            for handler in self._after.get(kind, ()):
                handler(event)

    def finish(self, reader: EventLogReader, summary: Mapping[str, Any] | None) -> None:
        """The footer was reached."""
        if self.ledger.group is not None:
            group, self.ledger.group = self.ledger.group, None
            self._close(group)
        assert reader.footer is not None, "the lines end with a footer or an error"
        footer, at = reader.footer, Place(self._line + 1, None)
        end = str(footer.get("end"))
        follow_requests = self.suspended is None
        self.totals.finish(footer, reader.num_events, reader.hexdigest(), at, follow_requests=follow_requests)
        self.passes.finish(end)
        if not follow_requests:
            return
        self.life.finish(end, at)
        self.plays.finish(footer, at)
        self.tokens.finish(at)
        self.tiers.finish(end)
        if self.figures is not None and summary is not None:
            self.untold = compare(summary, derive(self.figures, self.setup, end), self.findings, at)

    def report_to(self, report: AuditReport, summary: Mapping[str, Any] | None) -> None:
        """What this pass found, and what it could not decide."""
        report.num_events = self._line - 1
        report.num_findings = self.findings.num_findings
        report.findings = self.findings.in_order()
        if self.setup.num_prefill_workers:
            report.rules = RULES | HANDOFF_RULES
        if self.setup.has_tier:
            report.rules = {**report.rules, **HOST_RULES}
        report.by_rule = {name: self.findings.by_rule[name] for name in report.rules if self.findings.by_rule[name]}
        report.figures_not_compared = self.untold
        for name, rule in report.rules.items():
            if LEVEL_ORDER.index(rule.level) > LEVEL_ORDER.index(self.setup.level):
                report.not_checked[name] = f"needs level {rule.level}"
            elif name == "summary" and summary is None:
                report.not_checked[name] = "no summary was given"
            elif self.setup.num_prefill_workers and name not in OF_ROLES:
                report.not_checked[name] = "not built for prefill and decode workers"
            elif self.suspended is not None and name not in NAMELESS:
                report.not_checked[name] = f"two requests of one name live from line {self.suspended.line} on"

    def _suspend(self) -> None:
        """Two live requests have one name: from here on lines say nothing about either of them for sure."""
        self.suspended = self.findings.here
        self.ledger.follows_requests = False

    def _close(self, group: Group) -> None:
        for closer in self._closing_nameless.get(group.kind, ()):
            closer(group)
        if self.suspended is None:
            for closer in self._closing.get(group.kind, ()):
                closer(group)


class _PassOfRoles(_Pass):
    """A log with prefill and decode workers: the life of handoffs, and what holds of any log."""

    def __init__(self, setup: Setup, findings: Findings, *, with_figures: bool) -> None:
        super().__init__(setup, findings, with_figures=with_figures)
        self.handoffs = Handoffs(setup, findings)
        self.pools = Pools(setup, findings)

    def take(self, line: bytes) -> None:
        self._line += 1
        self.findings.here = self.ledger.here = Place(self._line, self._line - 2)
        event = self.form.read(line)
        if event is None:
            self.order.skip()
            return
        self.order.count(event)
        if event["event"] == LogEvent.ARRIVAL and self.suspended is None and self.handoffs.repeats_a_name(event):
            self._suspend()
            self.pools.stop_following()
        self.pools.before(event)
        by_name = (self.handoffs.before, self.tiers.before) if self.suspended is None else ()
        for handlers in (self.totals.any, *by_name):
            if event["event"] in handlers:
                handlers[event["event"]](event)

    def finish(self, reader: EventLogReader, summary: Mapping[str, Any] | None) -> None:
        assert reader.footer is not None, "the lines end with a footer or an error"
        footer, at = reader.footer, Place(self._line + 1, None)
        self.totals.finish(footer, reader.num_events, reader.hexdigest(), at, follow_requests=False)
        self.pools.finish(str(footer.get("end")))
        if self.suspended is None:
            self.handoffs.finish(str(footer.get("end")), at)
            self.tiers.finish(str(footer.get("end")))


def _merged(*tables: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """All handlers of each event, in order; entries may be handlers or tuples of them."""
    merged: dict[str, tuple[Any, ...]] = {}
    for table in tables:
        for event, handlers in table.items():
            merged[event] = merged.get(event, ()) + _as_tuple(handlers)
    return merged


def _as_tuple(handlers: Any) -> tuple[Any, ...]:
    return handlers if isinstance(handlers, tuple) else (handlers,)


def read_summary(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A stored summary.

    Raises:
        LogError: the file cannot be read, or is no JSON object.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            summary = orjson.loads(file.read())
    except OSError as exc:
        raise LogError(f"cannot read {name}: {exc.strerror}") from exc
    except orjson.JSONDecodeError as exc:
        raise LogError(f"{name}: not a summary: {exc}") from exc
    if not isinstance(summary, dict):
        raise LogError(f"{name}: a summary must be a JSON object")
    return summary
