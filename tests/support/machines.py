"""Machines, schedulers and fleets for tests of the core, and a small shell that feeds `Machine.step`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mocker_replay._core.driver import Machine, Step
from mocker_replay._core.engine import Engine
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet, Handed
from mocker_replay._core.lanes import Command
from mocker_replay._core.sched_trtllm import TrtllmScheduler
from mocker_replay._core.sched_vllm import VllmScheduler
from mocker_replay._core.timing import TimingModel
from mocker_replay.events import CommandKind, EventKind

WITH_PAYLOAD = {
    EventKind.PREEMPTION, EventKind.FPM, EventKind.KV_STORED, EventKind.KV_REMOVED, EventKind.DECISION,
}  # fmt: skip


class Record(NamedTuple):
    """One event record, its payload words beside it."""

    kind: EventKind
    t_ms: float
    worker: int
    rank: int
    request: int
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    x: float
    words: tuple[int, ...]


def read_records(out: EventBuffer, first: int = 0) -> list[Record]:
    words = out.words_array().tolist()
    return [_record(row, words) for row in out.records_array()[first:]]


def records_of(array: np.ndarray) -> list[Record]:
    """Records without payload, such as those a boundary returned."""
    return [_record(row, []) for row in array]


def _record(row: Any, words: Sequence[int]) -> Record:
    kind = EventKind(int(row["kind"]))
    c, d = int(row["c"]), int(row["d"])
    payload: tuple[int, ...] = ()
    if words and kind in WITH_PAYLOAD:
        payload = tuple(words[c : c + d])
    elif words and kind == EventKind.TERMINAL and d >= 0:
        payload = tuple(words[d : d + 2])
    integers = [int(row[name]) for name in ("worker", "rank", "request", "a", "b", "c", "d", "e", "f")]
    return Record(kind, float(row["t_ms"]), *integers, float(row["x"]), payload)


def buffer_bytes(out: EventBuffer) -> tuple[bytes, bytes]:
    """Everything a run put out, bit for bit."""
    return out.records_array().tobytes(), out.words_array().tobytes()


def fixed(prefill_ms: float = 10.0, decode_ms: float = 1.0) -> TimingModel:
    return TimingModel("fixed", prefill_ms=prefill_ms, decode_ms=decode_ms)


# One rank of 128 blocks of 4 tokens, 8 sequences, 256 tokens a pass: the fixture of the driver specification.
DEFAULTS: Mapping[str, Any] = {
    "num_gpu_blocks": 128, "block_size": 4, "trace_block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 256,
}  # fmt: skip


FLAVOURS = {"vllm": VllmScheduler, "trtllm": TrtllmScheduler}


def make_scheduler(
    worker: int = 0, rank: int = 0, *, timing: TimingModel | None = None, flavour: str = "vllm", **settings: Any
):
    return FLAVOURS[flavour](worker, rank, timing=timing or fixed(), **{**DEFAULTS, **settings})


def make_machine(
    *, worker: int = 0, dp_size: int = 1, interval: int = 1, out: EventBuffer | None = None,
    engine_class: type[Engine] = Engine, **settings: Any,
) -> Machine:  # fmt: skip
    ranks = [make_scheduler(worker, rank, **settings) for rank in range(dp_size)]
    return Machine(engine_class(worker, ranks, interval), EventBuffer() if out is None else out)


def make_fleet(
    *,
    num_workers: int = 1,
    telemetry: bool = False,
    wake_on_end: bool = False,
    external_placement: bool = False,
    external: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Fleet:
    out = EventBuffer()
    machines = [make_machine(worker=worker, out=out, **settings) for worker in range(num_workers)]
    return Fleet(
        machines, out, telemetry=telemetry, wake_on_end=wake_on_end, external_placement=external_placement,
        external=external, quiet=quiet,
    )  # fmt: skip


def check_ranks(machines: Iterable[Machine]) -> None:
    """Pool, index and queues of every rank agree with what its requests hold."""
    for machine in machines:
        for scheduler in machine.engine.schedulers:
            scheduler.check()


def submit(
    command_id: int, request: int, n_in: int = 8, n_out: int = 2, *, rank: int = 0,
    hash_ids: Sequence[int] | None = None, trace_block_size: int = 4,
) -> Command:  # fmt: skip
    """A submission; without hash ids its prompt is shared with nobody."""
    if hash_ids is None:
        hash_ids = [request * 1_000_003 + i for i in range(-(-n_in // trace_block_size))]
    return Command(command_id, "submit", request, rank, n_in, n_out, tuple(hash_ids))


def cancel(command_id: int, request: int, *, rank: int = 0, discard: bool = False) -> Command:
    return Command(command_id, "cancel", request, rank, discard=discard)


class Row(NamedTuple):
    """A row for a fleet."""

    due_ms: float
    n_in: int
    n_out: int
    hash_ids: tuple[int, ...]
    session: int = -1
    turn: int = 0
    cancel_after_ms: float = math.inf
    priority: int = 0
    deadline_ms: float = math.inf  # from its arrival on


def push_rows(fleet: Fleet, rows: Sequence[Row], first: int = 0) -> None:
    """Hand rows over; their ordinals count up from `first` and are their order at one instant."""
    n = len(rows)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum([len(row.hash_ids) for row in rows], out=offsets[1:])
    ordinals = np.arange(first, first + n)
    fleet.push_rows(
        np.array([row.due_ms for row in rows], np.float64),
        ordinals.astype(np.int32),
        ordinals.astype(np.int64),
        np.array([row.turn for row in rows], np.int64),
        np.array([row.session for row in rows], np.int64),
        np.array([row.n_in for row in rows], np.int64),
        np.array([row.n_out for row in rows], np.int64),
        offsets,
        np.array([key for row in rows for key in row.hash_ids], np.uint64),
        np.array([row.cancel_after_ms for row in rows], np.float64),
        np.array([row.priority for row in rows], np.int64),
        np.array([row.deadline_ms for row in rows], np.float64),
    )


class Given(NamedTuple):
    """One step as it was given to a machine; a list of them is a recording."""

    stimulus: str
    reading_ms: float
    command: Command | None
    num_cancels: int
    num_commands: int


def replay_steps(machine: Machine, recording: Iterable[Given]) -> list[Step]:
    return [
        machine.step(
            g.stimulus, g.reading_ms, command=g.command, num_cancels=g.num_cancels, num_commands=g.num_commands
        )
        for g in recording
    ]


@dataclass
class Shell:
    """Feeds a machine by hand: lanes and a clock, and the first wanted stimulus that is there. Never decides.

    `finishing`: boundaries are finished at once; else `boundary` holds what the consumer asks. `space`: events that
    still fit on the event lane. `reading_of` may distort the clock readings.
    """

    machine: Machine
    now_ms: float = 0.0
    finishing: bool = True
    space: float = math.inf
    closed: bool = False
    token: bool = False  # the cancel token fired
    closed_lanes: set[str] = field(default_factory=set)  # "cancels_closed", "commands_closed": found when empty, too
    reading_of: Callable[[float], float] = float
    cancels: deque[Command] = field(default_factory=deque)
    commands: deque[Command] = field(default_factory=deque)
    boundary: deque[Command | str] = field(default_factory=deque)
    recording: list[Given] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    replies: list[tuple[int, bool, str]] = field(default_factory=list)
    seen: int = 0  # records already read by `events`
    behind_work: bool = False  # internal work was the last that was done

    def put(self, *commands: Command) -> None:
        for command in commands:
            (self.cancels if command.kind == "cancel" else self.commands).append(command)

    def events(self, *kinds: EventKind) -> list[Record]:
        """Records published since the last call; only those of `kinds` when any are named."""
        fresh = read_records(self.machine.out, self.seen)
        self.seen = len(self.machine.out)
        return [record for record in fresh if not kinds or record.kind in kinds]

    def give(self, stimulus: str, command: Command | None = None, counts: tuple[int, int] = (0, 0)) -> Step:
        given = Given(stimulus, self.reading_of(self.now_ms), command, *counts)
        self.recording.append(given)
        if stimulus != "published":
            self.behind_work = stimulus == "internal_timer" or (stimulus == "go" and self.machine.rests)
        (step,) = replay_steps(self.machine, [given])
        self.steps.append(step)
        self.replies += step.replies
        return step

    def take(self) -> Step | None:
        """One step with the first wanted stimulus that is there; None when the machine has to wait."""
        last = self.steps[-1] if self.steps else None
        for stimulus in self.machine.wants():
            if self._is_there(stimulus, last):
                return self.give(stimulus, *self._carries(stimulus))
        return None

    def run(self, until_ms: float | None = None) -> None:
        """Take steps until the machine has to wait; the clock jumps from deadline to deadline up to `until_ms`."""
        while True:
            while self.take() is not None:
                pass
            later = self.next_deadline()
            if until_ms is None or later > until_ms or later == math.inf:
                break
            self.now_ms = max(self.now_ms, later)
        if until_ms is not None and until_ms < math.inf:
            self.now_ms = max(self.now_ms, until_ms)

    def next_deadline(self) -> float:
        """Next wanted deadline; infinity when there is none."""
        if not self.steps or self.steps[-1].stopped:
            return math.inf
        wants, last = self.machine.wants(), self.steps[-1]
        later = math.inf
        if "pass_timer" in wants and last.pass_deadline_ms is not None:
            later = last.pass_deadline_ms
        if "internal_timer" in wants and last.internal_deadline_ms is not None:
            later = min(later, last.internal_deadline_ms)
        return later

    def _is_there(self, stimulus: str, last: Step | None) -> bool:
        if stimulus == "cancel":
            return self.token
        if stimulus == "cancel_item":
            return bool(self.cancels)
        if stimulus == "command_item":
            return bool(self.commands)
        if stimulus in ("pass_timer", "internal_timer"):
            at_ms = getattr(last, "pass_deadline_ms" if stimulus == "pass_timer" else "internal_deadline_ms", None)
            return at_ms is not None and at_ms <= self.now_ms
        if stimulus == "published":
            return self.space > 0 and not self.closed
        if stimulus == "publish_closed":
            return self.closed
        if stimulus.startswith("boundary_"):
            return self._boundary_stimulus() == stimulus
        if stimulus in ("cancels_closed", "commands_closed"):
            lane = self.cancels if stimulus == "cancels_closed" else self.commands
            return stimulus in self.closed_lanes and not lane
        if stimulus == "lane_counts" and not self.finishing:  # internal work is followed by what arrives then
            return not self.behind_work
        return True  # go, yielded, lane_empty are always there

    def _boundary_stimulus(self) -> str | None:
        if self.boundary:
            asked = self.boundary[0]
            return f"boundary_{asked}" if isinstance(asked, str) else "boundary_apply"
        return "boundary_finish" if self.finishing else None

    def _carries(self, stimulus: str) -> tuple[Command | None, tuple[int, int]]:
        if stimulus == "cancel_item":
            return self.cancels.popleft(), (0, 0)
        if stimulus == "command_item":
            return self.commands.popleft(), (0, 0)
        if stimulus == "lane_counts":
            return None, (len(self.cancels), len(self.commands))
        if stimulus == "published":
            self.space -= 1
        if stimulus.startswith("boundary_") and self.boundary:
            asked = self.boundary.popleft()
            return (None if isinstance(asked, str) else asked), (0, 0)
        return None, (0, 0)


class OwnShells:
    """Moves the machines of an external fleet: a Shell each, its lanes, and cancellations that wait for admission."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.shells = [Shell(machine) for machine in fleet.machines]
        self.ids = iter(range(1 << 40))
        self.admitted: set[int] = set()
        self.gone: dict[int, Command] = {}

    def move(self) -> None:
        """Answer to "move": one machine runs at this instant until it has to wait."""
        shell = self.shells[self.fleet.moving_worker]
        shell.now_ms = self.fleet.now_ms
        shell.finishing = not self.fleet.hold_boundary
        resumes = shell.machine.rests
        while resumes or not (shell.machine.rests and shell.machine.phase_name == "turn"):
            step = shell.take()
            if step is None:
                break
            resumes = resumes and shell.recording[-1].stimulus != "go"
            self._admit(shell, read_records(self.fleet.out, len(self.fleet.out) - step.events))

    def _admit(self, shell: Shell, records: Iterable[Record]) -> None:
        for record in records:
            if record.kind == EventKind.COMMAND and record.a == CommandKind.SUBMIT:
                self.admitted.add(record.request)
                if record.request in self.gone:
                    shell.put(self.gone.pop(record.request))

    def place(self) -> Handed:
        """Answer to "place", round robin."""
        worker, rank = self.fleet.next_place
        queued = sum(command.rank == rank for command in self.shells[worker].commands)
        row = self.fleet.take_next(queued=queued)
        assert (row.worker, row.rank) == (worker, rank)
        lengths = row.input_tokens, row.output_tokens
        self.shells[worker].put(Command(next(self.ids), "submit", row.request, rank, *lengths, row.hash_ids))
        return row

    def cancel(self) -> None:
        """Answer to "cancel": on its lane, or behind a submission that was not applied yet."""
        request, worker, rank = self.fleet.take_cancel()
        command = cancel(next(self.ids), request, rank=rank, discard=True)
        if request in self.admitted:
            self.shells[worker].put(command)
        else:
            self.gone[request] = command
