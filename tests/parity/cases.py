"""Reference cases as data: one loader for the two folders, so that the tests see one shape.

Decides what a case file means. Runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
# Arguments of the reference that say how to observe a run, not how to run it.
OBSERVERS = {"capture_per_request", "capture_telemetry"}


@dataclass(frozen=True)
class Case:
    """One run of the reference and what came of it."""

    name: str
    format: str  # "mooncake" or "synthetic"
    config: Mapping[str, Any]
    trace_text: str  # the bytes of the trace file; "" for synthetic
    args: Mapping[str, Any]  # arguments of the call, without config and trace
    expect: Mapping[str, Any]
    num_files: int = 1
    files: tuple[tuple[str, str], ...] = ()  # name and text, where a trace is not one file called trace.jsonl
    npz_arrays: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> Mapping[str, str] | None:
        return self.expect.get("error")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of a valid trace."""
        return [json.loads(line) for line in self.trace_text.splitlines() if line.strip()]

    def config_with_files(self, folder: Path) -> dict[str, Any]:
        """The configuration, with the profile it names written to `folder`."""
        if not self.npz_arrays:
            return dict(self.config)
        import numpy as np

        path = folder / "profile.npz"
        np.savez(path, **{name: np.array(values, dtype=np.float64) for name, values in self.npz_arrays.items()})
        config: dict[str, Any] = json.loads(json.dumps(self.config).replace("<npz>", str(path)))
        return config

    def write_trace(self, folder: Path) -> Path:
        return self.write_files(folder)[0]

    def write_files(self, folder: Path) -> list[Path]:
        """All files of the trace, in their order."""
        paths = []
        for name, text in self.files or (("trace.jsonl", self.trace_text),):
            paths.append(folder / name)
            paths[-1].write_text(text, encoding="utf-8", newline="")
        return paths


def _text(rows: list[Any]) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def _load_vllm(data: dict[str, Any]) -> Case:
    args = {"trace_block_size": data["trace_block_size"], **data["run"]}
    metrics = data["expect"].get("scheduler_metrics")
    if metrics:
        args["telemetry_sample_interval_ms"] = metrics["sample_interval_ms"]
    npz = data.get("npz_arrays_float64") or {}
    return Case(data["name"], "mooncake", data["config"], _text(data["trace"]), args, data["expect"], npz_arrays=npz)


def _load_sglang(data: dict[str, Any]) -> Case:
    args = {key: value for key, value in data["config"].items() if key != "engine"}
    if "telemetry_interval_ms" in data["expect"]:
        args["telemetry_sample_interval_ms"] = data["expect"]["telemetry_interval_ms"]
    expect = data["expect"]
    if "error" in expect:
        expect = {"error": {"message": expect["error"]}}
    return Case(data["name"], "mooncake", {"engine": data["config"]["engine"]}, _text(data["trace"]), args, expect)


def read_replay_case(data: dict[str, Any]) -> Case:
    """A case in the form of `cases/replay`; what is expected may be left out."""
    data = {"expect": {}, **data}
    args = {key: value for key, value in data["args"].items() if key not in OBSERVERS}
    if "telemetry" in data["expect"]:
        args.setdefault("telemetry_sample_interval_ms", 1000.0)
    if data["format"] not in ("mooncake", "synthetic"):
        args["trace_format"] = data["format"]
    files = data.get("trace_files")
    text = files[0]["text"] if files else data.get("trace_text", _text(data.get("trace", [])))
    count = len(files) if files else 1
    named = tuple((file["name"], file["text"]) for file in files or ())
    if "trace_file_name" in data:
        named = ((data["trace_file_name"], text),)
    return Case(data["name"], data["format"], data["config"], text, args, data["expect"], num_files=count, files=named)


def _load_flavour(data: dict[str, Any]) -> Case:
    """Cases of the other engines: what concerns the run stands beside `engine`."""
    config = dict(data["config"])
    args = {key: config.pop(key) for key in ("trace_block_size", "trace_format") if key in config}
    if "telemetry" in data["expect"]:
        args["telemetry_sample_interval_ms"] = data["expect"]["telemetry_interval_ms"]
    text = _text(data["trace"])
    return Case(data["name"], args.get("trace_format", "mooncake"), config, text, args, data["expect"])


def load_cases(folder: str) -> list[Case]:
    """Every case of `cases/<folder>`, by name."""
    loads = {"vllm": _load_vllm, "trtllm": _load_flavour, "sglang": _load_sglang, "replay": read_replay_case}
    load = loads[folder]
    return [load(json.loads(path.read_text())) for path in sorted((CASES / folder).glob("*.json"))]
