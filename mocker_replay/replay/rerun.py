"""A recorded realtime run, done again in virtual time (guarantee A).

Machines are built from the header of the log and given every recorded step with its reading; arrivals are taken from
the log as they are. Every line they make must be the line of the log without its wall key, byte for byte and in
order. Decides what counts as the same; the machines decide what happens. Memory follows the requests that live, and
the names and ranks of all.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson

from mocker_replay._core.driver import DriverMisuse
from mocker_replay._core.log_encoder import LogEncoder
from mocker_replay.config import TimingCallable
from mocker_replay.events import EventKind, EventLevel, LogEvent, RunEnd
from mocker_replay.log.reader import EventLogReader, LogError
from mocker_replay.log.records import append_records
from mocker_replay.log.wall import HANDOFF_STIMULI, LOOK, NO_WORKER, StepTaken, read_step, read_wall
from mocker_replay.replay.build import build_fleet
from mocker_replay.replay.rerun_handoffs import HandoffScript
from mocker_replay.replay.rerun_header import read_header
from mocker_replay.replay.rerun_result import Difference, RerunResult
from mocker_replay.replay.rerun_script import Script
from mocker_replay.replay.sinks import generated_tokens

_STEPS_TOLD = 8  # of a worker, before a difference
_COUNTS = ("events", "arrived", "finished", "failed", "rejected", "cancelled", "cut")
# The kind of a line stands behind seq and t_ms, before any text of a user's.
_KIND = re.compile(rb'"event":"([a-z_]+)"')
_KIND_WITHIN_BYTES = 96


def rerun(log_path: str | os.PathLike[str], *, timing_model: TimingCallable | None = None) -> RerunResult:
    """Run a realtime log again and compare.

    Args:
        log_path: a log of `run --mode realtime`, plain or compressed; `-` is standard input.
        timing_model: the timing model of the recorded run where it was a Python object, which the log only names;
            without it the object is imported by that name.

    Raises:
        LogError: no event log, truncated or damaged, or nothing that could be run again.
        UsageError: a log without readings, or a timing model that cannot be had.
        ConfigError: the configuration in the header is none that this version runs.
    """
    with EventLogReader(log_path) as log:
        return _Rerun(log, timing_model).result()


class _Differs(Exception):
    """Ends a rerun at the first difference."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.rule)
        self.difference = difference


