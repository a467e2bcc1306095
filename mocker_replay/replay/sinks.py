"""Where a run's events and figures go: event log, records, summary, telemetry.

Decides which optional records the engine has to make. Never looks at an engine. Nothing is renamed into place before
everything could be written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import orjson
from msgspec import structs

from mocker_replay._core.collector import Collector
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay.config import RealtimeOptions, ReplayOptions
from mocker_replay.identity import deterministic_output_tokens
from mocker_replay.log.compression import Encoder, Sink, open_encoder
from mocker_replay.log.writer import EventLogWriter
from mocker_replay.outputs import open_output
from mocker_replay.policies import FCFS
from mocker_replay.replay.pools import Pools
from mocker_replay.replay.result import ReplayResult
from mocker_replay.report.telemetry import SampledPool, TelemetrySampler
from mocker_replay.trace import TraceFacts

# Output token ids in the hashes of generated blocks come from this seed and the request's name.
_TOKEN_SEED = 0

Target = str | os.PathLike[str] | None


class Sinks:
    """All outputs of one run; entered before it starts, left when it is over."""

    def __init__(
        self,
        pools: Pools,
        options: ReplayOptions,
        facts: TraceFacts,
        *,
        events: Target | Sink,
        event_level: str,
        requests: Target,
        summary: Target,
        telemetry: Target | bool,
        realtime: RealtimeOptions | None = None,
    ) -> None:
        self._realtime = realtime
        self._pools = pools
        self._options = options
        self._facts = facts
        self._events = events
        self._targets = {"requests": requests, "summary": summary}
        if not isinstance(telemetry, bool):
            self._targets["telemetry"] = telemetry
        self._level = event_level
        self._samples = telemetry is not None and telemetry is not False
        self._stack = ExitStack()
        self._streams: dict[str, Encoder] = {}
        self._log: EventLogWriter | None = None
        self._names: dict[int, str] = {}
        self._sampler: TelemetrySampler | None = None
        self._taken: list[dict[str, Any]] = []

    def __enter__(self) -> Sinks:
        with ExitStack() as stack:
            for name, target in self._targets.items():
                if target is not None:
                    output = stack.enter_context(open_output(target))
                    self._streams[name] = open_encoder(output, os.fspath(target))
            if self._events is not None:
                self._log = EventLogWriter(
                    self._events,
                    self._level,
                    header=self._header(),
                    num_workers=self._pools.num_workers,
                    dp_size=self._pools.dp_size,
                    with_terms=self._options.policy != FCFS,
                )
                stack.push(self._close_log)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, value, traceback)

    def _close_log(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """A log that `finish` did not close belongs to a run that failed: nothing of it may look whole."""
        if self._log is not None:
            self._log.abort()
            self._log = None

    def _header(self) -> dict[str, Any]:
        """What stands in the first line of the log besides its schema."""
        realtime = self._realtime
        options = self._options.to_mapping()
        # Who keeps the time is no matter of what was replayed: it stands under `wall`.
        del options["mode"]
        header: dict[str, Any] = {
            "clock": "measured" if realtime is not None and realtime.clock == "measured" else "virtual",
            "trace": {
                "format": self._facts.format,
                "rows": self._facts.num_rows,
                "digest": self._facts.digest,
                "timestamp_unit": self._facts.timestamp_unit,
                "trace_block_size": self._facts.trace_block_size,
                **(self._facts.lineage.to_mapping() if self._facts.lineage is not None else {}),
            },
            "config": self._pools.engine.to_mapping(),
            "options": options,
        }
        if self._facts.graph is not None:
            header["trace"] |= {"plays": self._facts.graph.num_plays, "edges": self._facts.graph.num_edges}
        if self._facts.assumptions is not None:
            header["trace"]["assumed"] = structs.asdict(self._facts.assumptions)
        if self._pools.prefill is not None:
            header["prefill_config"] = self._pools.prefill.to_mapping()
        if realtime is not None:
            header["wall"] = {"mode": "realtime", **structs.asdict(realtime)}
        return header

    # -- during the run -----------------------------------------------------------------------------

    @property
    def wants(self) -> int:
        """Optional records somebody reads (Want bits)."""
        return 0 if self._log is None else self._log.wants

    @property
    def wants_kv(self) -> bool:
        """Whether cache events are read, so that hashes must be computed."""
        return self._log is not None and self._level == "kv"

    @property
    def wants_passes(self) -> bool:
        """Whether passes are read one by one."""
        return self._log is not None and self._level != "requests"

    @property
    def wants_samples(self) -> bool:
        """Whether telemetry is sampled."""
        return self._samples

    def start(
        self, collector: Collector, fleet: Fleet, router_hits: Callable[[float], tuple[float, int]] | None
    ) -> None:
        """The run begins: the first sample is due at 0."""
        if self._samples:
            self._sampler = TelemetrySampler(
                collector,
                num_gpu_blocks=self._pools.engine.num_gpu_blocks,
                pools=_sampled_pools(self._pools),
                interval_ms=self._options.telemetry_sample_interval_ms,
                emit=self._take_sample,
                router_hits=router_hits,
            )
            fleet.set_sample(0.0)

    def _take_sample(self, sample: dict[str, Any]) -> None:
        self._taken.append(sample)
        if "telemetry" in self._streams:
            self._streams["telemetry"].write(orjson.dumps(sample, option=orjson.OPT_APPEND_NEWLINE))

    def add_names(self, first_row: int, names: Sequence[str | None]) -> None:
        """Names of rows, before any of their events."""
        for row, name in enumerate(names, first_row):
            if name is not None:
                self._names[row] = name
        if self._log is not None:
            self._log.add_names(first_row, names)

    def consume(self, events: EventBuffer, wall: Callable[[], bytes] | None = None) -> bool:
        """Write what happened; False if nothing of it was written yet, and `wall` has still to be told."""
        return self._log is None or self._log.consume(events, wall)

    def sample(self, fleet: Fleet) -> None:
        """Take the telemetry sample that is due now; the collector has seen everything of this instant."""
        assert self._sampler is not None, "a sample is due only where telemetry was asked for"
        if self._taken:
            self._sampler.take_periodic()
        else:
            self._sampler.take_baseline()
        fleet.set_sample(self._sampler.next_ms)

    def final_sample(self, end_ms: float) -> None:
        """Take the last sample, if there is anything new to tell."""
        if self._sampler is not None:
            self._sampler.finish(end_ms)

    def block_tokens(self, row: int, first: int, stop: int) -> bytes:
        """Generated tokens first..stop of a request as little-endian 32-bit words."""
        return generated_tokens(self.name_of(row), first, stop)

    # -- the end ------------------------------------------------------------------------------------

    def name_of(self, row: int) -> str:
        """Name of a row in logs and records."""
        return self._names.get(row, f"r{row}")

    def request_ids(self) -> list[str | None] | None:
        """Names by row, None when no row has one."""
        if not self._names:
            return None
        return [self._names.get(row) for row in range(self._facts.num_rows)]

    def telemetry_result(self) -> dict[str, Any] | None:
        """All samples, as the reference returns them."""
        if not self._samples:
            return None
        return {"sample_interval_ms": self._options.telemetry_sample_interval_ms, "samples": self._taken}

    def finish(self, result: ReplayResult, *, stopped: bool, wall: bytes | None = None) -> None:
        """Write records and summary, and close the log.

        Args:
            stopped: the engine could not go on. wall: what the footer says about the clock.
        """
        if self._log is not None:
            facts = result.facts
            skipped = None if facts.graph is None else facts.num_skipped
            self._log.close(cut=facts.cut, interrupted=facts.interrupted, stopped=stopped, skipped=skipped, wall=wall)
            self._log = None
        if "requests" in self._streams:
            for lines in result.record_lines():
                self._streams["requests"].write(lines)
        if "summary" in self._streams:
            option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            self._streams["summary"].write(orjson.dumps(result.summary, option=option))
        for stream in self._streams.values():
            stream.close()


def _sampled_pools(pools: Pools) -> tuple[SampledPool, ...]:
    """Prefill workers, then the others; nothing where all are the same."""
    first = pools.num_prefill_workers
    rest = SampledPool(first, pools.num_workers - first, pools.engine.dp_size, pools.engine.num_gpu_blocks)
    if pools.prefill is None:
        return ()
    return SampledPool(0, first, pools.prefill.dp_size, pools.prefill.num_gpu_blocks), rest


def generated_tokens(name: str, first: int, stop: int) -> bytes:
    """Tokens first..stop that a request of this name generates, as little-endian 32-bit words."""
    tokens = deterministic_output_tokens(_TOKEN_SEED, name, stop - first, first=first)
    return b"".join(token.to_bytes(4, "little") for token in tokens)
