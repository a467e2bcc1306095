"""A replay in virtual time: the fleet moves its machines itself, and nothing is waited for.

Decides who is served when the fleet asks. Per request is the finest grain at which this loop runs.
"""

from __future__ import annotations

from collections.abc import Callable

from mocker_replay.config import ReplayOptions
from mocker_replay.policies import LoadedPolicy
from mocker_replay.replay.books import RunBooks, Stopped
from mocker_replay.replay.interrupt import InterruptFlag
from mocker_replay.replay.pools import Pools
from mocker_replay.replay.sinks import Sinks
from mocker_replay.shells.clock import elapsed_ms, monotonic_ns
from mocker_replay.trace import TraceFacts, TraceSource

Progress = Callable[[int, int, float], None]  # rows handed over, rows in all, modelled time [ms]

# Events between two looks at consumers, interrupts and the progress bar; a callback model makes passes slow.
_RECORDS_PER_TURN = 2_048
_RECORDS_PER_TURN_LOGGED = 65_536  # a log is encoded and written in larger pieces
_RECORDS_PER_TURN_CALLBACK = 1_024
_PROGRESS_EVERY_MS = 100.0


class AcceleratedRun(RunBooks):
    """One replay in virtual time."""

    def __init__(
        self,
        pools: Pools,
        options: ReplayOptions,
        facts: TraceFacts,
        source: TraceSource,
        sinks: Sinks,
        policy: LoadedPolicy,
        progress: Progress | None,
    ) -> None:
        super().__init__(pools, options, facts, source, sinks, policy)
        self._progress = progress
        self._progress_ns = monotonic_ns()
        models = {pools.config_of(worker).timing_model.type for worker in (0, pools.num_workers - 1)}
        self._max_records = _RECORDS_PER_TURN_LOGGED if sinks.wants_passes else _RECORDS_PER_TURN
        if "callback" in models:
            self._max_records = _RECORDS_PER_TURN_CALLBACK

    def loop(self, interrupt: InterruptFlag) -> bool:
        """Until nothing is left (True), or the time limit or an interrupt ends the run (False)."""
        self.start_workload()
        self.sinks.start(self.collector, self.fleet, self.router_hits)
        while not interrupt.raised:
            status = self._advance()
            if status == "needs_rows":
                self.more_rows()
            elif status == "ends":
                self.workload.ended(self.fleet, self.fleet.take_ends())
            elif status == "sample":
                self.consume()
                self.sinks.sample(self.fleet)
            elif status == "place":
                if self.router is not None or self.placement is not None:
                    self.consume()  # they decide by what has happened
                self._place()
            elif status == "full":
                self.consume()
            else:
                self.consume()
                self.sinks.final_sample(self.fleet.last_event_ms)
                return status == "done"
            self._report_progress()
        return False

    def start_workload(self) -> None:
        started_ns = monotonic_ns()
        super().start_workload()
        self.reading_ms += elapsed_ms(started_ns)

    def more_rows(self) -> None:
        started_ns = monotonic_ns()
        super().more_rows()
        self.reading_ms += elapsed_ms(started_ns)

    def _advance(self) -> str:
        """One stretch of the fleet; an engine that cannot go on, or a user's model that raises, ends the run."""
        try:
            return self.fleet.advance(self.until_ms, self._max_records)
        except Exception as exc:
            raise Stopped(exc) from exc

    def _place(self) -> None:
        row = self.fleet.next_request
        self._choose_place()
        if self.workload.hears_arrivals:
            self.workload.arrived(self.fleet, row, self.fleet.now_ms)

    def _choose_place(self) -> None:
        if self.placement is not None:
            try:
                worker, rank, reason = self.placement.choose(self.fleet)
                self.fleet.place_next(worker, rank, reason)
            except Exception as exc:  # the policy is the user's
                raise Stopped(exc) from exc
            return
        if self.router is None:
            self.fleet.place_next(-1, -1)
            return
        placement = self.router.choose(self.fleet.now_ms, *self.fleet.next_arrival())
        self.fleet.place_next(placement.worker, placement.rank)

    def _report_progress(self) -> None:
        if self._progress is not None and elapsed_ms(self._progress_ns) >= _PROGRESS_EVERY_MS:
            self._progress_ns = monotonic_ns()
            self._progress(self.fleet.num_arrived, self.facts.num_rows, self.fleet.now_ms)
