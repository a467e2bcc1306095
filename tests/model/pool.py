"""The block pool: who holds which slot, and what is evicted next.

Decides: hits, eviction order, duplicates. Knows nothing of requests, time or tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

Identity = int  # interned prefix chain; see chains.py


@dataclass(eq=False, slots=True)
class Copy:
    """One used slot. Private while `identity` is None, else cached under that identity."""

    identity: Identity | None = None
    references: int = 1
    source: Any = None  # the copy to the host that may still read what stood in the slot (offload.py)


@dataclass(frozen=True)
class Removed:
    """Identities that one acquisition made vanish, in order of eviction."""

    identities: list[Identity]


@dataclass
class Stored:
    """Consecutive blocks of one request that one scheduling step made visible."""

    request: int
    first_block: int
    identities: list[Identity]


class BlockPool:
    """`num_blocks` interchangeable slots, of which `free` are empty."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = num_blocks
        self.num_copies = 0
        self.copies_of: dict[Identity, list[Copy]] = {}  # oldest first; the first one is the primary
        self.lru: OrderedDict[int, Copy] = OrderedDict()  # id(copy) -> cached copy without references, oldest first
        self.journal: list[Removed | Stored] = []  # changes of what look-ups can see, in order
        self.free_sources: list[Any] = []  # of the slots that were emptied, the last one last
        self.aside_sources: list[Any] = []  # of the slots set aside

    @property
    def active(self) -> int:
        return self.num_copies - len(self.lru)

    @property
    def inactive(self) -> int:
        return len(self.lru)

    def primary(self, identity: Identity | None) -> Copy | None:
        """The copy a look-up finds under an identity."""
        if identity is None or identity not in self.copies_of:
            return None
        return self.copies_of[identity][0]

    def acquire(self, hits: list[Identity], num_fresh: int) -> list[Copy] | None:
        """Take references on the hits and `num_fresh` private slots; None and no change when that cannot be."""
        primaries = [self.copies_of[identity][0] for identity in hits]
        short = max(0, num_fresh - self.free)
        spoken_for = {id(copy) for copy in primaries if id(copy) in self.lru}
        if short > len(self.lru) - len(spoken_for):
            return None
        for copy in primaries:
            copy.references += 1
            self.lru.pop(id(copy), None)
        sources = self._evict(short)[::-1] + self._take_free(num_fresh - short)
        self.num_copies += num_fresh
        return primaries + [Copy(source=source) for source in sources]

    def _take_free(self, count: int) -> list[Any]:
        """Empty slots, the one emptied last first; the source of each."""
        self.free -= count
        return [self.free_sources.pop() if self.free_sources else None for _ in range(count)]

    def _evict(self, count: int) -> list[Any]:
        vanished = []
        sources = []
        for _ in range(count):
            _, copy = self.lru.popitem(last=False)
            assert copy.identity is not None
            siblings = self.copies_of[copy.identity]
            siblings.remove(copy)
            if not siblings:
                del self.copies_of[copy.identity]
                vanished.append(copy.identity)
            self.num_copies -= 1
            sources.append(copy.source)
        if vanished:
            self.journal.append(Removed(vanished))
        return sources

    def set_aside(self, num_slots: int) -> bool:
        """Reserve empty slots for a burst, evicting like an acquisition; they are nobody's copies yet."""
        short = max(0, num_slots - self.free)
        if short > len(self.lru):
            return False
        self.aside_sources = self._evict(short)[::-1] + self._take_free(num_slots - short)
        return True

    def take_set_aside(self) -> Copy:
        """Turn one reserved slot into a private copy."""
        self.num_copies += 1
        return Copy(source=self.aside_sources.pop(0))

    def return_set_aside(self, num_slots: int) -> None:
        self.free += num_slots
        self.free_sources += self.aside_sources
        self.aside_sources = []

    def cache(self, copy: Copy, identity: Identity) -> bool:
        """Make a private copy visible under an identity; True when no other copy was visible before."""
        assert copy.identity is None
        assert copy.references == 1
        copy.identity = identity
        siblings = self.copies_of.setdefault(identity, [])
        siblings.append(copy)
        return len(siblings) == 1

    def release(self, copy: Copy) -> None:
        if copy.identity is None:
            self.free += 1
            self.num_copies -= 1
            self.free_sources.append(copy.source)
            return
        copy.references -= 1
        assert copy.references >= 0
        if copy.references == 0:
            self.lru[id(copy)] = copy

    def check(self) -> None:
        """Every slot is free or used exactly once."""
        assert 0 <= self.free <= self.num_blocks
        assert self.free + self.num_copies == self.num_blocks
        for copies in self.copies_of.values():
            for copy in copies:
                assert (copy.references == 0) == (id(copy) in self.lru)
