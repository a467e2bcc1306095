"""Shrinks a failing case: fewer rows, fewer settings, as long as it still fails."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from tests.parity.cases import Case

NEEDED = (
    "trace_block_size", "input_tokens", "output_tokens", "request_count", "num_prefill_workers", "num_decode_workers",
)  # fmt: skip

Fails = Callable[[Case], bool]


def _with_rows(case: Case, rows: list[dict[str, Any]]) -> Case:
    return dataclasses.replace(case, trace_text="".join(json.dumps(row) + "\n" for row in rows))


def _drop_rows(case: Case, fails: Fails) -> Case:
    if case.format == "synthetic":
        return case
    chunk = max(1, len(case.rows) // 2)
    while chunk:
        start = 0
        while start < len(case.rows):
            rows = case.rows
            fewer = rows[:start] + rows[start + chunk :]
            smaller = _with_rows(case, fewer)
            if fewer and fails(smaller):
                case = smaller
            else:
                start += chunk
        chunk //= 2
    return case


def _drop_settings(case: Case, fails: Fails) -> Case:
    for key in list(case.args):
        if key not in NEEDED:
            smaller = dataclasses.replace(case, args={k: v for k, v in case.args.items() if k != key})
            case = smaller if fails(smaller) else case
    for role in ("prefill", "decode") if "prefill" in case.config else (None,):
        case = _drop_engine_settings(case, role, fails)
    return case


def _drop_engine_settings(case: Case, role: str | None, fails: Fails) -> Case:
    """Of the configuration of one pool, or of all workers."""

    def with_config(config: dict[str, Any]) -> Case:
        return dataclasses.replace(case, config=config if role is None else {**case.config, role: config})

    def config_of(case: Case) -> Any:
        return case.config if role is None else case.config[role]

    for key in list(config_of(case)["engine"]):
        if key not in ("block_size", "num_gpu_blocks", "timing_model", "worker_type"):
            engine = {k: v for k, v in config_of(case)["engine"].items() if k != key}
            smaller = with_config({**config_of(case), "engine": engine})
            case = smaller if fails(smaller) else case
    if "dp_size" in config_of(case):
        smaller = with_config({"engine": config_of(case)["engine"]})
        case = smaller if fails(smaller) else case
    return case


def minimise(case: Case, fails: Fails) -> Case:
    """A smaller case that still fails; `fails` must be true of `case`."""
    size = -1
    while size != len(case.trace_text) + len(json.dumps(case.args)) + len(json.dumps(case.config)):
        size = len(case.trace_text) + len(json.dumps(case.args)) + len(json.dumps(case.config))
        case = _drop_settings(_drop_rows(case, fails), fails)
    return case


def as_json(case: Case, differences: list[str]) -> str:
    """A reproducer, in the shape of the replay case files with what differs in place of the expectation."""
    data = {
        "name": case.name,
        "format": case.format,
        "args": case.args,
        "config": case.config,
        "npz_arrays": case.npz_arrays,
        "trace": case.rows,
        "differences": differences,
    }
    return json.dumps(data, indent=1) + "\n"
