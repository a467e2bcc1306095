"""The life of each request: arrival, submission, admission, first token, preemption, one end.

Decides whether a line may follow what its request has been through. Never looks at sums or at other requests.
"""

from __future__ import annotations

from typing import Final

from mocker_replay.events import EventLevel, LogEvent, RunEnd
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Group, Ledger, Request, Stage

_SHOWN: Final = 5  # names of requests in one finding


class SeenRows:
    """Rows of the trace that have arrived, a bit each."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, row: int) -> bool:
        """Whether the row is new."""
        byte, bit = row >> 3, 1 << (row & 7)
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + 1 - len(self._bits) + len(self._bits) // 2))
        if self._bits[byte] & bit:
            return False
        self._bits[byte] |= bit
        return True


def row_of(event: Event) -> int | None:
    """The row of an arrival; None when it has none."""
    if "row" in event:
        row: int = event["row"]
        return row
    digits = event["request"][1:]
    named = event["request"][:1] == "r" and digits.isascii() and digits.isdecimal()
    return int(digits) if named and digits == str(int(digits)) else None


class Life:
    """One handler an event; each is called before the line takes effect."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self._rows = SeenRows()
        self._num_cut = 0
        self._tokens_shown = setup.level in (EventLevel.TOKENS, EventLevel.KV)
        self.before = {
            LogEvent.ARRIVAL.value: self._arrival,
            LogEvent.COMMAND.value: self._command,
            LogEvent.ADMISSION.value: self._admission,
            LogEvent.FIRST_TOKEN.value: self._first_token,
            LogEvent.TOKENS.value: self._tokens,
            LogEvent.PREEMPTION.value: self._preemption,
            LogEvent.FINISH.value: self._finish,
            LogEvent.REJECTION.value: self._rejection,
            LogEvent.FAILURE.value: self._failure,
            LogEvent.CANCELLATION.value: self._cancellation,
            LogEvent.CUT.value: self._cut,
        }
        self.closing = {LogEvent.PASS_END.value: self._pass_end, LogEvent.COMMAND.value: self._command_end}

    def repeats_a_live_name(self, event: Event) -> bool:
        """Whether an arrival makes two live requests of one name that the trace gave to two rows."""
        return event["request"] in self._ledger.live and "row" in event and event["row"] < self._setup.trace_rows

    def any_line(self, event: Event) -> None:
        """What holds for every line."""
        if self._num_cut and event["event"] != LogEvent.CUT:
            self._findings.add("cut", "nothing but cuts follows a cut")

    def finish(self, end: str, at: Place) -> None:
        """The log is over."""
        left = list(self._ledger.live)
        if left:
            names = ", ".join(left[:_SHOWN]) + (", ..." if len(left) > _SHOWN else "")
            self._findings.add("left-over", f"requests that neither ended nor were cut: {names}", len(left), 0, at=at)
        if end == RunEnd.COMPLETE and self._num_cut:
            self._findings.add("end-word", "cuts in a run that completed", self._num_cut, 0, at=at)

    # -- helpers ------------------------------------------------------------------------------------

    def _who(self, event: Event) -> Request | None:
        """The request of a line, which must live and be where it was placed."""
        request = self._ledger.live.get(event["request"])
        if request is None:
            self._findings.add("known", f"{event['request']} has not arrived, or has ended")
            return None
        if "worker" in event:
            place = [event["worker"], event["rank"]]
            if place != [request.worker, request.rank]:
                self._findings.add("placement", "worker and rank", place, [request.worker, request.rank])
        return request

    def _in_flight(self, event: Event) -> bool:
        worker: int = event["worker"]
        return self._ledger.exists(worker) and self._ledger.workers[worker].in_flight is not None

    def _runs(self, event: Event, rule: str) -> Request | None:
        request = self._who(event)
        if request is not None and request.stage is not Stage.RUNNING:
            self._findings.add(rule, f"the request is {_NAMES[request.stage]}, not running")
        return request

    # -- events -------------------------------------------------------------------------------------

    def _arrival(self, event: Event) -> None:
        row = row_of(event)
        if not self._ledger.exists(event["worker"], event["rank"]):
            place = [self._setup.num_workers, self._setup.dp_size]
            self._findings.add("arrival", "no such worker and rank", [event["worker"], event["rank"]], place)
        if row is None:
            self._findings.add("arrival", "a request without a name of its own is called r and its row")
        elif row >= self._setup.trace_rows:
            self._findings.add("arrival", "the trace has fewer rows", row, self._setup.trace_rows)
        elif not self._rows.add(row):
            self._findings.add("arrival", f"row {row} has arrived before")

    def _command(self, event: Event) -> None:
        if event["kind"] == "submit":
            self._submission(event)
        else:
            self._cancel(event)

    def _submission(self, event: Event) -> None:
        request = self._who(event)
        if request is not None and request.stage is not Stage.LANE:
            self._findings.add("submission", "the request has been submitted before")
        if event["in_pass"] or self._in_flight(event):
            self._findings.add("submission", "a submission is applied between passes")
        if event["result"] not in ("submitted", "refused") or "suppressed" in event:
            self._findings.add("submission", "a submission has results of its own", event["result"], "submitted")

    def _cancel(self, event: Event) -> None:
        found = event["result"] == "applied" or event.get("suppressed", False)
        if "suppressed" not in event or event["result"] not in ("applied", "noop"):
            self._findings.add("cancellation", "a cancellation is applied or noop, and says what it suppressed")
        if event["in_pass"] != self._in_flight(event):
            self._findings.add("cancellation", "in_pass", event["in_pass"], not event["in_pass"])
        if event.get("suppressed") and not event["in_pass"]:
            self._findings.add("cancellation", "between passes there is no output to suppress")
        if not found:
            self._found_nothing(event)
            return
        request = self._who(event)
        if request is not None and request.stage not in (Stage.WAITING, Stage.RUNNING):
            self._findings.add("cancellation", f"the request is {_NAMES[request.stage]}, nothing can be found")

    def _found_nothing(self, event: Event) -> None:
        """Right for a request that is not submitted, has ended, or ends with the pass in flight (seen at its end)."""
        request = self._ledger.live.get(event["request"])
        if request is None or request.own_name:
            return  # it may be about an earlier request of that name, which has ended
        self._who(event)
        if request.stage in (Stage.WAITING, Stage.RUNNING) and not self._in_flight(event):
            self._findings.add("cancellation", "nothing found, but the request was in the engine")

    def _admission(self, event: Event) -> None:
        request = self._who(event)
        if request is None:
            return
        if request.stage is not Stage.WAITING:
            self._findings.add("admission", f"the request is {_NAMES[request.stage]}, not waiting")
        if event["readmission"] != (request.admissions > 0):
            self._findings.add("admission", "readmission", event["readmission"], request.admissions > 0)

    def _first_token(self, event: Event) -> None:
        request = self._runs(event, "first-token")
        if request is not None and request.first_token_ms is not None:
            self._findings.add("first-token", f"the request had its first token at {request.first_token_ms} ms")

    def _tokens(self, event: Event) -> None:
        request = self._runs(event, "token-count")
        if request is not None and request.first_token_ms is None:
            self._findings.add("first-token", "tokens of a request that had no first one")

    def _preemption(self, event: Event) -> None:
        request = self._runs(event, "preemption")
        if request is None:
            return
        if self._setup.books_outputs:
            self._findings.add("preemption", "the flavour preempts nobody")
        if event["preemptions"] != request.preemptions + 1:
            self._findings.add("preemption", "preemptions so far", event["preemptions"], request.preemptions + 1)
        if self._tokens_shown:
            if event["generated_tokens"] != request.generated:
                self._findings.add("preemption", "generated tokens", event["generated_tokens"], request.generated)
        elif (event["generated_tokens"] > 0) != (request.first_token_ms is not None):
            had = request.first_token_ms is not None
            self._findings.add("preemption", "generated tokens, by whether it had one", event["generated_tokens"], had)

    def _finish(self, event: Event) -> None:
        self._runs(event, "end")

    def _rejection(self, event: Event) -> None:
        request = self._who(event)
        if request is not None and (request.stage is not Stage.WAITING or request.admissions):
            self._findings.add("end", "rejected is who waits and has never been admitted")

    def _failure(self, event: Event) -> None:
        wanted = Stage.RUNNING if event["reason"] == "burst_over_pool" else Stage.WAITING
        request = self._who(event)
        if request is not None and request.stage is not wanted:
            self._findings.add("end", f"the request is {_NAMES[request.stage]}, not {_NAMES[wanted]}")

    def _cancellation(self, event: Event) -> None:
        request = self._who(event)
        commands = self._setup.level is not EventLevel.REQUESTS
        if request is not None and commands and request.stage is not Stage.LEAVING:
            self._findings.add("cancellation", "no command has ended this request")

    def _cut(self, event: Event) -> None:
        self._num_cut += 1
        self._who(event)

    # -- ends of groups -----------------------------------------------------------------------------

    def _command_end(self, group: Group) -> None:
        """A cancellation that found its request must have been followed by its end."""
        request = self._ledger.live.get(group.head["request"])
        if request is not None and request.stage is Stage.LEAVING:
            self._findings.add("cancellation", "the end of what it found does not follow", at=group.place)

    def _pass_end(self, group: Group) -> None:
        for request, place in group.flight.found_nothing if group.flight is not None else ():
            if self._ledger.live.get(request.name) is request:
                self._findings.add(
                    "cancellation", "nothing found, but the request did not end with the pass in flight", at=place
                )


_NAMES: Final = {
    Stage.LANE: "not submitted",
    Stage.WAITING: "waiting",
    Stage.RUNNING: "running",
    Stage.LEAVING: "cancelled",
}
