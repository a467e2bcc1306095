"""Tokens add up: request by request, pass by pass, and over the run.

Decides sums only. At level `tokens` each token is seen; below it, only what a pass says of all its requests.
"""

from __future__ import annotations

from collections import Counter

from mocker_replay.events import EventLevel, LogEvent
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Group, Ledger


class Tokens:
    """The rules `token-count`, `pass-tokens` and `emitted`."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self._tokens_shown = setup.level in (EventLevel.TOKENS, EventLevel.KV)
        self._emitted: Counter[tuple[int, int]] = Counter()  # (worker, rank) -> tokens of its passes
        self._delivered: Counter[tuple[int, int]] = Counter()  # the same -> tokens of its requests
        self.before = {LogEvent.TOKENS.value: self._tokens}
        ends = (LogEvent.FINISH, LogEvent.REJECTION, LogEvent.CANCELLATION, LogEvent.FAILURE, LogEvent.CUT)
        if not self._tokens_shown:
            self.before |= {event.value: self._end for event in ends}
        self.closing = {LogEvent.PASS_END.value: self._pass_end}

    def _tokens(self, event: Event) -> None:
        request = self._ledger.live.get(event["request"])
        if request is None:
            return
        group = self._ledger.group
        if group is not None and request.name in group.emitters.get(request.rank, ()):
            self._findings.add("token-count", "a second line of tokens in one pass")
        if event["total"] != request.generated + event["tokens"]:
            self._findings.add("token-count", "total", event["total"], request.generated + event["tokens"])
        most = self._setup.num_drafts + 1
        if not 1 <= event["tokens"] <= most:
            self._findings.add("token-count", "tokens of one request in one pass", event["tokens"], most)

    def _end(self, event: Event) -> None:
        self._delivered[event["worker"], event["rank"]] += event["output_tokens"]

    def _pass_end(self, group: Group) -> None:
        for told in group.head["ranks"]:
            rank, stated = told["rank"], told["tokens"]
            self._emitted[group.worker, rank] += stated
            first = group.first_tokens.get(rank, set())
            if self._tokens_shown:
                if stated != group.tokens.get(rank, 0):
                    self._findings.add(
                        "pass-tokens", f"tokens of rank {rank}", stated, group.tokens.get(rank, 0), at=group.place
                    )
                silent = first - group.emitters.get(rank, set())
                if silent:
                    self._findings.add("token-count", f"a first token without tokens: {min(silent)}", at=group.place)
            elif stated < len(first):
                self._findings.add(
                    "pass-tokens", f"tokens of rank {rank}, by first tokens", stated, len(first), at=group.place
                )

    def finish(self, at: Place) -> None:
        """The log is over."""
        if self._tokens_shown:
            return
        for place in sorted(self._emitted.keys() | self._delivered.keys()):
            emitted, delivered = self._emitted[place], self._delivered[place]
            if emitted != delivered:
                self._findings.add(
                    "emitted", f"tokens of the passes of worker {place[0]} rank {place[1]}, and of its requests",
                    emitted, delivered, at=at,
                )  # fmt: skip
