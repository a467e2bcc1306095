"""The work of a pass: prompts computed, the batch, and the forward-pass record of it.

Decides whether batch, prefill list and record say the same, and that a prompt is computed once and whole before its
first token. Multi-token prediction may take scheduled requests back after the record was made (its bursts find no
room), so some figures have bounds there instead of one value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from mocker_replay.events import EventLevel, LogEvent
from mocker_replay.log.audit.findings import Findings
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Group, Ledger, Pass, QueueCounts, RankWork, Request, Stage

_CLOSE: Final = 1e-9  # variances are compared so far: a sum of squares has roundings of its own


class Work:
    """The rules `prefill`, `batch`, `chunking`, `budget`, `fpm-batch` and `fpm-queue`."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self._bursts = setup.num_drafts > 0
        self._tokens_shown = setup.level in (EventLevel.TOKENS, EventLevel.KV)
        self.before = {LogEvent.FIRST_TOKEN.value: self._token, LogEvent.TOKENS.value: self._token}
        self.closing = {LogEvent.PASS_START.value: self._start_closed, LogEvent.PASS_END.value: self._end_closed}

    def _token(self, event: Event) -> None:
        """A token comes when the whole prompt is there."""
        request = self._ledger.live.get(event["request"])
        if self._setup.level is EventLevel.REQUESTS or request is None:
            return
        there = request.prompt_done
        if there != request.input_tokens and not (self._setup.is_sglang and there > request.input_tokens):
            self._findings.add("prefill", "prompt tokens there at a token", request.prompt_done, request.input_tokens)
            request.prompt_done = request.input_tokens

    # -- a pass has started -------------------------------------------------------------------------

    def _start_closed(self, group: Group) -> None:
        flight = group.flight
        if flight is None:
            return
        for number, told in flight.ranks.items():
            if number >= self._setup.dp_size:
                continue
            rank = self._ledger.workers[group.worker].ranks[number]
            work = RankWork(told["scheduled_requests"], told["scheduled_tokens"])
            flight.work[number] = work
            preempted = set(group.preempted.get(number, ()))
            work.num_preempted = len(preempted)
            self._take_prefill(group, told, preempted, work)
            work.again = rank.running_again + len(preempted)
            if self._setup.books_outputs:
                work.cached = sum(self._finds_all(*entry) for entry in group.admitted.get(number, ()))
            mixes = not (self._setup.is_sglang and work.prompts)  # the other flavours decode beside prompts
            if self._tokens_shown and not preempted and work.requests == rank.running and mixes:
                work.decode_tokens = rank.running_tokens - sum(self._known(work.prompts))
            flight.queues[number] = QueueCounts(
                rank.new, rank.new_tokens, rank.new_squares,
                rank.preempted, rank.preempted_tokens, rank.preempted_squares,
            )  # fmt: skip
            cut = rank.waiting if self._setup.is_sglang else 0  # prompts of which a part is computed may wait again
            self._check_batch(group, number, work, rank.running + cut)

    def _finds_all(self, name: str, reused_tokens: int) -> bool:
        request = self._ledger.live.get(name)
        return request is not None and request.output_tokens > 0 and reused_tokens == request.input_tokens

    def _known(self, names: Iterable[str]) -> Iterable[int]:
        return (self._ledger.live[name].known_tokens for name in names)

    def _take_prefill(self, group: Group, told: dict[str, Any], preempted: set[str], work: RankWork) -> None:
        seen: set[str] = set()
        for name, tokens in told.get("prefill", ()):
            request = self._ledger.live.get(name)
            if request is None or request.rank != told["rank"] or request.worker != group.worker:
                self._findings.add("prefill", f"{name} is not on rank {told['rank']}", at=group.place)
                continue
            if name in seen or not tokens or not (request.admissions > request.preemptions or name in preempted):
                self._findings.add("prefill", f"{name}: a running request, once, with some tokens", at=group.place)
                continue
            seen.add(name)
            self._compute(group, request, tokens, work, is_undone=name in preempted)

    def _compute(self, group: Group, request: Request, tokens: int, work: RankWork, *, is_undone: bool) -> None:
        before = request.prompt_before if is_undone else request.prompt_done
        most = request.known_tokens if self._setup.is_sglang else request.input_tokens
        if before + tokens > most:
            self._findings.add("prefill", f"prompt tokens of {request.name}", before + tokens, most, at=group.place)
        elif not self._setup.chunked_prefill and before + tokens < request.input_tokens:
            self._findings.add(
                "chunking", f"prompt tokens of {request.name}", before + tokens, request.input_tokens, at=group.place
            )
        if is_undone:
            work.undone += 1
            return
        request.prompt_done = before + tokens
        if self._setup.is_sglang:
            # A prompt that is cut waits for its next part.
            self._ledger.move(request, Stage.RUNNING if before + tokens >= most else Stage.WAITING)
        work.prompts.add(request.name)
        work.prompt_tokens += tokens
        work.prefix_tokens += before
        work.lengths.append(request.input_tokens)

    def _check_batch(self, group: Group, number: int, work: RankWork, running: int) -> None:
        budget, at = self._setup.max_num_batched_tokens, group.place
        if budget is not None and work.tokens > budget:
            self._findings.add("budget", f"scheduled_tokens of rank {number}", work.tokens, budget, at=at)
        if not len(work.prompts) <= work.requests <= running:
            self._findings.add("batch", f"scheduled_requests of rank {number}", work.requests, running, at=at)
        if work.tokens < work.prompt_tokens:
            self._findings.add("batch", f"scheduled_tokens of rank {number}", work.tokens, work.prompt_tokens, at=at)

    # -- a pass has ended ---------------------------------------------------------------------------

    def _end_closed(self, group: Group) -> None:
        flight = group.flight
        if flight is None:
            return
        for told in group.head["ranks"]:
            work = flight.work.get(told["rank"])
            if work is not None:
                self._check_scheduled(group, flight, told["rank"], told["fpm"], work)
                self._check_queue(group, flight, told["rank"], told["fpm"])

    def _range(self, group: Group, rule: str, key: str, fpm: dict[str, Any], low: int, high: int) -> None:
        """A figure of a record against what it may be; most may be one thing only."""
        if not low <= fpm[key] <= high:
            self._findings.add(rule, key, fpm[key], low if fpm[key] < low else high, at=group.place)

    def _check_scheduled(self, group: Group, flight: Pass, number: int, fpm: dict[str, Any], work: RankWork) -> None:
        """Who is scheduled has prompt tokens, or decodes, or asks for no output and has no prompt left either."""
        slack = work.undone if self._bursts else 0
        prompts = len(work.prompts)
        self._range(group, "fpm-batch", "num_prefill_requests", fpm, prompts, prompts + slack)
        again = work.num_preempted if self._bursts or self._setup.is_sglang else 0
        silent = _silent(flight, number, work)
        decoding = work.requests - prompts
        self._range(
            group, "fpm-batch", "num_decode_requests", fpm, decoding - silent.most, decoding + again - silent.least
        )
        if slack == 0:
            self._range(group, "fpm-batch", "sum_prefill_kv_tokens", fpm, work.prefix_tokens, work.prefix_tokens)
            self._check_variance(group, "fpm-batch", "var_prefill_length", fpm, *_moments(work.lengths))
        if work.again == 0:
            # Nobody has output to compute again, so prompts take all that decoding does not.
            decoding = fpm["num_decode_requests"] - work.cached
            rest = work.tokens - decoding
            self._range(group, "fpm-batch", "sum_prefill_tokens", fpm, work.prompt_tokens, work.prompt_tokens)
            if rest != fpm["sum_prefill_tokens"]:
                self._findings.add(
                    "batch", f"scheduled_tokens of rank {number}", work.tokens,
                    fpm["sum_prefill_tokens"] + decoding, at=flight.place,
                )  # fmt: skip
        elif slack == 0:
            self._range(group, "fpm-batch", "sum_prefill_tokens", fpm, work.prompt_tokens, work.tokens)
        if work.decode_tokens is not None and silent.most == 0:
            self._range(group, "fpm-batch", "sum_decode_kv_tokens", fpm, work.decode_tokens, work.decode_tokens)

    def _check_queue(self, group: Group, flight: Pass, number: int, fpm: dict[str, Any]) -> None:
        """Who waited when the pass had started, without those whom that pass rejected."""
        queue = flight.queues[number]
        new, tokens, squares = queue.new, queue.new_tokens, queue.new_squares
        unsure = 0
        for gone in flight.gone:
            if gone.request.rank != number or gone.request.preemptions or gone.request.admissions:
                continue
            if gone.event == LogEvent.CANCELLATION:
                unsure += 1  # rejected or failed: a cancellation took the word away
            elif gone.event == LogEvent.REJECTION:
                new -= 1
                tokens -= gone.request.input_tokens
                squares -= gone.request.input_tokens**2
        self._range(group, "fpm-queue", "num_queued_prefill", fpm, new - unsure, new)
        if not unsure:
            self._range(group, "fpm-queue", "sum_queued_prefill_tokens", fpm, tokens, tokens)
            self._check_variance(group, "fpm-queue", "var_queued_prefill_length", fpm, new, tokens, squares)
        count, tokens, squares = queue.preempted, queue.preempted_tokens, queue.preempted_squares
        self._range(group, "fpm-queue", "num_queued_decode", fpm, count, count)
        self._range(group, "fpm-queue", "sum_queued_decode_kv_tokens", fpm, tokens, tokens)
        self._check_variance(group, "fpm-queue", "var_queued_decode_kv_tokens", fpm, count, tokens, squares)

    def _check_variance(
        self, group: Group, rule: str, key: str, fpm: dict[str, Any], count: int, total: int, squares: int
    ) -> None:
        derived = (count * squares - total * total) / (count * count) if count else 0.0
        if not math.isclose(fpm[key], derived, rel_tol=_CLOSE, abs_tol=_CLOSE):
            self._findings.add(rule, key, fpm[key], derived, at=group.place)


class _Between:
    """How many there are, at least and at most."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most


def _silent(flight: Pass, number: int, work: RankWork) -> _Between:
    """Requests scheduled in this pass that asked for no output and had no prompt tokens left to compute."""
    least = most = 0
    for gone in flight.gone:
        request = gone.request
        if request.rank == number and request.output_tokens == 0 and request.name not in work.prompts:
            if gone.event == LogEvent.FINISH:
                least += 1
                most += 1
            elif gone.event == LogEvent.CANCELLATION and request.admissions:
                most += 1
    return _Between(least, most)


def _moments(lengths: list[int]) -> tuple[int, int, int]:
    return len(lengths), sum(lengths), sum(length * length for length in lengths)
