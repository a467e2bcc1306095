"""Transfer delays of the reference, to the last bit.

Recorded from replays of one request whose prefill takes no time: the destination is activated at the delay then.
"""

from __future__ import annotations

import json
from pathlib import Path

from mocker_replay._core.coordinator import Timing, transfer_delay_ms

CASES = json.loads((Path(__file__).parent / "cases" / "transfer" / "delays.json").read_text(encoding="utf-8"))


def test_delays_are_those_of_the_reference() -> None:
    assert len(CASES) == 48
    for case in CASES:
        timing = Timing(case["mode"], case["prompt_tokens"], case["bytes_per_token"], case["bandwidth_gbps"])
        assert transfer_delay_ms(timing, case["missing_tokens"]) == case["delay_ms"], case
