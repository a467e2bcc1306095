"""Rows as Mooncake JSON lines, in one canonical form.

Decides order and presence of fields and how numbers are written, so that the file replays as the rows would and the
same rows give the same bytes. Never writes what has no effect on a replay, and never opens a file.
"""

from __future__ import annotations

import math
from typing import Final

import orjson

from mocker_replay.config.decimals import read_json_number
from mocker_replay.trace.base import Float64s, RowBatch
from mocker_replay.trace.decimals import write_number

_Fields = dict[str, object]
_DEFAULT_PRIORITY: Final = 0


class MooncakeWriter:
    """Follows the rows of one trace, batch by batch, in file order."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_inexact = 0  # times that no decimal gives back; the nearest one is written
        self._last_ms: dict[int, float] = {}  # the latest timestamp written of each named session; NaN before any

    def lines(self, batch: RowBatch) -> bytes:
        """The next rows, a line each."""
        offsets, ids = batch.hash_offsets.tolist(), batch.hash_ids.tolist()
        inputs, outputs = batch.input_tokens.tolist(), batch.output_tokens.tolist()
        parts = []
        for at in range(len(batch)):
            timestamp_ms, delay_ms = self._times(batch, at)
            row: _Fields = {}
            if timestamp_ms is not None:
                row["timestamp"] = timestamp_ms
            row["input_length"] = inputs[at]
            row["output_length"] = outputs[at]
            row["hash_ids"] = ids[offsets[at] : offsets[at + 1]]
            if batch.session_names[at] is not None:
                row["session_id"] = batch.session_names[at]
            if delay_ms is not None:
                row["delay"] = delay_ms
            if batch.request_ids is not None and batch.request_ids[at] is not None:
                row["request_id"] = batch.request_ids[at]
            _add_priority(row, "priority", batch.priority[at].item())
            _add_priority(row, "strict_priority", batch.strict_priority[at].item())
            self._add_period(row, "cancel_after_ms", batch.cancel_after_ms, at)
            self._add_period(row, "deadline_ms", batch.deadline_ms, at)
            parts.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        self.num_rows += len(batch)
        return b"".join(parts)

    def _times(self, batch: RowBatch, at: int) -> tuple[orjson.Fragment | None, orjson.Fragment | None]:
        """Timestamp and delay as they are written; a think time that the timestamps tell is not written again."""
        text, written_ms = None, math.nan
        if not math.isnan(batch.timestamp_ms[at]):
            text = self._number(batch.timestamp_ms[at].item())
            written_ms = read_json_number(text)
        timestamp = None if text is None else orjson.Fragment(text)
        session, is_named = int(batch.session[at]), batch.session_names[at] is not None
        if batch.turn[at] == 0:
            if is_named:
                self._last_ms[session] = written_ms
            return timestamp, None
        delay_ms = batch.delay_ms[at].item()
        is_told = written_ms - self._last_ms[session] == delay_ms  # False for NaN
        if text is not None:
            self._last_ms[session] = written_ms
        return timestamp, None if is_told else orjson.Fragment(self._number(delay_ms))

    def _add_period(self, row: _Fields, name: str, periods_ms: Float64s | None, at: int) -> None:
        if periods_ms is not None and math.isfinite(periods_ms[at]):
            row[name] = orjson.Fragment(self._number(periods_ms[at].item()))

    def _number(self, value: float) -> str:
        text = write_number(value)
        self.num_inexact += read_json_number(text) != value
        return text


def _add_priority(row: _Fields, name: str, value: int) -> None:
    if value != _DEFAULT_PRIORITY:
        row[name] = value
