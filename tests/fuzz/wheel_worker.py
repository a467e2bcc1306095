"""Runs replays with the reference wheel: one JSON request a line in, one JSON answer a line out.

Stands alone, since the interpreter that has the wheel may have nothing else. A request holds `trace` (path, null
for a synthetic workload), `config`, `args`, and `tick_ms` when forward-pass records are wanted.
"""

from __future__ import annotations

import json
import sys

import dynamo._core as core

RECORD_NOISE = ("uuid", "pressure_record_ordinals")


class Ticks:
    """A scaling policy that scales nothing and keeps the forward-pass records it is shown."""

    def __init__(self, tick_ms: float) -> None:
        self.tick_ms = tick_ms
        self.count = 1
        self.records: list[dict[str, object]] = []

    def initial_tick_ms(self) -> float:
        return self.tick_ms

    def on_tick(self, snapshot: dict[str, object]) -> dict[str, object]:
        for record in snapshot["decode_fpm_snapshots"]:
            self.records.append({"at_ms": snapshot["now_ms"], **record})
        self.count += 1
        return {"target_prefill": None, "target_decode": None, "next_tick_ms": self.count * self.tick_ms}


def _configs(config: dict[str, object]) -> dict[str, object]:
    """One configuration for all workers, or one for each of two pools."""
    if "prefill" in config:
        return {"prefill_engine_args": config["prefill"], "decode_engine_args": config["decode"]}
    return {"extra_engine_args": config}


def answer(request: dict[str, object]) -> dict[str, object]:
    args = dict(request["args"])
    if "telemetry_sample_interval_ms" in args:
        args["capture_telemetry"] = True
    ticks = Ticks(request["tick_ms"]) if request.get("tick_ms") else None
    try:
        options = {**_configs(request["config"]), "capture_per_request": True, "scaling_policy": ticks, **args}
        if request["trace"] is None:
            result = core.run_mocker_synthetic_trace_replay(**options)
        else:
            result = core.run_mocker_trace_replay([request["trace"]], **options)
    except Exception as error:  # whatever it refuses is an answer
        return {"error": {"type": type(error).__name__, "message": str(error)}}
    records = [{k: v for k, v in r.items() if k not in RECORD_NOISE} for r in result.per_request]
    return {
        "per_request": records,
        "summary": result.summary,
        "telemetry": result.telemetry,
        "passes": ticks.records if ticks else None,
    }


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
