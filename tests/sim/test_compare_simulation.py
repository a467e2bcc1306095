"""The simulation behind docs/compare.md, with a few pairs: it runs, goes on where it was, and can fail."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.compare_simulation import cases, lines, simulate


def test_pairs_are_kept_and_not_run_twice(tmp_path: Path) -> None:
    chosen = [
        dataclasses.replace(case, num_requests=200)
        for case in cases()
        if case.load == "moderate" and case.name in ("A/A", "5 % longer passes")
    ]
    path = tmp_path / "results.jsonl"
    first = simulate(chosen, 0, 3, path)
    assert len(first) == 6
    kept = path.read_text()
    assert len(kept.splitlines()) == 6
    assert simulate(chosen, 0, 3, path) == json.loads(json.dumps(first))
    assert path.read_text() == kept
    path.write_text("".join(kept.splitlines(keepends=True)[:2]))
    simulate(chosen, 0, 3, path)
    assert path.read_text() == kept
    rows = list(lines(chosen, first))
    assert [text.split("|")[1].strip() for text, _ in rows] == ["A/A", "5 % longer passes"]
    assert rows[0][1]


def test_a_false_verdict_and_a_change_that_is_not_found_break_their_lines() -> None:
    same, shifted = (
        next(case for case in cases() if (case.load, case.name) == ("moderate", name))
        for name in ("A/A", "5 % longer passes")
    )

    def line(case: Any, verdict: str, pair: int) -> dict[str, Any]:
        names = ("mean_e2e_latency_ms", "mean_tpot_ms")
        told = {"verdicts": verdict, "relative": 0.0, "interval": (-0.1, 0.1), "basis": "blocks", "blocks": 8}
        return {"case": case.name, "load": case.load, "pair": pair} | {
            key: dict.fromkeys(names, value) for key, value in told.items()
        }

    def holds(case: Any, *verdicts: str) -> bool:
        return next(lines([case], [line(case, v, i) for i, v in enumerate(verdicts)]))[1]

    assert holds(same, *["undecided"] * 19, "worse")
    assert not holds(same, *["same"] * 18, "worse")
    assert holds(shifted, *["worse"] * 19, "undecided")
    assert not holds(shifted, *["worse"] * 18, "undecided")
    assert not holds(shifted, *["worse"] * 18, "better")
