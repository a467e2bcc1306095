"""A log as a timeline for Perfetto or Chrome: JSON in the Trace Event Format.

Decides: one process a worker, in it a thread a rank with a slice a pass, an asynchronous track a request with its
phases inside, and counters of each rank. Never decides what happened, and keeps only what lives: passes in flight,
requests that have not ended.

Times are written in microseconds with three decimals, which is to the nanosecond; the durations of passes are modelled
no finer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

from mocker_replay.events import LogEvent
from mocker_replay.log.audit.header import read_setup
from mocker_replay.log.compression import open_encoder
from mocker_replay.log.reader import BROKEN_LINE, EventLogReader, broken_line
from mocker_replay.outputs import open_output

Event = dict[str, Any]

_NS_PER_MS: Final = 1_000_000
_BATCH: Final = 4_096  # trace events written at a time
_ENDS: Final = frozenset(
    {LogEvent.FINISH, LogEvent.REJECTION, LogEvent.CANCELLATION, LogEvent.FAILURE, LogEvent.CUT}
)  # fmt: skip


# Stage of a handoff -> what its request does from then on; those that say nothing new are left out.
_STAGES: Final = {"source_held": "held", "transfer_started": "transfer", "destination_activated": "waiting"}


class TimelineCounts(Struct):
    """What was written."""

    requests: int = 0
    phases: int = 0
    passes: int = 0  # slices: one for each rank that took part
    barriers: int = 0  # slices of ranks that waited for a slower one
    counters: int = 0


class _Request(Struct):
    """A request that has not ended."""

    track: int
    worker: int
    rank: int
    ns: int  # of its last phase; time of one request never goes back, whatever a clock did
    phase: str = "waiting"
    has_output: bool = False


class _Timeline:
    """Lines of a log in, trace events out."""

    def __init__(self, counts: TimelineCounts, num_workers: int, dp_size: int) -> None:
        self._counts = counts
        self._num_workers = num_workers
        self._dp_size = dp_size
        self._live: dict[str, list[_Request]] = {}  # several where a trace gives a name twice
        self._flights: dict[int, Event] = {}
        self._arrived = 0

    def head(self) -> Iterator[Event]:
        """Names of processes and threads."""
        for worker in range(self._num_workers):
            process = {"ph": "M", "pid": _pid(worker)}
            yield {"name": "process_name", **process, "args": {"name": f"worker {worker}"}}
            yield {"name": "process_sort_index", **process, "args": {"sort_index": worker}}
            for rank in range(self._dp_size):
                thread = {"ph": "M", **self._where(worker, rank)}
                yield {"name": "thread_name", **thread, "args": {"name": f"rank {rank}"}}
                yield {"name": "thread_sort_index", **thread, "args": {"sort_index": rank}}

    def _where(self, worker: int, rank: int) -> Event:
        """Process and thread. Viewers keep 0 for the idle ones and may tell threads by their number alone."""
        return {"pid": _pid(worker), "tid": 1 + worker * self._dp_size + rank}

    def take(self, event: Event) -> Iterator[Event]:
        """The trace events of one line."""
        kind = event["event"]
        if kind == LogEvent.PASS_START:
            self._flights[event["worker"]] = event
        elif kind == LogEvent.PASS_END:
            yield from self._end_pass(event)
        elif kind == LogEvent.COMMAND:
            if "gauges" in event:
                yield from self._gauges(event["worker"], event["rank"], event["t_ms"], event["gauges"])
        elif kind == LogEvent.ARRIVAL:
            yield from self._arrive(event)
        elif kind in _ENDS:
            yield from self._end(event)
        elif kind == LogEvent.HANDOFF:
            yield from self._hand_off(event)
        elif kind in (LogEvent.ADMISSION, LogEvent.FIRST_TOKEN, LogEvent.PREEMPTION):
            yield from self._change(event)

    def tail(self) -> Iterator[Event]:
        """Passes that the end of the run cut off."""
        for start in self._flights.values():
            for rank in start["ranks"]:
                yield from self._slices(start, rank, {"cut_off": True})
        self._flights.clear()

    # -- passes -------------------------------------------------------------------------------------

    def _end_pass(self, event: Event) -> Iterator[Event]:
        start = self._flights.pop(event["worker"])
        ends = {rank["rank"]: rank for rank in event["ranks"]}
        for rank in start["ranks"]:
            end = ends[rank["rank"]]
            record = {key: value for key, value in end["fpm"].items() if key.startswith(("num_", "sum_"))}
            yield from self._slices(start, rank, {"tokens": end["tokens"], **record})
        for number, end in ends.items():
            yield from self._gauges(event["worker"], number, event["t_ms"], end["gauges"])

    def _slices(self, start: Event, rank: Event, told: Mapping[str, Any]) -> Iterator[Event]:
        """The pass of one rank, and its wait for the slowest one."""
        begin_ns, group_ns = _ns(start["t_ms"]), _ns(start["end_ms"])
        end_ns = _ns(rank["end_ms"] if "end_ms" in rank else start["end_ms"])
        args = {
            "scheduled_requests": rank["scheduled_requests"],
            "scheduled_tokens": rank["scheduled_tokens"],
            "admitted": len(rank.get("admitted", ())),
            "prefill": dict(rank.get("prefill", ())),
            "preempted": rank.get("preempted", []),
            **told,
        }
        self._counts.passes += 1
        where = self._where(start["worker"], rank["rank"])
        yield _slice("pass", f"pass {start['pass']}", where, begin_ns, end_ns, args)
        if end_ns < group_ns:
            self._counts.barriers += 1
            yield _slice("barrier", "waits for a slower rank", where, end_ns, group_ns, {})

    def _gauges(self, worker: int, rank: int, t_ms: float, gauges: Mapping[str, int]) -> Iterator[Event]:
        for name, keys in (("requests", ("running", "waiting")), ("blocks", ("active_blocks", "inactive_blocks"))):
            self._counts.counters += 1
            yield {
                "name": f"rank {rank} {name}", "cat": "gauges", "ph": "C", "ts": _us(_ns(t_ms)), "pid": _pid(worker),
                "args": {key: gauges[key] for key in keys},
            }  # fmt: skip

    # -- requests -----------------------------------------------------------------------------------

    def _arrive(self, event: Event) -> Iterator[Event]:
        request = _Request(self._arrived, event["worker"], event["rank"], _ns(event["t_ms"]))
        self._live.setdefault(event["request"], []).append(request)
        self._arrived += 1
        self._counts.requests += 1
        args = {key: event[key] for key in event if key in _TOLD_AT_ARRIVAL}
        yield self._async("b", event["request"], request, args)
        yield self._begin(request)

    def _begin(self, request: _Request) -> Event:
        self._counts.phases += 1
        return self._async("b", request.phase, request, {})

    def _of(self, event: Event) -> _Request | None:
        """The request of a line: of several with one name the first one at that place."""
        live = self._live.get(event["request"], ())
        if len(live) == 1:  # wherever it was handed off to
            return live[0]
        for request in live:
            if [request.worker, request.rank] == [event["worker"], event["rank"]]:
                return request
        return None

    def _async(self, phase: str, name: str, request: _Request, args: Event) -> Event:
        """Begin or end of a nestable asynchronous slice; all of one id are one track."""
        where = {"ts": _us(request.ns), **self._where(request.worker, request.rank)}
        return {"name": name, "cat": "request", "ph": phase, "id": request.track, **where, "args": args}

    def _hand_off(self, event: Event) -> Iterator[Event]:
        request = self._of(event)
        if request is None or event["kind"] not in _STAGES:
            return
        request.ns = max(request.ns, _ns(event["t_ms"]))
        yield self._async("e", request.phase, request, {})
        request.phase = _STAGES[event["kind"]]
        yield self._begin(request)

    def _change(self, event: Event) -> Iterator[Event]:
        request = self._of(event)
        if request is None:
            return
        request.ns = max(request.ns, _ns(event["t_ms"]))
        yield self._async("e", request.phase, request, {})
        if event["event"] == LogEvent.PREEMPTION:
            request.phase = "preempted"
        else:
            request.has_output |= event["event"] == LogEvent.FIRST_TOKEN
            request.phase = "decode" if request.has_output else "prefill"
        yield self._begin(request)

    def _end(self, event: Event) -> Iterator[Event]:
        request = self._of(event)
        if request is None:
            return
        request.ns = max(request.ns, _ns(event["t_ms"]))
        yield self._async("e", request.phase, request, {})
        args = {"end": event["event"], "reason": event.get("reason"), "output_tokens": event["output_tokens"]}
        yield self._async("e", event["request"], request, args)
        self._live[event["request"]].remove(request)
        if not self._live[event["request"]]:
            del self._live[event["request"]]


_TOLD_AT_ARRIVAL: Final = ("rank", "input_tokens", "output_tokens", "session", "turn", "row")


def _ns(t_ms: float) -> int:
    return round(t_ms * _NS_PER_MS)


def _us(ns: int) -> float:
    """Microseconds; below 100 days three decimals are exact enough to come back as the same nanosecond."""
    return ns / 1000


def _pid(worker: int) -> int:
    return worker + 1


def _slice(cat: str, name: str, where: Event, begin_ns: int, end_ns: int, args: Event) -> Event:
    times = {"ts": _us(begin_ns), "dur": _us(end_ns - begin_ns)}
    return {"name": name, "cat": cat, "ph": "X", **times, **where, "args": args}


def write_timeline(log: str | os.PathLike[str], target: str | os.PathLike[str]) -> TimelineCounts:
    """Write the timeline of a log.

    Args:
        log: an event log, plain or compressed; `-` is standard input.
        target: a file (compressed if it ends in .gz or .zst; Perfetto reads .gz), or `-`.

    Raises:
        LogError: no whole event log. Nothing is left at the target then.
        OutputError: the target cannot be written.
    """
    counts = TimelineCounts()
    with EventLogReader(log) as reader, open_output(target) as output:
        stream = open_encoder(output, os.fspath(target))
        opening = {"displayTimeUnit": "ms", "otherData": _other_data(reader.header)}
        stream.write(orjson.dumps(opening)[:-1] + b',"traceEvents":[\n')
        batch: list[bytes] = []
        separator = b""
        for event in _trace_events(reader, counts):
            batch.append(separator + event)
            separator = b",\n"
            if len(batch) == _BATCH:
                stream.write(b"".join(batch))
                batch.clear()
        stream.write(b"".join(batch) + b"\n]}\n")
        stream.close()
    return counts


def _trace_events(reader: EventLogReader, counts: TimelineCounts) -> Iterator[bytes]:
    """Trace events as JSON."""
    setup = read_setup(reader.header, reader.name)
    timeline = _Timeline(counts, setup.num_workers, setup.dp_size)
    yield from map(orjson.dumps, timeline.head())
    number = 1
    try:
        for number, line in enumerate(reader.lines(), 2):  # noqa: B007 - the error says it
            # Most lines of a full log are of tokens and blocks, which make no slice.
            if b'"event":"tokens"' not in line and b'"event":"kv_' not in line:
                yield from map(orjson.dumps, timeline.take(orjson.loads(line)))
        yield from map(orjson.dumps, timeline.tail())
    except BROKEN_LINE as exc:
        raise broken_line(reader, number) from exc


def _other_data(header: Mapping[str, Any]) -> dict[str, str]:
    trace = header.get("trace")
    digest = trace.get("digest") if isinstance(trace, dict) else None
    told = {"schema": header.get("schema"), "level": header.get("level"), "clock": header.get("clock")}
    return {name: str(value) for name, value in (told | {"trace_digest": digest}).items()}
