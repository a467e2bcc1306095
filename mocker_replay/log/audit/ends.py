"""What an end says: tokens delivered, time of the last one, reason and figures.

Decides whether these follow from the request and the limits of the run. Never decides whether it may end now.
"""

from __future__ import annotations

import math
from typing import Final

from mocker_replay.events import EventLevel, LogEvent
from mocker_replay.log.audit.findings import Findings
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Ledger, Request

_REASONS: Final[dict[str, dict[str, tuple[str, ...]]]] = {  # event -> reason -> its figures
    LogEvent.FINISH: {"output_length": (), "model_len": (), "pool_len": ()},
    LogEvent.REJECTION: {
        "prompt_over_model_len": ("needed_tokens", "max_model_len"),
        "prompt_over_pool": ("needed_blocks", "pool_blocks"),
    },
    LogEvent.CANCELLATION: {"client": ()},
    LogEvent.FAILURE: {
        "growth_over_pool": ("needed_blocks", "pool_blocks"),
        "prompt_over_budget": ("needed_tokens", "max_num_batched_tokens"),
        "burst_over_pool": ("needed_blocks", "pool_blocks"),
    },
}
_FIGURES: Final = frozenset(
    {"needed_blocks", "pool_blocks", "needed_tokens", "max_model_len", "max_num_batched_tokens"}
)


