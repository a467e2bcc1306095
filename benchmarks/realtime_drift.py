"""Whether lateness grows: a steady load for a long time, and the slope of its lateness over the time of the wall.

Part of `realtime_fidelity.py`, which has the command line. Fixed pass times and evenly spaced requests make one moment
of the run like any other, so that whatever changes with time changes by itself. A slope is fitted to the lateness of
each minute; the run drifts if their mean is not 0 within the 99 % interval that the minutes themselves give by their
spread. Lateness that adds up does so in every minute; what the machine does beside it wanders over minutes, so that
the usual error of one line through everything is far too small: two runs of the same program had slopes of +0.046 and
-0.042 us/s through all pass ends, each 0.013 to 0.016 by that error.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from mocker_replay.config import RealtimeOptions, ReplayOptions
from mocker_replay.replay import replay
from mocker_replay.report.compare_student import critical_t

SPACING_MS, OUTPUT_TOKENS = 97, 24
CONFIG = {
    "engine": {
        "block_size": 64,
        "num_gpu_blocks": 4_096,
        "timing_model": {"type": "fixed", "prefill_ms": 3.0, "decode_ms": 16.0},
    }
}
MINUTE_MS = 60_000.0
CONFIDENCE = 0.99


class Slope(NamedTuple):
    """Of lateness over wall time, in a minute on the average."""

    us_per_s: float
    error_us_per_s: float  # half of the interval; NaN below three minutes

    def __str__(self) -> str:
        return f"{self.us_per_s:+.3f} ± {self.error_us_per_s:.3f}"

    @property
    def is_none(self) -> bool:
        """Nothing that could not be chance."""
        return abs(self.us_per_s) <= self.error_us_per_s


def slope_of(at_ms: npt.NDArray[np.float64], late_ms: npt.NDArray[np.float64]) -> Slope:
    """Mean of the least-squares slopes of all whole minutes, with its interval by their spread.

    Args:
        at_ms: (n,) wall times [ms], ascending. late_ms: (n,) lateness at them [ms].
    """
    minute = np.floor((at_ms - at_ms[0]) / MINUTE_MS).astype(np.int64) if len(at_ms) else np.zeros(0, np.int64)
    whole = int((at_ms[-1] - at_ms[0]) // MINUTE_MS) if len(at_ms) else 0
    slopes = []
    for number in range(whole):
        x_s, y_us = at_ms[minute == number] / 1000.0, 1000.0 * late_ms[minute == number]
        centred = x_s - x_s.mean()
        slopes.append(float(centred @ y_us) / float(centred @ centred))
    if whole < 3:
        return Slope(math.nan, math.nan)
    error = float(np.std(slopes, ddof=1)) / math.sqrt(whole)
    return Slope(float(np.mean(slopes)), critical_t(1.0 - CONFIDENCE, whole - 1) * error)


def read_lateness(log: Iterable[bytes]) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Wall times and lateness [ms] of arrivals and pass ends, from the lines of a realtime log."""
    found: dict[str, list[tuple[float, float]]] = {"arrivals": [], "pass ends": []}
    for line in log:
        event: dict[str, Any] = orjson.loads(line)
        if event["event"] == "arrival":
            wall = event["wall"]
            found["arrivals"].append((wall["ms"], wall["ms"] - wall["planned_ms"]))
        elif event["event"] == "pass_end":
            found["pass ends"].append((event["wall"]["ms"], event["wall"]["ms"] - event["t_ms"]))
    return {name: tuple(np.array(pairs).reshape(-1, 2).T) for name, pairs in found.items()}  # type: ignore[misc]


def drift(minutes: float) -> int:
    """Run, print Markdown; exit code 0 if there is no drift, 1 if there is."""
    num_rows = max(1, round(minutes * 60_000 / SPACING_MS))
    with tempfile.TemporaryDirectory() as folder:
        trace, log = Path(folder) / "steady.jsonl", Path(folder) / "log.jsonl"
        with trace.open("w", encoding="utf-8") as file:
            for row in range(num_rows):
                entry = {"timestamp": row * SPACING_MS, "input_length": 64, "output_length": OUTPUT_TOKENS}
                file.write(json.dumps(entry | {"hash_ids": [row]}) + "\n")
        replay(trace, CONFIG, ReplayOptions(mode="realtime"), realtime=RealtimeOptions(), events=log)
        with log.open("rb") as lines:
            lateness = read_lateness(lines)
    print(
        f"\n\nSteady load for {minutes:g} min: {num_rows} requests, one every {SPACING_MS} ms, {OUTPUT_TOKENS} tokens\n"
    )
    print("| lateness of | events | p50 [ms] | p99 [ms] | max [ms] | slope in a minute [us/s] | |")
    print("|---|--:|--:|--:|--:|--:|---|")
    steady = True
    for name, (at_ms, late_ms) in lateness.items():
        slope = slope_of(at_ms, late_ms)
        steady &= slope.is_none
        p50, p99 = np.percentile(late_ms, [50, 99])
        print(
            f"| {name} | {len(late_ms)} | {p50:.3f} | {p99:.3f} | {late_ms.max():.3f} | {slope} "
            f"| {'no drift' if slope.is_none else 'drift'} |"
        )
    print("\nSlopes: mean of the minutes, and 99 % interval by their spread.")
    return 0 if steady else 1
