"""A slow model of who owns what at one rank that hands requests off: lists and sums, straight from the specification.

Its requests share no prefix and want at most one token, so that a pass admits in order, computes everything and ends
all that it admitted. Never looks at the core.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Owned:
    request: int
    handoff: int | None
    blocks: int
    state: str  # "waiting", "source pending", "source held", "pending", "reserved", "active"
    attempted: int = -1
    number: int = 0

    @property
    def is_source(self) -> bool:
        return self.state.startswith("source")


class OwnershipModel:
    """One rank. Commands return what was answered; `facts` collects (stage, request) in order."""

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_model_len: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.max_num_seqs, self.max_model_len = max_num_seqs, max_model_len
        self.owned: list[Owned] = []
        self.queue: list[Owned] = []
        self.line: list[Owned] = []
        self.generation = 0
        self.count = 0
        self.in_pass = False
        self.running: list[Owned] = []  # of the pass in flight: eager, they hold nothing of the queues any more
        self.facts: list[tuple[str, int]] = []
        self.pass_facts: list[tuple[str, int]] = []

    # -- what can be seen ---------------------------------------------------------------------------

    @property
    def active_blocks(self) -> int:
        holders = [owned for owned in self.owned if owned.state in ("source held", "reserved", "active")]
        return sum(owned.blocks for owned in holders)

    @property
    def num_waiting(self) -> int:
        reserved = sum(owned.state == "reserved" for owned in self.owned)
        return len(self.queue) + len(self.line) + reserved

    def ownership(self) -> list[tuple[int, int, str, int]]:
        rows = []
        for owned in self.owned:
            if owned.handoff is not None:
                holds = owned.state in ("source held", "reserved", "active")
                rows.append((owned.handoff, owned.request, owned.state, owned.blocks if holds else 0))
        return sorted(rows)

    def _find(self, *, request: int | None = None, handoff: int | None = None) -> Owned | None:
        for owned in self.owned:
            if owned.request == request or (handoff is not None and owned.handoff == handoff):
                return owned
        return None

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, request: int, n_in: int, handoff: int | None = None) -> str:
        if self._find(request=request) or (handoff is not None and self._find(handoff=handoff)):
            return "refused"
        state = "waiting" if handoff is None else "source pending"
        owned = Owned(request, handoff, -(-n_in // self.block_size), state, number=self.count)
        self.count += 1
        self.owned.append(owned)
        self.queue.append(owned)
        return "submitted"

    def reserve(self, request: int, n_in: int, handoff: int) -> str:
        blocks = -(-n_in // self.block_size)
        if self._find(request=request) or self._find(handoff=handoff):
            return "refused"
        if n_in >= self.max_model_len or blocks > self.num_blocks:
            return "refused"
        owned = Owned(request, handoff, blocks, "pending", number=self.count)
        self.count += 1
        self.owned.append(owned)
        self.line.append(owned)
        self.facts.append(("destination_accepted", request))
        if not self.in_pass:
            self._retry()
        return "accepted"

    def end_source(self, handoff: int, *, cancel: bool) -> str:
        owned = self._find(handoff=handoff)
        if owned is None or not owned.is_source:
            return "noop"
        self.facts.append(("source_cancelled" if cancel else "source_released", owned.request))
        if owned.state == "source pending" and not cancel:
            owned.state, owned.handoff = "waiting", None
        else:
            self._drop(owned)
        self._retry()
        return "applied"

    def activate(self, handoff: int) -> str:
        owned = self._find(handoff=handoff)
        if owned is None or owned.state != "reserved":
            return "noop"
        owned.state = "active"
        later = [i for i, other in enumerate(self.queue) if other.number > owned.number]
        self.queue.insert(later[0] if later else len(self.queue), owned)
        self.facts.append(("destination_activated", owned.request))
        self._retry()
        return "applied"

    def cancel_destination(self, handoff: int) -> str:
        owned = self._find(handoff=handoff)
        if owned is None or owned.state not in ("pending", "reserved", "active"):
            return "noop"
        self.facts.append(("destination_cancelled", owned.request))
        self._drop(owned)
        self._retry()
        return "applied"

    def cancel_request(self, request: int) -> str:
        owned = self._find(request=request)
        if owned is None or owned.state in ("source held", "pending", "reserved"):
            return "noop"
        self._drop(owned)
        if not self.in_pass:
            self._retry()
        return "applied"

    def _drop(self, owned: Owned) -> None:
        self.owned.remove(owned)
        for queue in (self.queue, self.line):
            if owned in queue:
                queue.remove(owned)
        self.generation += 1

    def _retry(self) -> None:
        if not self.line or self.line[0].attempted == self.generation:
            return
        head = self.line[0]
        if head.blocks > self.num_blocks - self.active_blocks:
            head.attempted = self.generation
            return
        self.line.pop(0)
        head.state = "reserved"
        self.facts.append(("destination_reserved", head.request))

    # -- passes -------------------------------------------------------------------------------------

    def start_pass(self) -> None:
        """Admit in order, compute, and end: everything but the facts, which show with the end of the pass."""
        self.in_pass = True
        admitted: list[Owned] = []
        free = self.num_blocks - self.active_blocks
        while len(admitted) < self.max_num_seqs:
            # While somebody is in line, only who has blocks may enter.
            candidates = [owned for owned in self.queue if owned.state == "active" or not self.line]
            if not candidates:
                break
            head = candidates[0]
            if head.state != "active":
                if head.blocks > self.num_blocks:
                    self.queue.remove(head)
                    self.owned.remove(head)
                    self.generation += 1
                    continue
                if head.blocks > free:
                    break
                free -= head.blocks
            self.queue.remove(head)
            admitted.append(head)
        for owned in admitted:
            self.generation += 1
            if owned.state == "source pending":
                owned.state = "source held"
                self.pass_facts.append(("source_held", owned.request))
            else:
                self.owned.remove(owned)

    def end_pass(self) -> None:
        self.in_pass = False
        self.facts += self.pass_facts
        self.pass_facts = []
        self._retry()
