"""Handing off at one rank against the slow model: answers, facts, ownership, line, blocks, after every step."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay._core.lanes import Command
from mocker_replay.events import EventKind, HandoffStage
from tests.model.handoff_ownership import OwnershipModel
from tests.support.machines import Shell, fixed, make_machine

BLOCK_SIZE = 4
REQUESTS = 6  # few, so that numbers are used again
KINDS = (
    "submit", "submit_prefill", "reserve_destination", "reserve_destination", "activate_destination",
    "activate_destination", "release_source", "cancel_source", "cancel_destination", "cancel", "pass", "pass",
)  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.integers(0, REQUESTS - 1), st.integers(0, REQUESTS - 1), st.integers(1, 22),
        st.booleans(),
    ),
    max_size=30,
)  # fmt: skip


class Rank:
    """A machine of one rank whose passes start when the test says so."""

    def __init__(self, num_blocks: int, max_num_seqs: int, max_model_len: int) -> None:
        self.model = OwnershipModel(num_blocks, BLOCK_SIZE, max_num_seqs, max_model_len)
        machine = make_machine(
            num_gpu_blocks=num_blocks, block_size=BLOCK_SIZE, max_num_seqs=max_num_seqs, max_model_len=max_model_len,
            max_num_batched_tokens=None, enable_prefix_caching=False, timing=fixed(10.0, 10.0),
        )  # fmt: skip
        self.shell = Shell(machine)
        self.scheduler = machine.engine.schedulers[0]
        self.ids = 0

    def settle(self, *, start: bool) -> None:
        """Take steps until the machine waits or, unless `start`, is about to sample its lanes for a pass."""
        while True:
            if self.shell.machine.phase_name == "snapshot" and not start:
                if not self.shell.commands and not self.shell.cancels:
                    return
                lane = self.shell.cancels or self.shell.commands
                kind = "cancel_item" if lane is self.shell.cancels else "command_item"
                self.publish()
                self.shell.give(kind, lane.popleft())
                continue
            if self.shell.take() is None or (start and self.shell.machine.phase_name == "in_pass"):
                return

    def publish(self) -> None:
        while self.shell.machine.wants()[:1] == ("published",):
            self.shell.give("published")

    def ask(self, kind: str, request: int, handoff: int, n_in: int) -> str:
        self.shell.replies.clear()
        brings = kind in ("submit", "submit_prefill", "reserve_destination")
        command = Command(
            self.ids, kind, request, 0, n_in if brings else 0, 1 if brings else 0, (), kind == "cancel",
            handoff=-1 if kind in ("submit", "cancel") else handoff,
        )  # fmt: skip
        self.ids += 1
        self.shell.put(command)
        self.settle(start=False)
        self.publish()
        ((_, ok, text),) = self.shell.replies
        return text if ok else "refused"

    def answer(self, kind: str, request: int, handoff: int, n_in: int) -> str:
        model = self.model
        if kind == "submit":
            return model.submit(request, n_in)
        if kind == "submit_prefill":
            return model.submit(request, n_in, handoff)
        if kind == "reserve_destination":
            return model.reserve(request, n_in, handoff)
        if kind == "activate_destination":
            return model.activate(handoff)
        if kind == "cancel_destination":
            return model.cancel_destination(handoff)
        if kind == "cancel":
            return model.cancel_request(request)
        return model.end_source(handoff, cancel=kind == "cancel_source")

    def compare(self) -> None:
        self.scheduler.check()
        told = [
            (HandoffStage(record.a).name.lower(), record.request) for record in self.shell.events(EventKind.HANDOFF)
        ]
        assert told == self.model.facts
        self.model.facts = []
        assert self.scheduler.ownership() == self.model.ownership()
        assert self.scheduler.handoffs.line() == [owned.handoff for owned in self.model.line]
        assert self.scheduler.pool.num_active() == self.model.active_blocks


@given(STEPS, st.integers(2, 8), st.integers(1, 4), st.integers(8, 30))
@settings(max_examples=120)
def test_ownership_equals_the_model(steps, num_blocks: int, max_num_seqs: int, max_model_len: int) -> None:
    rank = Rank(num_blocks, max_num_seqs, max_model_len)
    for kind, request, handoff, n_in, in_pass in steps:
        n_in = min(n_in, max_model_len - 1) if kind != "reserve_destination" else n_in
        if kind != "pass":
            assert rank.ask(kind, request, handoff, n_in) == rank.answer(kind, request, handoff, n_in)
            rank.compare()
            continue
        rank.settle(start=False)
        if rank.shell.machine.phase_name != "snapshot":
            continue
        rank.settle(start=True)
        if rank.shell.machine.phase_name != "in_pass":
            continue
        rank.publish()
        rank.model.start_pass()
        has_length = rank.shell.next_deadline() > rank.shell.now_ms
        if in_pass and has_length:
            asked = "reserve_destination" if request % 2 else "submit_prefill"
            assert rank.ask(asked, request, handoff, n_in) == rank.answer(asked, request, handoff, n_in)
        if has_length:
            rank.shell.now_ms = rank.shell.next_deadline()
        rank.settle(start=False)
        rank.model.end_pass()
        rank.compare()
