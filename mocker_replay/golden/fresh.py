"""A fresh run of a golden: its log in digests, its summary, and what must hold before it may be blessed.

Decides: that a run which lost a request, stands still or was interrupted is no golden. The log goes through digests
and, if it is to be kept, into a file; it is never held in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.errors import InvariantError, ReplayInterrupted, UsageError
from mocker_replay.events import RunEnd
from mocker_replay.golden.blocks import BLOCK_EVENTS, Block, BlockDigester
from mocker_replay.log.compression import Encoder, open_encoder
from mocker_replay.outputs import open_output
from mocker_replay.replay import replay
from mocker_replay.report.summary import without_wall_clock

_HEADER_START = b'{"event":"header"'
_FOOTER_START = b'{"event":"footer"'
_ENDS = ("finished", "failed", "rejected", "cancelled", "cut")


class FreshRun(Struct, frozen=True):
    """What came of a run."""

    header: dict[str, Any]
    footer: dict[str, Any]
    blocks: tuple[Block, ...]
    summary: dict[str, Any]  # without figures of the wall clock


class _Taker:
    """Takes a log as its writer makes it."""

    def __init__(self, block_events: int, on_header: Callable[[dict[str, Any]], None], copy: Encoder | None) -> None:
        self.header: dict[str, Any] = {}
        self.footer: dict[str, Any] = {}
        self.digester = BlockDigester(block_events)
        self._on_header = on_header
        self._copy = copy

    def write(self, data: bytes, /) -> int:
        if data.startswith(_HEADER_START):
            self.header = orjson.loads(data)
            self._on_header(self.header)
        elif data.startswith(_FOOTER_START):
            self.footer = orjson.loads(data)
        else:
            self.digester.update(data)
        if self._copy is not None:
            self._copy.write(data)
        return len(data)

    def flush(self) -> None:
        pass


def run_fresh(
    trace: str | os.PathLike[str],
    config: EngineConfig,
    options: ReplayOptions,
    level: str,
    *,
    prefill: EngineConfig | None = None,
    block_events: int = BLOCK_EVENTS,
    log: Path | None = None,
    on_header: Callable[[dict[str, Any]], None] = lambda header: None,
) -> FreshRun:
    """Run, and require what must hold of every run.

    Args:
        prefill: of prefill workers; `config` is that of decode workers then.
        log: where to keep the log, compressed by its suffix; it appears only if the run is sound.
        on_header: called with the header of the log before anything runs; what it raises ends the run.

    Raises:
        InvariantError: the run could not go on, or lost a request.
        ReplayInterrupted: the user interrupted it.
        ConfigError, UsageError, TraceError, OutputError: as `replay`.
    """
    if options.mode != "accelerated":
        raise UsageError("a golden is an accelerated run; a realtime run with the nominal clock has the same events")
    with ExitStack() as stack:
        copy = None
        if log is not None:
            output = stack.enter_context(open_output(log))
            copy = open_encoder(output, log.name)
        taker = _Taker(block_events, on_header, copy)
        if prefill is None:
            result = replay(trace, config, options, events=taker, event_level=level)
        else:
            result = replay(
                trace, None, options, events=taker, event_level=level, prefill_config=prefill, decode_config=config
            )
        if result.facts.interrupted:
            raise ReplayInterrupted("interrupted")
        require_sound(taker.header, taker.footer, result.summary)
        if copy is not None:
            copy.close()
    return FreshRun(taker.header, taker.footer, taker.digester.close(), without_wall_clock(result.summary))


def require_sound(header: Mapping[str, Any], footer: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Every request that arrived went somewhere, every row arrived, and log and summary say the same of them.

    Raises:
        InvariantError: what does not hold.
    """
    ends = {name: footer[name] for name in _ENDS}
    arrived, rows = footer["arrived"], header["trace"]["rows"]
    if footer["end"] not in (RunEnd.COMPLETE, RunEnd.TIME_LIMIT):
        raise InvariantError(f"the run ended as {footer['end']}: nothing to bless")
    if sum(ends.values()) != arrived:
        told = ", ".join(f"{number} {name}" for name, number in ends.items())
        raise InvariantError(f"{arrived} requests arrived, but {sum(ends.values())} went anywhere ({told})")
    expected = rows - footer.get("skipped", 0)  # a graph skips what waits in a play that failed
    if footer["end"] == RunEnd.COMPLETE and (arrived != expected or ends["cut"]):
        raise InvariantError(
            f"the run is complete, but of {expected} rows {arrived} arrived and {ends['cut']} were cut"
        )
    counted = {
        "num_requests": arrived,
        "completed_requests": ends["finished"],
        "failed_requests": ends["failed"],
        "rejected_requests": ends["rejected"],
        "cancelled_requests": ends["cancelled"],
        "cut_requests": ends["cut"],
    }
    for name, number in counted.items():
        if summary[name] != number:
            raise InvariantError(f"the summary counts {summary[name]} {name}, the log {number}")
