"""Limits of the configuration that single lines can break: requests at a time, reuse, blocks.

Decides each by the line and its request alone. The token budget is with the work of a pass.
"""

from __future__ import annotations

from mocker_replay.events import LogEvent
from mocker_replay.log.audit.findings import Findings
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Ledger, Request


class Limits:
    """The rules `max-seqs`, `reuse` and `pool`."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self.before = {
            LogEvent.ADMISSION.value: self._reuse,
            LogEvent.PREEMPTION.value: self._held,
        }
        self.after = {LogEvent.ADMISSION.value: self._seqs}
        self.any = {
            LogEvent.COMMAND.value: self._command,
            LogEvent.PASS_END.value: self._pass_end,
            LogEvent.PREEMPTION.value: self._around,
        }

    def _seqs(self, event: Event) -> None:
        most = self._setup.max_num_seqs
        request = self._ledger.live.get(event["request"])
        if most is not None and request is not None:
            running = self._ledger.rank_of(request).running
            if running > most:
                self._findings.add("max-seqs", f"running requests of rank {request.rank}", running, most)

    def _reuse(self, event: Event) -> None:
        request = self._ledger.live.get(event["request"])
        if request is None:
            return
        reused, size = event["reused_tokens"], self._setup.block_size
        if reused and not self._setup.prefix_caching:
            self._findings.add("reuse", "reused tokens without prefix caching", reused, 0)
        elif reused % size:
            self._findings.add("reuse", "reused tokens are whole blocks", reused, reused // size * size)
        elif reused > (most := self._most_reused(request)):
            self._findings.add("reuse", "reused tokens of what it knows", reused, most)

    def _most_reused(self, request: Request) -> int:
        """Whole blocks of the known tokens; where output is to come the last token is computed in any case, unless the
        flavour decodes a prompt that is cached."""
        computed = request.output_tokens > 0 and not self._setup.books_outputs
        return (request.known_tokens - computed) // self._setup.block_size * self._setup.block_size

    def _held(self, event: Event) -> None:
        request = self._ledger.live.get(event["request"])
        if request is None:
            return
        most = self._setup.blocks_of(request.input_tokens + event["generated_tokens"])
        if event["blocks_held"] > most:
            self._findings.add("pool", "blocks that its tokens can fill", event["blocks_held"], most)

    # -- blocks of a rank ---------------------------------------------------------------------------

    def _check_blocks(self, used: int, rank: int) -> None:
        if used > self._setup.num_gpu_blocks:
            self._findings.add("pool", f"blocks of rank {rank}", used, self._setup.num_gpu_blocks)

    def _command(self, event: Event) -> None:
        gauges = event.get("gauges")
        if gauges is not None:
            self._check_blocks(gauges["active_blocks"] + gauges["inactive_blocks"], event["rank"])

    def _pass_end(self, event: Event) -> None:
        for rank in event["ranks"]:
            gauges = rank["gauges"]
            self._check_blocks(gauges["active_blocks"] + gauges["inactive_blocks"], rank["rank"])

    def _around(self, event: Event) -> None:
        self._check_blocks(max(event["before"]["active_blocks"], event["blocks_held"]), event["rank"])
