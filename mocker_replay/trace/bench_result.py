"""Results of serving benchmarks: one JSON object with an array for each figure of the requests.

Decides how such an object is read, in one line or over many, and what stands for arrivals that it does not hold. The
object is held in memory as a whole, so its size is limited. Never decides which benchmark wrote it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Final

import numpy as np
import orjson

from mocker_replay.trace.base import MAX_TOKENS, Float64s, Int64s
from mocker_replay.trace.exact_json import add_syntax_fault, is_blank
from mocker_replay.trace.faults import FaultList, whole_file_error
from mocker_replay.trace.flat import FlatColumns, FlatRules
from mocker_replay.trace.line_file import Lines

MAX_RESULT_BYTES: Final = 256 * 1024 * 1024
MAX_START_S: Final = 9e9  # fits 64 bits in ns
_NS_PER_MS: Final = 1e6
_NO_TIME: Final = math.nan


class BenchFormat:
    """What the formats of benchmark results have in common; see FlatFormat."""

    name = ""
    detail_flag = ""  # of the benchmark, without which there are no figures of requests
    timestamp_unit: Final = "s"
    has_hash_ids = False
    tells_failures = True

    def reading(self, file: Lines, rules: FlatRules, faults: FaultList) -> BenchReading:
        return BenchReading(file, rules, faults, self.detail_flag)

    def to_ms(self, times: Any, origin: Any) -> Float64s:
        since: Float64s = (times - (0 if origin is None else origin)) / _NS_PER_MS
        return since

    def origin_text(self, origin: Any) -> str:
        return f"{origin / 1e9:.15g} s"


class BenchReading:
    """See FlatReading. The line of a row is its place in the arrays, from 1."""

    def __init__(self, file: Lines, rules: FlatRules, faults: FaultList, detail_flag: str) -> None:
        self._file = file
        self._rules = rules
        self._faults = faults
        self._detail_flag = detail_flag
        self._line = 1  # on which the object begins
        self._told: list[str] = []
        self.num_failed = 0

    def columns(self, max_rows: int) -> Iterator[FlatColumns]:
        result = self._result()
        if result is None:
            return
        inputs, outputs = self._array(result, "input_lens"), self._array(result, "output_lens")
        if inputs is None or outputs is None:
            return
        errors = [""] * len(inputs) if result.get("errors") is None else self._array(result, "errors")
        starts = self._starts(result, len(inputs))
        arrays = {"output_lens": outputs, "errors": errors, "start_times": starts}
        for name, values in arrays.items():
            if values is not None and len(values) != len(inputs):
                rule = f"must have {len(inputs)} values, one for each of input_lens, but has {len(values)}"
                self._faults.add(self._line, name, rule)
        if len(self._faults) or errors is None or starts is None:
            return
        kept = [
            row
            for number in range(len(inputs))
            if (row := self._row(number, inputs[number], outputs[number], errors[number], starts[number])) is not None
        ]
        for at in range(0, len(kept), max_rows):
            lines, starts_s, prompts, answers = zip(*kept[at : at + max_rows], strict=True)
            yield FlatColumns(
                lines=np.array(lines, np.int64),
                times=_to_ns(starts_s),
                input_tokens=np.array(prompts, np.int64),
                output_tokens=np.array(answers, np.int64),
            )

    def finish(self) -> list[str]:
        return self._told

    def _row(
        self, number: int, inputs: Any, outputs: Any, error: Any, start_s: Any
    ) -> tuple[int, float, int, int] | None:
        known = len(self._faults)
        has_failed = outputs == 0 or (error is not None and error != "")
        is_dropped = has_failed and self._rules.failed_rows == "drop"
        lowest = 0 if has_failed and self._rules.failed_rows != "keep" else 1  # the prompt that is left out may be none
        self._require_count(f"input_lens[{number}]", inputs, lowest)
        self._require_count(f"output_lens[{number}]", outputs, 0)
        if error is not None and type(error) is not str:
            self._faults.add(self._line, f"errors[{number}]", "must be a string", error)
        if type(start_s) not in (int, float) or not (start_s != start_s or abs(start_s) <= MAX_START_S):
            self._faults.add(self._line, f"start_times[{number}]", "must be a number of seconds", start_s)
        if has_failed and self._rules.failed_rows == "refuse":
            rule = "must not be that of a failed request with --failed-rows refuse"
            self._faults.add(self._line, f"output_lens[{number}]", rule, outputs)
        if len(self._faults) > known:
            return None
        self.num_failed += has_failed
        return None if is_dropped else (number + 1, float(start_s), inputs, outputs)

    def _require_count(self, field: str, value: Any, lowest: int) -> None:
        if type(value) is not int or not lowest <= value <= MAX_TOKENS:
            given = b"null" if value is None else value
            self._faults.add(self._line, field, f"must be an integer from {lowest} to {MAX_TOKENS}", given)

    def _array(self, result: dict[str, Any], name: str) -> list[Any] | None:
        values = result.get(name)
        if values is None:
            rule = f"is required: the benchmark writes it with {self._detail_flag}"
            self._faults.add(self._line, name, rule)
            return None
        if type(values) is not list:
            self._faults.add(self._line, name, "must be a list", values)
            return None
        return values

    def _starts(self, result: dict[str, Any], num_rows: int) -> list[Any] | None:
        """When each request was sent [s], or what stands in for it; NaN where it is no matter."""
        if result.get("start_times") is not None:
            values = self._array(result, "start_times")
            for number, value in enumerate(values or ()):
                if type(value) is float and not math.isfinite(value):
                    self._faults.add(self._line, f"start_times[{number}]", "must be a finite number", str(value))
            return values
        if self._rules.closed_loop:
            return [_NO_TIME] * num_rows
        if self._rules.missing_timestamps == "refuse":
            self._faults.add(self._line, "start_times", _no_starts_text(result))
            return None
        self._told.append(
            f"the result has no start_times: all requests arrive at once (--missing-timestamps "
            f"{self._rules.missing_timestamps})"
        )
        return [0.0] * num_rows

    def _result(self) -> dict[str, Any] | None:
        """The one object of the file."""
        lines: list[bytes] = []
        num_bytes = 0
        for block in self._file.blocks(1024):
            lines += block.lines
            num_bytes += sum(map(len, block.lines)) + len(block.lines)
            if num_bytes > MAX_RESULT_BYTES:
                rule = f"must not be larger than {MAX_RESULT_BYTES >> 20} MiB, since a result is read as a whole"
                raise whole_file_error(self._file.shown_path, rule)
        used = [at for at, text in enumerate(lines) if not is_blank(text)]
        if not used:
            return None
        self._line = used[0] + 1
        several = [at + 1 for at in used if lines[at].startswith(b"{")]
        if len(several) > 1 and self._parsed(lines[used[0]], tell=False) is not None:
            told = ", ".join(map(str, several[:8]))
            rule = f"must be one result, but {len(several)} begin at the lines {told}; sed -n {several[-1]}p takes one"
            self._faults.add(self._line, "", rule)
            return None
        parsed = self._parsed(b"\n".join(lines[used[0] :]), tell=True)
        if parsed is not None and type(parsed) is not dict:
            self._faults.add(self._line, "", "must be one JSON object", lines[used[0]][:200])
            return None
        return parsed

    def _parsed(self, text: bytes, *, tell: bool) -> Any:
        """JSON, with the Infinity and NaN that the benchmarks write; None if it is none."""
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            try:
                return json.loads(text.decode())
            except (ValueError, RecursionError):
                if tell:
                    add_syntax_fault(text, self._line, exc, self._faults)
                return None


def _to_ns(starts_s: Iterable[float]) -> Int64s | Float64s:
    """Whole ns, the resolution of the clocks that benchmarks read, so that differences are exact; NaN stays."""
    starts = [float(start_s) for start_s in starts_s]
    if any(math.isnan(start_s) for start_s in starts):
        return np.array(starts)
    return np.array([round(Decimal(repr(start_s)).scaleb(9)) for start_s in starts], np.int64)


def _no_starts_text(result: dict[str, Any]) -> str:
    """Why the arrivals are not known, and what settles them."""
    parts = ["is required for an open loop"]
    told = [f"{name} {result[name]}" for name in ("request_rate", "max_concurrency") if _is_plain(result.get(name))]
    if told:
        parts.append(f"the benchmark ran with {' and '.join(told)}")
    parts.append("--missing-timestamps zero replays one burst (request_rate inf), --replay-concurrency N a closed loop")
    return "; ".join(parts)


def _is_plain(value: object) -> bool:
    return type(value) in (int, float) or (type(value) is str and len(value) < 20)