class _Rerun:
    """One log from its header to its footer."""

    def __init__(self, log: EventLogReader, timing_model: TimingCallable | None) -> None:
        self._log = log
        self._header = read_header(log, timing_model)
        pools = self._header.pools
        self._num_workers, dp_size = pools.num_workers, pools.dp_size
        policy = self._header.policy
        with_terms = not policy.is_fcfs
        self._encoder = LogEncoder(self._header.level, self._num_workers, dp_size, with_terms)
        wants_kv = self._header.level == EventLevel.KV
        self._fleet = build_fleet(
            pools,
            trace_block_size=self._header.trace_block_size,
            want=self._encoder.wants,
            telemetry=False,
            wake_on_end=False,
            external=pools.prefill is not None,
            directed=self._header.clock == "nominal",
            block_tokens=self._block_tokens if wants_kv else None,
            policy=policy.scheduling,
        )
        self._names: dict[int, str] | None = {} if wants_kv else None  # by row, for the hashes of generated blocks
        self._handoffs: HandoffScript | None = None
        if pools.prefill is not None:
            self._handoffs = HandoffScript(self._fleet, self._header.num_rows, routed=self._header.routed)
        self._script = self._handoffs or Script(self._num_workers, dp_size, self._header.num_rows)
        self._made: deque[bytes] = deque()  # lines of the rerun that the log has yet to show
        self._seq = 0  # of the line that is due
        self._num_steps = 0
        self._last_steps = [deque[StepTaken](maxlen=_STEPS_TOLD) for _ in range(self._num_workers)]
        self._last_worker: int | None = None
        self._stopped: str | None = None

    def result(self) -> RerunResult:
        difference: Difference | None = None
        damage: str | None = None
        try:
            self._run()
        except _Differs as differs:
            difference = differs.difference
            damage = self._damage()
        footer = self._log.footer or {}
        return RerunResult(
            log=self._log.name,
            level=self._header.level,
            clock=self._header.clock,
            num_lines=self._seq,
            num_steps=self._num_steps,
            end=footer.get("end"),
            digest=footer.get("digest"),
            difference=difference,
            damage=damage,
            stopped=self._stopped,
        )

    def _damage(self) -> str | None:
        """What is wrong with the log itself, which a difference alone would hide."""
        try:
            self._log.verify()
        except LogError as exc:
            return str(exc)
        return None

    def _run(self) -> None:
        cuts: list[bytes] = []
        for line in self._log.lines():
            if _kind(line) == LogEvent.CUT:
                cuts.append(line)
                continue
            for early in cuts:  # no step makes such a line: this ends here
                self._take(early)
            self._take(line)
        footer = self._log.footer
        assert footer is not None, "lines() ends with a footer or raises"
        self._finish(cuts, footer)

    # -- lines --------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        """One event line: the steps it tells of, then the line itself."""
        bare, wall = self._read_wall(line)
        self._steps(wall, bare)
        if _kind(bare) == LogEvent.ARRIVAL:
            self._expect_nothing(bare)
            self._arrive(bare, wall)
        self._compare(bare)

    def _compare(self, bare: bytes) -> None:
        """The log shows a line; the rerun must have made the same."""
        if not self._made:
            raise self._differs("the log has a line that the rerun does not make", bare, None)
        made = self._made.popleft()
        if made != bare:
            raise self._differs("the lines differ" if self._is_due(bare) else self._not_due, bare, made)
        self._seq += 1

    def _is_due(self, bare: bytes) -> bool:
        return bare.startswith(b'{"seq":%d,' % self._seq)

    @property
    def _not_due(self) -> str:
        return f"the log does not go on with seq {self._seq}: a line is missing or one too many"

    def _expect_nothing(self, bare: bytes | None) -> None:
        """The log goes on with other steps, another arrival, or its end: it has shown all lines of the steps before."""
        if self._made:
            raise self._differs("the rerun makes a line that the log does not have", bare, self._made[0])

    def _arrive(self, bare: bytes, wall: Mapping[str, Any]) -> None:
        """A row arrives as the log says, and waits for the step that gives it to its machine."""
        if not self._is_due(bare):
            raise self._differs(self._not_due, bare, None)
        try:
            arrived = self._script.arrive(self._parse(bare), wall.get("hash_ids"))
            if arrived.name is not None:
                self._encoder.add_names(arrived.row, [arrived.name])
                if self._names is not None:
                    self._names[arrived.row] = arrived.name
        except LookupError as exc:
            raise self._differs(exc.args[0], bare, None) from None
        except ValueError as exc:
            raise self._refuse(str(exc)) from None
        command = arrived.command
        self._fleet.out.append_record(
            EventKind.ARRIVAL, arrived.t_ms, arrived.worker, command.rank, arrived.row,
            a=command.n_in, b=command.n_out, c=arrived.session, d=arrived.turn, e=command.priority,
            f=arrived.play + 1, x=arrived.deadline_after_ms,
        )  # fmt: skip
        self._encode()

    def _block_tokens(self, row: int, first: int, stop: int) -> bytes:
        assert self._names is not None, "only a log with cache events asks for tokens"
        return generated_tokens(self._names.get(row, f"r{row}"), first, stop)

    # -- steps --------------------------------------------------------------------------------------

    def _steps(self, wall: Mapping[str, Any], bare: bytes | None) -> None:
        """Give the machines what they were given; only the last step may have published the line that is due."""
        steps = wall.get("steps", [])
        if not isinstance(steps, list):
            raise self._refuse(f"wall.steps: must be a list (got {steps})")
        for packed in steps:
            self._expect_nothing(bare)
            try:
                taken = read_step(packed)
            except ValueError as exc:
                raise self._refuse(f"wall.steps: {exc}") from None
            if taken.worker == NO_WORKER and taken.stimulus == LOOK:
                self._fleet.onlookers.look(taken.reading_ms)
                self._num_steps += 1
                continue
            if self._handoffs is not None and taken.worker == NO_WORKER and taken.stimulus in HANDOFF_STIMULI:
                self._handoff_step(self._handoffs, taken, bare)
                continue
            if not 0 <= taken.worker < self._num_workers:
                raise self._refuse(f"wall.steps: the run had {self._num_workers} workers, from 0 (got {packed})")
            self._step(taken, bare)

    def _step(self, taken: StepTaken, bare: bytes | None) -> None:
        machine = self._fleet.machines[taken.worker]
        phase = machine.phase_name
        self._last_steps[taken.worker].append(taken)
        self._last_worker = taken.worker
        try:
            command = self._script.command_of(taken)
        except LookupError as exc:
            raise self._differs(exc.args[0], bare, None, taken.worker) from None
        try:
            step = machine.step(
                taken.stimulus,
                taken.reading_ms,
                command=command,
                num_cancels=taken.num_cancels,
                num_commands=taken.num_commands,
            )
        except (DriverMisuse, ValueError, OverflowError) as exc:
            raise self._differs(f"the machine does not take the step: {exc}", bare, None, taken.worker) from None
        self._num_steps += 1
        self._script.was_taken(taken, command, phase)
        if step.error is not None and self._stopped is None:
            self._stopped = f"worker {taken.worker}: {step.error}"
        if taken.stimulus == "boundary_apply":
            append_records(
                self._fleet.out, machine.boundary_events.records_array(), machine.boundary_events.words_array()
            )
        if len(self._fleet.out):
            self._encode()

    def _handoff_step(self, handoffs: HandoffScript, taken: StepTaken, bare: bytes | None) -> None:
        """Something was done to the handoffs, between the steps of machines."""
        try:
            handoffs.take(taken)
        except LookupError as exc:
            raise self._differs(exc.args[0], bare, None) from None
        self._num_steps += 1
        if len(self._fleet.out):
            self._encode()

    def _encode(self) -> None:
        text = self._encoder.encode(self._fleet.out)
        self._fleet.clear_events()
        if text:
            self._made.extend(text[:-1].split(b"\n"))

    # -- the end ------------------------------------------------------------------------------------

    def _finish(self, cuts: list[bytes], footer: Mapping[str, Any]) -> None:
        """The last steps, the requests that the end of the run caught, and what the footer counts."""
        end, last = footer.get("end"), footer.get("wall", {})
        if not isinstance(last, dict):
            raise self._refuse(f"wall: must be an object (got {last})")
        shown = [self._read_wall(line) for line in cuts]
        due = shown[0][0] if shown else None
        for wall in (*(wall for _, wall in shown), last):
            self._steps(wall, due)
        self._expect_nothing(due)
        if due is not None or end in (RunEnd.INTERRUPTED, RunEnd.TIME_LIMIT):
            self._cut(0.0 if due is None else self._parse(due).get("t_ms"))
        for bare, _ in shown:
            self._compare(bare)
        self._expect_nothing(None)
        if end == RunEnd.COMPLETE:
            self._expect_all_applied()
        if self._stopped is not None and end != RunEnd.STOPPED:
            raise self._differs(f"the log ends as {end}, but a machine stopped", None, None)
        counts = self._encoder.counts()
        logged, made = ({name: side.get(name) for name in _COUNTS} for side in (footer, counts))
        if logged != made:
            raise self._differs("the footer counts something else", orjson.dumps(logged), orjson.dumps(made))

    def _cut(self, t_ms: object) -> None:
        """Requests that live, worker by worker: in its engine, deferred, on its lane. Only the log says when it was."""
        if not isinstance(t_ms, float):
            raise self._refuse(f"t_ms: must be a number of ms (got {t_ms})")
        out = self._fleet.out
        self._fleet.publish_cuts()
        records = out.records_array()
        self._fleet.clear_events()
        if self._handoffs is not None:  # one cut each, wherever it is
            append_records(out, records, t_ms=t_ms)
        for worker in range(self._num_workers if self._handoffs is None else 0):
            told = records[records["worker"] == worker]
            append_records(out, told, t_ms=t_ms)
            rows = set(told["request"].tolist())
            for command in self._script.not_applied(worker):
                if command.request not in rows:
                    out.append_record(EventKind.CUT, t_ms, worker, command.rank, command.request)
        self._encode()

    def _expect_all_applied(self) -> None:
        for worker in range(self._num_workers):
            for command in self._script.not_applied(worker):
                rule = f"row {command.request} arrived, but no step gives it to its machine"
                raise self._differs(rule, None, None, worker)

    # -- what is wrong ------------------------------------------------------------------------------

    def _refuse(self, rule: str) -> LogError:
        return LogError(f"{self._log.name}:{self._seq + 2}: {rule}")

    def _read_wall(self, line: bytes) -> tuple[bytes, dict[str, Any]]:
        try:
            bare, wall = read_wall(line)
        except ValueError as exc:
            raise self._refuse(str(exc)) from None
        return bare, wall or {}

    def _parse(self, bare: bytes) -> dict[str, Any]:
        try:
            event = orjson.loads(bare)
        except orjson.JSONDecodeError as exc:
            raise self._refuse(f"not a JSON line: {exc}") from None
        if not isinstance(event, dict):
            raise self._refuse("a line must be a JSON object")
        return event

    def _differs(self, rule: str, logged: bytes | None, made: bytes | None, worker: int | None = None) -> _Differs:
        """The first difference; its worker is that of the step or of the line, or the one that moved last."""
        sides = [None if side is None else self._parse(side) for side in (logged, made)]
        for side in reversed(sides):
            found = None if side is None else side.get("worker")
            if worker is None and isinstance(found, int) and 0 <= found < self._num_workers:
                worker = found
        worker = self._last_worker if worker is None else worker
        difference = Difference(
            rule=rule if self._stopped is None else f"{rule} ({self._stopped})",
            seq=self._seq,
            line_number=self._seq + 2,
            logged=sides[0],
            rerun=sides[1],
            worker=worker,
            pass_id=None if worker is None else self._fleet.machines[worker].engine.pass_id,
            steps=() if worker is None else tuple(self._last_steps[worker]),
        )
        return _Differs(difference)


def _kind(line: bytes) -> str:
    """The `event` of a line."""
    found = _KIND.search(line, 0, _KIND_WITHIN_BYTES)
    return found[1].decode() if found else ""
