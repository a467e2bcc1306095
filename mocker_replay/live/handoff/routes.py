"""Registrations of handoffs at one rank: which is current, which is the latest, whose turn it is.

Decides when an id may be registered and what an old registration may still do. Never talks to a scheduler. Source:
handoff specification, section 6.
"""

from __future__ import annotations

import uuid
import weakref

from mocker_replay.live.errors import AlreadyActive, LiveError
from mocker_replay.live.handoff.facts import HandoffFact
from mocker_replay.live.route import Turns
from mocker_replay.shells.lanes import BoundedLane

# Facts of one handoff that nobody has read.
FACT_CAPACITY = 8
_NUMBERS = 2**63 - 1


class Generation:
    """One registration of a handoff id.

    Held by whoever was given something that belongs to it: controls, events, streams of destinations, commands.
    """

    __slots__ = ("__weakref__", "destination_request", "facts", "handoff_id", "number", "source_request", "turns")

    def __init__(self, handoff_id: uuid.UUID) -> None:
        self.handoff_id = handoff_id
        self.number = number_of(handoff_id)
        self.turns = Turns()  # of commands about it, one at a time
        self.facts: BoundedLane[HandoffFact] = BoundedLane(FACT_CAPACITY)
        self.source_request = -1  # scheduler ids, once submitted
        self.destination_request = -1


def number_of(handoff_id: uuid.UUID) -> int:
    """The scheduler's name for a handoff: its id folded to 63 bits, so that the same id is the same handoff to it."""
    return (handoff_id.int ^ handoff_id.int >> 64) & _NUMBERS


class HandoffRoutes:
    """Registered handoffs of one rank by id and by number, and the latest registration of each id that lives."""

    def __init__(self) -> None:
        self._by_id: dict[uuid.UUID, Generation] = {}
        self._by_number: dict[int, Generation] = {}
        self._latest: weakref.WeakValueDictionary[uuid.UUID, Generation] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._by_id)

    def register(self, handoff_id: uuid.UUID) -> Generation:
        """A new generation of an id.

        Raises:
            AlreadyActive: it is registered, or a command of an earlier registration is under way.
            LiveError: its number is taken.
        """
        if handoff_id in self._by_id:
            raise AlreadyActive(f"handoff {handoff_id} is already registered")
        earlier = self._latest.get(handoff_id)
        if earlier is not None and earlier.turns.busy:
            raise AlreadyActive(f"handoff {handoff_id}: a command of an earlier registration is in progress")
        generation = Generation(handoff_id)
        if generation.number in self._by_number:
            raise LiveError(f"internal id collision: handoff {handoff_id}")
        self._by_id[handoff_id] = self._by_number[generation.number] = generation
        self._latest[handoff_id] = generation
        return generation

    def by_number(self, number: int) -> Generation | None:
        """The registered handoff of the scheduler's number."""
        return self._by_number.get(number)

    def is_registered(self, generation: Generation) -> bool:
        """Whether facts still reach this very registration."""
        return self._by_id.get(generation.handoff_id) is generation

    def is_latest(self, generation: Generation) -> bool:
        """Whether no other registration of the id came after it."""
        return self._latest.get(generation.handoff_id) is generation

    def unregister(self, generation: Generation) -> None:
        """Nobody reads its facts any more."""
        generation.facts.close_reader()
        if self.is_registered(generation):
            del self._by_id[generation.handoff_id]
            del self._by_number[generation.number]

    def close_all(self) -> None:
        """Every lane of facts ends after what it has."""
        generations = list(self._by_id.values())
        self._by_id.clear()
        self._by_number.clear()
        for generation in generations:
            generation.facts.close()
