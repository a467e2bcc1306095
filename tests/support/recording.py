"""Runs of a shell as the machine saw them: every step with its reading, and every byte that came out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mocker_replay._core.driver import Machine
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.shells.realtime import Given
from tests.support.machines import buffer_bytes


class Taken(NamedTuple):
    """One step and what it put out: records and payload words, bit for bit."""

    given: Given
    records: bytes
    words: bytes


class Recorder:
    """An observer that forgets nothing."""

    def __init__(self) -> None:
        self.steps: list[Taken] = []

    def stepped(self, given: Given, deadline_ms: float | None, wall_ms: float, events: EventBuffer) -> None:
        self.steps.append(Taken(given, *buffer_bytes(events)))

    @property
    def stimuli(self) -> list[str]:
        return [step.given.stimulus for step in self.steps]


def first_difference(steps: Sequence[Taken], others: Sequence[Taken]) -> str | None:
    """Where two runs part; None if they are one, to the last bit."""
    for number, (step, other) in enumerate(zip(steps, others, strict=False)):
        if step != other:
            return f"step {number}: {step}, and {other}"
    if len(steps) != len(others):
        return f"{len(steps)} steps, and {len(others)}"
    return None


class Again(NamedTuple):
    """What a fresh machine did when it was given the steps of a recording."""

    steps: list[Taken]
    replies: dict[int, tuple[bool, str]]  # by command


def run_again(machine: Machine, steps: Iterable[Taken]) -> Again:
    """The same steps given to a fresh machine."""
    again = Again([], {})
    for given in (step.given for step in steps):
        step = machine.step(
            given.stimulus, given.reading_ms, command=given.command, num_cancels=given.num_cancels,
            num_commands=given.num_commands,
        )  # fmt: skip
        applied = given.stimulus == "boundary_apply"
        again.steps.append(Taken(given, *buffer_bytes(machine.boundary_events if applied else machine.out)))
        again.replies.update({command_id: (ok, text) for command_id, ok, text in step.replies})
        machine.out.clear()
    return again
