"""Speed of a whole log on its way to disk, and of reading it back, by compression."""

from __future__ import annotations

from pathlib import Path

import pytest

from mocker_replay.log.reader import EventLogReader
from mocker_replay.log.writer import EventLogWriter
from tests.support.event_stream import decode_heavy_stream

HEADER = {"clock": "virtual", "trace": {}, "config": {}, "options": {}}
NUM_PASSES, BATCHES = 2_000, 5

pytestmark = pytest.mark.bench


@pytest.mark.benchmark(group="event_log")
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_write(benchmark, tmp_path: Path, suffix: str) -> None:
    stream = decode_heavy_stream(NUM_PASSES)

    def write() -> int:
        writer = EventLogWriter(tmp_path / f"log{suffix}", "passes", header=HEADER)
        for _ in range(BATCHES):
            writer.consume(stream)
        return int(writer.close()["events"])

    assert benchmark.pedantic(write, rounds=3, warmup_rounds=1) == BATCHES * (NUM_PASSES * 2 + NUM_PASSES // 8)


@pytest.mark.benchmark(group="event_log")
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_verify(benchmark, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    writer = EventLogWriter(path, "passes", header=HEADER)
    for _ in range(BATCHES):
        writer.consume(decode_heavy_stream(NUM_PASSES))
    footer = writer.close()

    def verify() -> dict[str, object]:
        with EventLogReader(path) as log:
            return log.verify()

    assert benchmark.pedantic(verify, rounds=3, warmup_rounds=1) == footer
