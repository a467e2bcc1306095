"""Whether lateness grows: a steady load for a long time, and the slope of its lateness over the time of the wall.

Part of `realtime_fidelity.py`, which has the command line. Fixed pass times and evenly spaced requests make one moment
of the run like any other, so that whatever changes with time changes by itself. The slope of the mean lateness of each
ten seconds is judged: there is drift if it is not 0 within three of its standard errors. It sees other work on the
machine, too, so the machine has to be left alone meanwhile. The slope of the least lateness of each second is shown
beside it; it sees less of what others do. Slopes are least squares over blocks of time, since passes next to each other
are alike.
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

SPACING_MS, OUTPUT_TOKENS = 97, 24
CONFIG = {
    "engine": {
        "block_size": 64,
        "num_gpu_blocks": 4_096,
        "timing_model": {"type": "fixed", "prefill_ms": 3.0, "decode_ms": 16.0},
    }
}
MEAN_BLOCK_S, LEAST_BLOCK_S = 10.0, 1.0


class Slope(NamedTuple):
    """Of lateness over wall time."""

    us_per_s: float
    error_us_per_s: float  # standard error; NaN below three blocks

    def __str__(self) -> str:
        return f"{self.us_per_s:+.3f} ± {self.error_us_per_s:.3f}"

    @property
    def is_none(self) -> bool:
        """Nothing that could not be chance."""
        return abs(self.us_per_s) <= 3.0 * self.error_us_per_s


def slope_of(at_ms: npt.NDArray[np.float64], late_ms: npt.NDArray[np.float64], *, least: bool) -> Slope:
    """Least-squares slope over one value a block of time.

    Args:
        at_ms: (n,) wall times [ms], ascending. late_ms: (n,) lateness at them [ms].
        least: take the least lateness of each second, not the mean of each ten seconds.
    """
    block = np.floor(at_ms / (1000.0 * (LEAST_BLOCK_S if least else MEAN_BLOCK_S)))
    _, first, counts = np.unique(block, return_index=True, return_counts=True)
    if len(counts) < 3:
        return Slope(math.nan, math.nan)
    x_s = np.add.reduceat(at_ms, first) / counts / 1000.0
    y_us = 1000.0 * (np.minimum.reduceat(late_ms, first) if least else np.add.reduceat(late_ms, first) / counts)
    centred = x_s - x_s.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y_us) / spread
    left = y_us - y_us.mean() - slope * centred
    return Slope(slope, math.sqrt(float(left @ left) / (len(counts) - 2) / spread))


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
    print("| lateness of | events | p50 [ms] | p99 [ms] | max [ms] | slope of the means | of the least [us/s] | |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    steady = True
    for name, (at_ms, late_ms) in lateness.items():
        means, least = (slope_of(at_ms, late_ms, least=choice) for choice in (False, True))
        steady &= means.is_none
        p50, p99 = np.percentile(late_ms, [50, 99])
        print(
            f"| {name} | {len(late_ms)} | {p50:.3f} | {p99:.3f} | {late_ms.max():.3f} | {means} | {least} "
            f"| {'no drift' if means.is_none else 'drift'} |"
        )
    print("\nSlopes with their standard errors, in us a second of wall time.")
    return 0 if steady else 1
