"""A rank with host memory under any order of commands: no host block is owned twice, none is lost, and all is drained.

Requests, sources and destinations of handoffs come, leave, fail and time out (a time-out is a cancellation at either
end) in any order, in mid-pass or between passes. A slow model of copies and blocks is kept from what the rank tells
alone; the rank's own books are walked after every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from xxhash import xxh3_64_intdigest

from mocker_replay._core.lanes import Command
from mocker_replay._core.offload import HostTier
from mocker_replay.events import EventKind, HostStep
from tests.support.machines import Record, Shell, fixed, make_machine

BLOCK_SIZE = 4
NUMBERS = st.integers(0, 7)  # of requests and of handoffs; few, so that they are used again
LENGTHS = st.integers(1, 22)
DOCUMENTS = st.integers(0, 2)
BEGINS = ("submit", "submit_prefill", "reserve_destination")
ENDS = ("activate_destination", "release_source", "cancel_source", "cancel_destination")
STORES = {HostStep.STORE_PREPARED, HostStep.STORE_SUBMITTED, HostStep.STORE_COMPLETED}
FINAL = {HostStep.STORE_COMPLETED, HostStep.LOAD_COMPLETED, HostStep.LOAD_CANCELLED}


@dataclass
class Copies:
    """What the lines say of copies and of the blocks in host memory."""

    num_blocks: int
    begun: dict[int, tuple[bool, int, int]] = field(default_factory=dict)  # under way: is a store, request, blocks
    ended: int = 0
    resident: int = 0
    pending: int = 0

    def read(self, record: Record) -> None:
        step = HostStep(record.a)
        copy = (step in STORES, record.request, record.c)
        if step is HostStep.EVICTED:
            self.resident -= record.c
        elif step in (HostStep.STORE_PREPARED, HostStep.LOAD_SCHEDULED):
            assert record.b == self.ended + len(self.begun), "copies are numbered as they begin"
            self.begun[record.b] = copy
            self.pending += record.c * (step is HostStep.STORE_PREPARED)
        elif step not in (HostStep.FENCE, HostStep.LOAD_RETURNED):
            assert self.begun[record.b] == copy, "a copy goes on as it began"
            if step in FINAL:
                del self.begun[record.b]
                self.ended += 1
                self.resident += record.c * (step is HostStep.STORE_COMPLETED)
                self.pending -= record.c * (step is HostStep.STORE_COMPLETED)
        loading = [request for is_store, request, _ in self.begun.values() if not is_store]
        assert len(loading) == len(set(loading)), "a request loads once at a time"
        assert min(self.resident, self.pending) >= 0
        assert self.resident + self.pending <= self.num_blocks, "more blocks than there is room for"


class TieredRank(RuleBasedStateMachine):
    @initialize(
        host_blocks=st.integers(1, 12),
        num_blocks=st.integers(2, 9),
        max_num_seqs=st.integers(1, 4),
        d2h=st.sampled_from((0.0, 1.0, 0.05)),
        h2d=st.sampled_from((0.0, 1.0, 0.05)),
        latency=st.sampled_from((0.0, 2.0)),
    )
    def start(
        self, host_blocks: int, num_blocks: int, max_num_seqs: int, d2h: float, h2d: float, latency: float
    ) -> None:
        self.tier = HostTier(host_blocks, 1e6, d2h, h2d, latency, BLOCK_SIZE, BLOCK_SIZE)
        machine = make_machine(
            num_gpu_blocks=num_blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=16, max_model_len=60,
            timing=fixed(10.0, 3.0), tier=self.tier, xxh3=xxh3_64_intdigest,
            block_tokens=lambda request, begin, end: bytes(4 * (end - begin)),
        )  # fmt: skip
        self.shell = Shell(machine)
        self.scheduler = machine.engine.schedulers[0]
        self.copies = Copies(host_blocks)
        self.ids = 0
        self.live: set[int] = set()

    def ask(self, kind: str, request: int, handoff: int, n_in: int = 0, n_out: int = 0, document: int = 0) -> None:
        brings = kind in BEGINS
        hash_ids = tuple(100 * document + block for block in range(-(-n_in // BLOCK_SIZE))) if brings else ()
        command = Command(
            self.ids, kind, request, 0, n_in, n_out, hash_ids, kind == "cancel",
            handoff=-1 if kind in ("submit", "cancel") else handoff,
        )  # fmt: skip
        self.ids += 1
        self.live.add(request)
        self.shell.put(command)
        self.shell.run()

    @rule(kind=st.sampled_from(BEGINS), request=NUMBERS, n_in=LENGTHS, n_out=st.integers(0, 12), document=DOCUMENTS)
    def begin(self, kind: str, request: int, n_in: int, n_out: int, document: int) -> None:
        self.ask(kind, request, request, n_in, n_out, document)

    @rule(kind=st.sampled_from(ENDS), handoff=NUMBERS)
    def go_on(self, kind: str, handoff: int) -> None:
        self.ask(kind, handoff, handoff)

    @rule(request=NUMBERS)
    def leave(self, request: int) -> None:
        self.ask("cancel", request, -1)

    @rule(step_ms=st.sampled_from((0.0, 1.0, 3.0, 10.0, 100.0)))
    def wait(self, step_ms: float) -> None:
        self.shell.run(self.shell.now_ms + step_ms)

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "shell"):
            return
        assert self.shell.machine.phase_name != "stopped", self.shell.steps[-1].error
        for record in self.shell.events(EventKind.HOST):
            self.copies.read(record)
        assert self.tier.num_entries == self.copies.resident + self.copies.pending, "host blocks lost"
        order = self.tier.lru_order()
        assert len(order) == len(set(order)), "a host block twice"
        self.tier.check()
        if self.shell.machine.phase_name != "in_pass":
            self.scheduler.check()

    def teardown(self) -> None:
        """Everybody leaves at either end: then nothing is owned, on its way, or held."""
        if not hasattr(self, "shell"):
            return
        for number in sorted(self.live):
            for kind in ("cancel_destination", "cancel_source", "cancel"):
                self.ask(kind, number, number)
        self.shell.run(math.inf)
        self.books_agree()
        assert self.copies.begun == {}
        assert self.tier.next_end == math.inf
        assert self.scheduler.handoffs.num_owned == 0
        assert self.scheduler.pool.num_active() == 0
        assert self.scheduler.held_by_requests() == 0
        assert not self.scheduler.standing()
        assert self.tier.keys.num_holds() == 0


TestTieredRank = TieredRank.TestCase
TestTieredRank.settings = settings(max_examples=60, stateful_step_count=40)
