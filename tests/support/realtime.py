"""Realtime logs for tests: machines stepped by a shell whose clock is late and jumps, logged as a realtime run is.

Nothing here sleeps or reads a clock: `random.Random(seed)` says how late each reading is and who moves next.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mocker_replay._core.driver import Step
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.lanes import Command
from mocker_replay._core.log_encoder import LogEncoder
from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.events import EventKind
from mocker_replay.log.records import append_records
from mocker_replay.log.wall import StepTaken, WallRecorder
from mocker_replay.log.writer import EventLogWriter
from mocker_replay.replay.build import build_fleet
from mocker_replay.replay.pools import Pools
from mocker_replay.replay.sinks import generated_tokens
from tests.support.machines import Shell, cancel, submit

TRACE_BLOCK_SIZE = 3  # tokens a hash id stands for; no multiple of most block sizes


class Arrival(NamedTuple):
    """A row that arrives; `at_ms` is its planned time."""

    at_ms: float
    row: int
    n_in: int
    n_out: int
    hash_ids: tuple[int, ...]
    worker: int = 0
    rank: int = 0
    session: int = -1
    turn: int = 0


class Cancel(NamedTuple):
    """A client goes away; `at_boundary`: the consumer of the next pass end of the worker applies it there."""

    at_ms: float
    row: int
    discard: bool = False
    at_boundary: bool = False


Action = Arrival | Cancel
LATENESS_MS = (0.0, 0.0, 0.0, 0.25, 3.0, 7.0, 40.0, -1.0, -8.0)


class LoggedShell(Shell):
    """A shell whose every step is recorded."""

    run_: RealtimeRun

    def give(self, stimulus: str, command: Command | None = None, counts: tuple[int, int] = (0, 0)) -> Step:
        step = super().give(stimulus, command, counts)
        self.run_.took(self)
        return step


@dataclass
class RealtimeRun:
    """Several machines, one clock, one log.

    `cut_wall_in_footer`: steps that wait for a line when the run ends stand in the footer, else on the first cut.
    """

    config: EngineConfig
    num_workers: int = 1
    level: str = "kv"
    names: Mapping[int, str] = field(default_factory=dict)
    seed: int = 0
    lateness_ms: Sequence[float] = LATENESS_MS
    num_rows: int = 1000
    cut_wall_in_footer: bool = False

    def __post_init__(self) -> None:
        self.sink = io.BytesIO()
        self.rng = random.Random(self.seed)
        self.recorder = WallRecorder()
        self.writer = EventLogWriter(
            self.sink, self.level, header=self.header(), num_workers=self.num_workers, dp_size=self.config.dp_size
        )
        for row, name in self.names.items():
            self.writer.add_names(row, [name])
        self.fleet = build_fleet(
            Pools(self.config, self.num_workers),
            trace_block_size=TRACE_BLOCK_SIZE,
            want=LogEncoder(self.level).wants,
            telemetry=False,
            wake_on_end=False,
            block_tokens=self.block_tokens if self.level == "kv" else None,
        )
        self.shells = [LoggedShell(machine, reading_of=self.reading_of) for machine in self.fleet.machines]
        for shell in self.shells:
            shell.run_ = self
        self.now_ms = 0.0
        self.next_command = 0
        self.places: dict[int, tuple[int, int]] = {}
        self.not_applied: list[dict[int, Command]] = [{} for _ in self.shells]  # submissions by id, as replies tell

    def header(self) -> dict[str, Any]:
        trace = {"format": "mooncake", "rows": self.num_rows, "digest": "00", "trace_block_size": TRACE_BLOCK_SIZE}
        return {
            "clock": "measured",
            "trace": trace,
            "config": self.config.to_mapping(),
            "options": ReplayOptions(num_workers=self.num_workers).to_mapping(),
            "wall": {"mode": "realtime", "clock": "measured"},
        }

    def block_tokens(self, row: int, first: int, stop: int) -> bytes:
        return generated_tokens(self.names.get(row, f"r{row}"), first, stop)

    def reading_of(self, now_ms: float) -> float:
        return max(0.0, now_ms + self.rng.choice(self.lateness_ms) * self.rng.random())

    # -- the log ------------------------------------------------------------------------------------

    def took(self, shell: Shell) -> None:
        """A machine took a step: record it, and write what it published or returned at the boundary."""
        given, worker = shell.recording[-1], shell.machine.engine.worker
        command_id, request, discard = -1, -1, False
        if given.command is not None:
            command_id, request, discard = given.command.command_id, given.command.request, given.command.discard
        counts = {"num_cancels": given.num_cancels, "num_commands": given.num_commands}
        self.recorder.step(StepTaken(worker, given.stimulus, given.reading_ms, command_id, request, discard, **counts))
        for answered, _, text in shell.steps[-1].replies:
            if text != "stopped before acknowledging":
                self.not_applied[worker].pop(answered, None)
        if given.stimulus == "boundary_apply":
            told = shell.machine.boundary_events
            append_records(self.fleet.out, told.records_array(), told.words_array())
        self.write(self.fleet.out)

    def write(self, out: EventBuffer, *, bare: bool = False) -> None:
        if self.writer.consume(out, None if bare else lambda: self.recorder.text(self.now_ms)) and not bare:
            self.recorder.clear()
        out.clear()

    # -- what happens -------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        self.next_command += 1
        if isinstance(action, Arrival):
            worker, rank, row = action.worker, action.rank, action.row
            self.places[row] = worker, rank
            self.fleet.out.append_record(
                EventKind.ARRIVAL, action.at_ms, worker, rank, row,
                a=action.n_in, b=action.n_out, c=action.session, d=action.turn,
            )  # fmt: skip
            self.recorder.arrival(action.at_ms, action.hash_ids)
            self.write(self.fleet.out)
            command = submit(self.next_command, row, action.n_in, action.n_out, rank=rank, hash_ids=action.hash_ids)
            self.not_applied[worker][command.command_id] = command
            self.shells[worker].put(command)
        elif action.row in self.places:
            worker, rank = self.places[action.row]
            command = cancel(self.next_command, action.row, rank=rank, discard=action.discard)
            if action.at_boundary:
                self.shells[worker].boundary.append(command)
            else:
                self.shells[worker].put(command)

    def settle(self, max_steps: float = math.inf) -> None:
        """One step of one machine after another, in any order, until all of them wait."""
        movable = list(self.shells)
        while movable and max_steps > 0:
            max_steps -= 1
            shell = self.rng.choice(movable)
            shell.now_ms = self.now_ms
            if shell.boundary and shell.boundary[-1] != "finish":
                shell.boundary.append("finish")
            if shell.take() is None:
                movable.remove(shell)

    def until(self, at_ms: float) -> None:
        """Let time pass up to and including `at_ms`."""
        while True:
            self.settle()
            later = min(shell.next_deadline() for shell in self.shells)
            if later > at_ms or later == math.inf:
                break
            self.now_ms = max(self.now_ms, later)
        if at_ms < math.inf:
            self.now_ms = max(self.now_ms, at_ms)

    def pass_time(self, at_ms: float) -> None:
        """Let time pass up to just before `at_ms`."""
        if self.now_ms < at_ms:
            self.until(math.nextafter(at_ms, -math.inf))
            self.now_ms = at_ms

    def play(self, script: Sequence[Action], *, stop_ms: float = math.inf, token: bool = False) -> bytes:
        """The whole run and its log.

        Args:
            stop_ms: the user interrupts then, some steps after the last deadline. token: the machines are told to stop
                before requests are cut; one that is publishing finds no space.
        """
        for action in sorted(script, key=lambda action: action.at_ms):
            if action.at_ms > stop_ms:
                break
            self.pass_time(action.at_ms)
            self.act(action)
            if self.rng.random() < 0.5:
                self.settle()
        if stop_ms == math.inf:
            self.until(math.inf)
            self.writer.close(wall=self.recorder.text(self.now_ms))
            return self.sink.getvalue()
        self.pass_time(stop_ms)
        self.settle(self.rng.choice([0, 1, 2, 3, 5, 8, 13, 40]))
        if token:
            for shell in self.shells:
                shell.token, shell.space = True, 0
            self.settle()
        self.cut()
        self.writer.close(interrupted=True, wall=self.recorder.text(self.now_ms))
        return self.sink.getvalue()

    def cut(self) -> None:
        """All requests that live, as the fleet tells them; what no engine has seen is put on its lanes."""
        for shell, not_applied in zip(self.shells, self.not_applied, strict=True):
            on_lane = {command.command_id for command in shell.commands}
            stopped = bool(shell.steps) and shell.steps[-1].stopped
            for command_id, command in not_applied.items():
                if command_id in on_lane or stopped:
                    shell.machine.enqueue(command)
        self.fleet.publish_cuts()
        records = self.fleet.out.records_array()
        self.fleet.clear_events()
        append_records(self.fleet.out, records, t_ms=self.now_ms)
        self.write(self.fleet.out, bare=self.cut_wall_in_footer)
