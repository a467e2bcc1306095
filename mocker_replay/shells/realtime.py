"""The realtime shell: one driver machine against a clock, in an asyncio loop. It waits; the machine decides.

Decides which of the wanted stimuli are there, always looking in the machine's order of priority and never trusting
which wait ended first. Knows no rule of scheduling or time. Source: driver specification, sections 2 to 4, 8, 9, 11.1.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mocker_replay.errors import MockerReplayError
from mocker_replay.shells.boundary import Boundary, BoundaryOutcome, BoundarySlot
from mocker_replay.shells.clock import Clock, ms_from_ns
from mocker_replay.shells.deadline import DeadlineTimer
from mocker_replay.shells.lanes import BoundedLane
from mocker_replay.shells.published import Published, read_records, split_events
from mocker_replay.shells.readings import Directed, Measured, Readings
from mocker_replay.shells.tokens import CancelToken

if TYPE_CHECKING:  # a machine comes with its core; looking at this module loads none
    from mocker_replay._core.driver import Machine, Step
    from mocker_replay._core.event_buffer import EventBuffer
    from mocker_replay._core.lanes import Command

# Steps in a row without giving other tasks of the loop a turn; a machine that never waits must not own the thread.
_STEPS_PER_TURN: Final = 64

OnReply = Callable[[bool, str], None]  # (ok, text): the machine's acknowledgement


class DriverError(MockerReplayError):
    """A driver stopped for a reason other than being told to."""


class Given(NamedTuple):
    """One step as the machine was given it; a list of them reproduces a run bit for bit."""

    stimulus: str
    reading_ms: float
    command: Command | None
    num_cancels: int
    num_commands: int


class Observer(Protocol):
    """Sees every step before its records are forgotten."""

    def stepped(self, given: Given, deadline_ms: float | None, wall_ms: float, events: EventBuffer) -> None:
        """A step was taken.

        Args:
            deadline_ms: of the timer, for a timer's step. wall_ms: the measured clock.
            events: what the step put out, whole groups; empty for most steps.
        """


class Queued(NamedTuple):
    """A command on a control lane."""

    command: Command
    stamp_ms: float | None  # its nominal time


class Hold(enum.Enum):
    """What a directed shell may do."""

    FREE = 0  # everything, when the clock says so
    HELD = 1  # nothing
    BOUNDARY = 2  # everything except finishing a boundary, or going on after internal work
    START = 3  # everything except starting a pass
    BOTH = 4  # neither of the two


_HOLDS: Final = {
    (False, False): Hold.FREE, (True, False): Hold.BOUNDARY, (False, True): Hold.START, (True, True): Hold.BOTH,
}  # fmt: skip


class RealtimeShell:
    """Drives one machine.

    Args:
        machine: driven by this shell alone.
        clock: monotonic time and timers.
        control_capacity: places on each of the two control lanes; None for no bound. event_capacity: the same of the
            event lane.
        token: stops the driver orderly.
        readings: the time a step is given; `Directed` leaves it to the caller of `move` to say when.
        observer: sees every step.
        origin_ns: clock reading that counts as 0.
    """

    def __init__(
        self,
        machine: Machine,
        clock: Clock,
        *,
        control_capacity: int | None = 64,
        event_capacity: int | None = 64,
        token: CancelToken | None = None,
        readings: Readings | None = None,
        observer: Observer | None = None,
        origin_ns: int | None = None,
        clear_events: Callable[[], None] | None = None,
    ) -> None:
        self.machine = machine
        self.token = token or CancelToken()
        self.cancels: BoundedLane[Queued] = BoundedLane(control_capacity, on_item=self._notify)
        self.commands: BoundedLane[Queued] = BoundedLane(control_capacity, on_item=self._notify)
        self.events: BoundedLane[Published] = BoundedLane(event_capacity, on_space=self._space_appeared)
        self.stopped = False
        self.error: str | None = None
        self.origin_ns = clock.now_ns() if origin_ns is None else origin_ns
        self._now_ns = clock.now_ns
        self.readings: Readings = readings or Measured()
        self._observer = observer
        self._clear_events = clear_events or machine.out.clear
        self._hold = Hold.HELD if isinstance(self.readings, Directed) else Hold.FREE
        self._wants = machine.wants()
        self._pass_ms: float | None = None
        self._internal_ms: float | None = None
        self._outbox: deque[Published] = deque()
        self._slot: BoundarySlot | None = None
        self._replies: dict[int, OnReply] = {}
        self._wake: asyncio.Future[None] | None = None
        self._noted = False  # something changed since the last look
        self._behind_work = False  # internal work was the last that was done
        self._resumes = False  # this move goes on behind a pass of no length at which the one before it stopped
        self._had_turn = True  # an overdue pass end is taken after one turn of the loop, never at once
        self._pass_timer = DeadlineTimer(clock, self.origin_ns, self._notify)
        self._internal_timer = DeadlineTimer(clock, self.origin_ns, self._notify)
        self._polls = self._make_polls()
        self._token_key = self.token.on_cancel(self._notify)

    def wall_ms(self) -> float:
        """Measured time since the origin [ms]."""
        elapsed_ns = self._now_ns() - self.origin_ns
        return ms_from_ns(elapsed_ns) if elapsed_ns > 0 else 0.0

    def expect_reply(self, command_id: int, on_reply: OnReply) -> None:
        """Call `on_reply` when the machine answers a command that is on its lane, or when it never will."""
        self._replies[command_id] = on_reply

    def waiting_commands(self) -> list[Command]:
        """Commands on the command lane, which the machine has not seen."""
        return [queued.command for queued in self.commands.items()]

    @property
    def has_work(self) -> bool:
        """There is something to do besides internal work: the machine is not idle, or a command is there."""
        return self.machine.phase_name != "idle" or len(self.commands) > 0 or len(self.cancels) > 0

    @property
    def waits_for_command(self) -> bool:
        """Only a command could move the machine, none is on its way, and all that was published has been dealt with."""
        on_the_way = self._outbox or self.events.unsettled or len(self.commands) or len(self.cancels)
        return not on_the_way and self.machine.phase_name == "idle" and self._internal_ms is None

    def see_internal_work(self) -> None:
        """Look when internal work is due: others than this machine's own steps may have moved that."""
        internal_ms = self.machine.engine.internal_deadline_ms
        if internal_ms != self._internal_ms:
            self._internal_ms = internal_ms
            self._notify()

    # -- running ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drive the machine until it stops.

        A cancelled task stops the driver orderly first.

        Raises:
            DriverError: it stopped with an error.
        """
        try:
            if isinstance(self.readings, Directed):
                await self.token.wait()
                self._hold = Hold.FREE
            await self._until_stopped()
        except asyncio.CancelledError:
            self.token.cancel()
            self._hold = Hold.FREE
            while self._take():
                pass
            raise
        finally:
            self.close()
        if self.error is not None:
            raise DriverError(self.error)

    async def move(self, now_ms: float, *, hold_boundary: bool, hold_start: bool = False) -> None:
        """Let a directed machine run at one instant until it has to wait and its consumer has dealt with everything.

        A move is also over where the machine rests, behind a pass of no length: others may go first.

        Args:
            hold_boundary: stop when the consumer wants to finish the boundary of a pass, and behind internal work: what
                arrives at this instant comes before the next pass.
            hold_start: stop before a pass starts; commands that are there are applied one by one.
        """
        assert isinstance(self.readings, Directed), "only a directed shell is moved"
        if self.token.cancelled:
            return
        self.readings.now_ms = now_ms
        self.see_internal_work()
        self._hold = _HOLDS[hold_boundary, hold_start]
        self._resumes = self.machine.rests
        try:
            while not self.stopped and not self.token.cancelled:
                await self._take_all()
                if self._is_settled():
                    break
                await self._wait()
        finally:
            if not self.token.cancelled:  # else `run` lets it go, up to its end
                self._hold = Hold.HELD

    async def _until_stopped(self) -> None:
        while True:
            await self._take_all()
            if self.stopped:
                return
            if "pass_timer" in self._wants and self._is_overdue(self.wall_ms()):
                await asyncio.sleep(0)
                self._had_turn = True
                continue
            self._arm_timers()
            await self._wait()

    async def _take_all(self) -> None:
        """Take what is there, giving other tasks a turn now and then."""
        taken = 0
        while self._take():
            taken += 1
            if "yielded" in self._wants or taken % _STEPS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _is_settled(self) -> bool:
        """Nothing is under way: the machine waits for time or for a command, or its boundary is being held."""
        if self._outbox or self.events.unsettled:
            return False
        if self.machine.phase_name != "at_boundary":
            return True
        return self._holds_boundary() and self._slot is not None and self._slot.request is not None

    def _holds_boundary(self) -> bool:
        return self._hold is Hold.BOUNDARY or self._hold is Hold.BOTH

    def _may_start(self) -> bool:
        """The lanes are sampled before a pass, after which it starts; or after one, which nobody holds back."""
        held = (
            self._hold is Hold.START or self._hold is Hold.BOTH or (self._hold is Hold.BOUNDARY and self._behind_work)
        )
        return not held or self.machine.phase_name != "snapshot"

    # -- waiting ------------------------------------------------------------------------------------

    def _notify(self) -> None:
        self._noted = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _space_appeared(self) -> None:
        """The consumer took something; of interest only to a publication that waits."""
        if self._outbox or self.readings.settles:
            self._notify()

    async def _wait(self) -> None:
        """Until something changes."""
        if self._noted:
            await asyncio.sleep(0)
        else:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        self._noted = False
        self._had_turn = True

    def _arm_timers(self) -> None:
        self._pass_timer.set(self._pass_ms if "pass_timer" in self._wants else None)
        self._internal_timer.set(self._internal_ms if "internal_timer" in self._wants else None)

    # -- stimuli ------------------------------------------------------------------------------------

    def _take(self) -> bool:
        """Give the machine the first wanted stimulus that is there; False when none is."""
        if self._hold is Hold.HELD or self.stopped or self._rests():
            return False
        wall_ms, polls = self.wall_ms(), self._polls
        for stimulus in self._wants:
            if stimulus == "pass_timer" and self._is_overdue(wall_ms):
                return False  # nothing of lower priority may take its turn
            if polls[stimulus](wall_ms):
                self._give(stimulus, wall_ms)
                return True
        return False

    def _rests(self) -> bool:
        """The move is over behind a pass of no length."""
        if not self.machine.rests or self._resumes or self.token.cancelled:
            return False
        return isinstance(self.readings, Directed) and self.machine.phase_name == "turn"

    def _is_overdue(self, wall_ms: float) -> bool:
        """A pass end has been reached and waits only for its turn of the loop."""
        return not self._had_turn and self._pass_ms is not None and self.readings.due(self._pass_ms, wall_ms)

    def _make_polls(self) -> dict[str, Callable[[float], bool]]:
        """For each stimulus: whether it is there, at a measured time [ms]."""

        def always(wall_ms: float) -> bool:
            return True

        return {
            "cancel": lambda wall_ms: self.token.cancelled,
            "cancel_item": lambda wall_ms: len(self.cancels) > 0,
            "command_item": lambda wall_ms: len(self.commands) > 0,
            "cancels_closed": lambda wall_ms: self.cancels.closed,
            "commands_closed": lambda wall_ms: self.commands.closed,
            "pass_timer": lambda wall_ms: self._pass_ms is not None and self.readings.due(self._pass_ms, wall_ms),
            "internal_timer": lambda wall_ms: (
                self._internal_ms is not None and self.readings.due(self._internal_ms, wall_ms)
            ),
            "published": lambda wall_ms: self._is_published(),
            "publish_closed": lambda wall_ms: self.events.reader_gone,
            "boundary_apply": lambda wall_ms: self._is_asked("apply"),
            "boundary_finish": lambda wall_ms: not self._holds_boundary() and self._is_asked("finish"),
            "boundary_dropped": lambda wall_ms: (
                self._slot is not None and self._slot.dropped and self._slot.request is None
            ),
            "lane_empty": always,  # the lane's items come before it
            "lane_counts": lambda wall_ms: self._may_start(),
            "yielded": always,
            "go": always,
        }

    def _is_published(self) -> bool:
        if self.events.reader_gone:
            return False
        while self._outbox and self.events.try_send(self._outbox[0]):
            self._outbox.popleft()
        return not self._outbox and not (self.readings.settles and self.events.unsettled)

    def _is_asked(self, kind: str) -> bool:
        """The owner of the boundary waits for this."""
        request = None if self._slot is None else self._slot.request
        return request is not None and request.kind == kind

    def _give(self, stimulus: str, wall_ms: float) -> None:
        command: Command | None = None
        num_cancels = num_commands = 0
        nominal_ms: float | None = None
        if stimulus in ("cancel_item", "command_item"):
            lane = self.cancels if stimulus == "cancel_item" else self.commands
            command, nominal_ms = lane.take_nowait()
            lane.done()
        elif stimulus == "boundary_apply":
            assert self._slot is not None
            assert self._slot.request is not None
            command = self._slot.request.command
        elif stimulus == "lane_counts":
            num_cancels, num_commands = len(self.cancels), len(self.commands)
        elif stimulus == "pass_timer":
            nominal_ms = self._pass_ms
        elif stimulus == "internal_timer":
            nominal_ms = self._internal_ms
        if stimulus != "published":
            self._behind_work = stimulus == "internal_timer" or (stimulus == "go" and self.machine.rests)
        if stimulus == "go":
            self._resumes = False
        reading_ms = self.readings.reading(wall_ms, nominal_ms)
        step = self.machine.step(
            stimulus, reading_ms, command=command, num_cancels=num_cancels, num_commands=num_commands
        )
        if self._observer is not None:
            given = Given(stimulus, reading_ms, command, num_cancels, num_commands)
            events = self.machine.boundary_events if stimulus == "boundary_apply" else self.machine.out
            self._observer.stepped(given, nominal_ms if command is None else None, wall_ms, events)
        self._after(step)

    def _after(self, step: Step) -> None:
        """What a step asks of its shell."""
        if step.events:
            self._outbox.extend(split_events(self.machine.out, self._open_boundary))
        self._clear_events()
        self._wants = step.wants
        if step.pass_deadline_ms is not None and self._pass_ms is None:
            self._had_turn = isinstance(self.readings, Directed)
        self._pass_ms, self._internal_ms = step.pass_deadline_ms, step.internal_deadline_ms
        for command_id, ok, text in step.replies:
            self._answer(command_id, ok, text)
        if step.boundary_reply is not None and self._slot is not None:
            self._answer_boundary(step.boundary_reply, step)
        if step.stopped:
            self.error = step.error
            self.close()

    def _answer(self, command_id: int, ok: bool, text: str) -> None:
        on_reply = self._replies.pop(command_id, None)
        if on_reply is not None:
            on_reply(ok, text)

    # -- boundaries ---------------------------------------------------------------------------------

    def _open_boundary(self) -> Boundary:
        self._slot = BoundarySlot(self._boundary_asked)
        return Boundary(self._slot)

    def _boundary_asked(self) -> None:
        """Its owner holds the last event, and has dealt with all before it."""
        self.events.done()
        self._notify()

    def _answer_boundary(self, reply: tuple[int, bool, str] | str, step: Step) -> None:
        slot = self._slot
        assert slot is not None
        if isinstance(reply, str):
            self._slot = None
            slot.answer(None)
            slot.close("boundary closed")
        elif step.stopped:
            slot.close("stopped while applying")
        else:
            records, words = read_records(self.machine.boundary_events)
            slot.answer(BoundaryOutcome(reply[1], reply[2], records, words))

    # -- the end ------------------------------------------------------------------------------------

    def ended(self, task: asyncio.Task[None]) -> None:
        """The task of `run` is over; cancelled before its first turn it never came to `run`."""
        if task.cancelled():
            self.token.cancel()
        self.close()

    def close(self) -> None:
        """The machine has stopped, or its task is gone: nobody may be left waiting."""
        if self.stopped:
            return
        self.stopped = True
        self.token.forget(self._token_key)
        self._pass_timer.close()
        self._internal_timer.close()
        self.cancels.close_reader()
        self.commands.close_reader()
        if self._slot is not None:
            self._slot.close("engine stopped before acknowledging")
            self._slot = None
        self._outbox.clear()
        self.events.close()
        for command_id in list(self._replies):
            self._answer(command_id, False, "engine stopped before acknowledging")
        self._notify()
