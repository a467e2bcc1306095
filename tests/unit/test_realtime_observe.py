"""What clients of a realtime replay read, and that looking at them changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mocker_replay.config import RealtimeOptions, ReplayOptions
from mocker_replay.live.request import Signal
from mocker_replay.log.wall import bare_lines
from mocker_replay.replay import replay
from mocker_replay.report.summary import without_wall_clock

CONFIG = {
    "engine": {
        "block_size": 4,
        "num_gpu_blocks": 64,
        "timing_model": {"type": "fixed", "prefill_ms": 2, "decode_ms": 1},
    }
}
OUTPUT_TOKENS = (3, 5, 1, 4)
OPTIONS = ReplayOptions(mode="realtime", trace_block_size=4)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [
        {"timestamp": 3 * row, "input_length": 6, "output_length": tokens, "hash_ids": [row, row + 9]}
        for row, tokens in enumerate(OUTPUT_TOKENS)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("clock", ["measured", "nominal"])
def test_every_token_is_read_in_order_and_never_early(trace: Path, clock: str) -> None:
    read: dict[int, list[tuple[Signal, float]]] = {}
    result = replay(
        trace,
        CONFIG,
        OPTIONS,
        realtime=RealtimeOptions(clock=clock),
        observe=lambda row, signal, wall_ms: read.setdefault(row, []).append((signal, wall_ms)),
    )
    assert {row: [signal.position for signal, _ in signals] for row, signals in read.items()} == {
        row: list(range(tokens)) for row, tokens in enumerate(OUTPUT_TOKENS)
    }
    for row, signals in read.items():
        assert [signal.completed for signal, _ in signals] == [False] * (len(signals) - 1) + [True]
        assert signals[0][0].t_ms == result.columns["first_token_ms"][row]
        assert signals[-1][0].t_ms == result.columns["last_token_ms"][row]
        assert all(signal.t_ms <= signal.observed_ms <= wall_ms for signal, wall_ms in signals)


def test_an_observer_changes_nothing(trace: Path, tmp_path: Path) -> None:
    runs = []
    for name, observe in (("without", None), ("with", lambda row, signal, wall_ms: None)):
        log = tmp_path / f"{name}.jsonl"
        summary = replay(
            trace, CONFIG, OPTIONS, realtime=RealtimeOptions(clock="nominal"), observe=observe,
            events=log, event_level="tokens",
        ).summary  # fmt: skip
        events = b"".join(log.read_bytes().splitlines(keepends=True)[1:])
        runs.append((bare_lines(events), without_wall_clock(summary)))
    assert runs[0] == runs[1]