class Ends:
    """The rules `end` (reasons), `output-tokens`, `last-token` and `model-len`."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self._tokens_shown = setup.level in (EventLevel.TOKENS, EventLevel.KV)
        ends = (LogEvent.FINISH, LogEvent.REJECTION, LogEvent.CANCELLATION, LogEvent.FAILURE)
        self.before = {event.value: self._end for event in ends} | {LogEvent.CUT.value: self._cut}

    def _end(self, event: Event) -> None:
        request = self._ledger.live.get(event["request"])
        if request is None:
            return
        figures = _REASONS[event["event"]].get(event["reason"])
        if figures is None:
            self._findings.add("end", f"{event['event']} with a reason of another event", event["reason"])
        else:
            self._check_figures(event, figures)
            self._check_reason(event, request)
        self._check_delivered(event, request)

    def _cut(self, event: Event) -> None:
        request = self._ledger.live.get(event["request"])
        if request is not None:
            self._check_delivered(event, request)

    # -- reasons ------------------------------------------------------------------------------------

    def _check_figures(self, event: Event, figures: tuple[str, ...]) -> None:
        told = tuple(key for key in event if key in _FIGURES)
        if told != figures:
            self._findings.add("end", f"figures of {event['reason']}", list(told), list(figures))

    def _check_reason(self, event: Event, request: Request) -> None:
        """Figures are those of the request and of the run, and the first is over the second."""
        reason, setup = event["reason"], self._setup
        needed, limit = _needed(event), _limit(event)
        if reason == "prompt_over_model_len":
            self._compare("needed_tokens", needed, request.input_tokens)
            self._compare("max_model_len", limit, setup.max_model_len)
            over = needed is None or limit is None or needed >= limit
        elif reason == "prompt_over_budget":
            self._compare("needed_tokens", needed, request.input_tokens)
            self._compare("max_num_batched_tokens", limit, setup.max_num_batched_tokens)
            over = (needed is None or limit is None or needed > limit) and not setup.chunked_prefill
        elif reason in ("prompt_over_pool", "growth_over_pool", "burst_over_pool"):
            if reason != "burst_over_pool":
                self._compare("needed_blocks", needed, setup.blocks_of(self._tokens_of(request, reason)))
            self._compare("pool_blocks", limit, setup.num_gpu_blocks)
            over = needed is None or limit is None or needed > limit
        else:
            over = True
        if not over:
            self._findings.add("end", f"{reason}: what is needed is there", needed, limit)

    def _tokens_of(self, request: Request, reason: str) -> int:
        """What does not fit: the prompt and what is known, or the whole life where that has to fit."""
        if reason != "prompt_over_pool" or not self._setup.books_outputs:
            return request.known_tokens
        longest = self._setup.max_model_len
        most = request.input_tokens + request.output_tokens
        return most if longest is None else min(most, longest)

    def _compare(self, key: str, stated: int | None, derived: int | None) -> None:
        if stated is not None and stated != derived:
            self._findings.add("end", key, stated, derived)

    # -- what was delivered -------------------------------------------------------------------------

    def _check_delivered(self, event: Event, request: Request) -> None:
        delivered, last_ms = event["output_tokens"], event["last_token_ms"]
        if self._tokens_shown:
            if delivered != request.generated:
                self._findings.add("output-tokens", "output delivered", delivered, request.generated)
            if last_ms != request.last_token_ms:
                self._findings.add("last-token", "time of the last token", last_ms, request.last_token_ms)
        else:
            self._check_delivered_roughly(event, request)
        if delivered > request.output_tokens:
            self._findings.add("output-tokens", "more output than asked for", delivered, request.output_tokens)
        elif event["event"] == LogEvent.FINISH:
            self._check_complete(event, request)
        longest = self._setup.max_model_len
        if longest is not None and delivered and request.input_tokens + delivered > longest:
            self._findings.add("model-len", "prompt and output", request.input_tokens + delivered, longest)

    def _check_complete(self, event: Event, request: Request) -> None:
        delivered = event["output_tokens"]
        if event["reason"] == "output_length" and delivered != request.output_tokens:
            self._findings.add("output-tokens", "output of a request that got all", delivered, request.output_tokens)
        longest = self._setup.max_model_len
        if event["reason"] == "model_len" and (longest is None or request.input_tokens + delivered < longest):
            self._findings.add(
                "output-tokens", "prompt and output at max_model_len", request.input_tokens + delivered, longest
            )

        fills = request.input_tokens + delivered == self._setup.pool_tokens
        if event["reason"] == "pool_len" and not (fills and self._setup.books_outputs):
            self._findings.add(
                "output-tokens", "prompt and output fill the pool", request.input_tokens + delivered,
                self._setup.pool_tokens,
            )  # fmt: skip

    def _check_delivered_roughly(self, event: Event, request: Request) -> None:
        """Below level `tokens`: whether there was one, and the bounds of its time."""
        delivered, last_ms = event["output_tokens"], event["last_token_ms"]
        first_ms = request.first_token_ms
        if (delivered > 0) != (first_ms is not None):
            self._findings.add("output-tokens", "output, by whether it had a first token", delivered, bool(first_ms))
        elif delivered < request.generated:
            self._findings.add("output-tokens", "less than at its last preemption", delivered, request.generated)
        if (last_ms is None) != (first_ms is None):
            self._findings.add("last-token", "no token, no time of one", last_ms, first_ms)
        elif last_ms is None or first_ms is None:
            return
        elif event["event"] == LogEvent.FINISH and last_ms != event["t_ms"]:
            self._findings.add("last-token", "the last token ends the request", last_ms, event["t_ms"])
        elif last_ms < first_ms:
            self._findings.add("last-token", "the last token comes with the first or later", last_ms, first_ms)
        elif last_ms > self._latest_ms(event, request):
            self._findings.add("last-token", "a last token yet to come", last_ms, self._latest_ms(event, request))

    def _latest_ms(self, event: Event, request: Request) -> float:
        """When the last pass that can have shown a token has ended; where no pass is told of, by now."""
        if self._setup.level is not EventLevel.REQUESTS:
            return self._ledger.workers[request.worker].clock_ms
        return math.inf if self._setup.measured else event["t_ms"]


def _needed(event: Event) -> int | None:
    value: int | None = event.get("needed_tokens", event.get("needed_blocks"))
    return value


def _limit(event: Event) -> int | None:
    for key in ("max_model_len", "max_num_batched_tokens", "pool_blocks"):
        if key in event:
            value: int = event[key]
            return value
    return None
