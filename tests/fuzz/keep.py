"""Keeps reproducers of the fuzzer as parity cases: asks the wheel once more and writes what it says beside the input.

    python -m tests.fuzz.keep build/fuzz-failures/seed-80000858.json=waiting-commands-go-by-rank

Writes tests/parity/cases/found/NAME.json; tests/parity/test_found_cases.py holds the product to it without the wheel.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.verdict import TICK_MS, WALL_CLOCK, busy, without_telemetry
from tests.fuzz.wheel import WHY_MISSING, Wheel, peer_python
from tests.parity.cases import CASES, read_replay_case

FOLDER = CASES / "found"


def keep(path: Path, name: str, wheel: Wheel) -> Path:
    """Write one reproducer with what the wheel says of it; of its passes, too, if they differed.

    Raises:
        ValueError: the wheel refuses the input.
    """
    data: dict[str, Any] = {**json.loads(path.read_text()), "name": name}
    differences = data.pop("differences", [])
    case = read_replay_case(data)
    with tempfile.TemporaryDirectory() as folder:
        trace = case.write_trace(Path(folder))
        config = case.config_with_files(Path(folder))
        told = wheel.run(trace, config, case.args, None)
        passes = None
        if any(difference.startswith("forward pass") for difference in differences):
            passes = busy(wheel.run(trace, config, without_telemetry(case), TICK_MS)["passes"])
    if "error" in told:
        raise ValueError(f"{path}: the wheel refuses: {told['error']['message']}")
    summary = {key: value for key, value in told["summary"].items() if key not in WALL_CLOCK}
    data["expect"] = {"per_request": told["per_request"], "summary": summary}
    if passes is not None:
        data["expect"]["passes"] = passes
    if told["telemetry"] is not None:
        data["expect"]["telemetry"] = told["telemetry"]
    kept = FOLDER / f"{name}.json"
    kept.write_text(json.dumps(data) + "\n")
    return kept


def main(argv: list[str]) -> int:
    python = peer_python()
    if python is None:
        print(WHY_MISSING, file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    with Wheel(python) as wheel:
        for argument in argv:
            path, _, name = argument.partition("=")
            print(keep(Path(path), name or Path(path).stem, wheel))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
