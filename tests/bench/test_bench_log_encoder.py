"""Speed of the encoder in bytes of JSON lines; run with --benchmark-only for figures."""

from __future__ import annotations

import pytest

from mocker_replay._core.log_encoder import LogEncoder
from tests.support.event_stream import decode_heavy_stream

pytestmark = pytest.mark.bench


@pytest.mark.benchmark(group="log_encoder")
def test_encode_passes(benchmark) -> None:
    stream = decode_heavy_stream(5_000)

    def encode() -> bytes:
        return LogEncoder("passes").encode(stream)

    text = benchmark.pedantic(encode, rounds=10, warmup_rounds=1)
    assert text.count(b"\n") == 5_000 * 2 + 5_000 // 8
    if benchmark.stats is not None:  # not measured in an ordinary test run
        benchmark.extra_info["megabytes_per_second"] = len(text) / benchmark.stats.stats.min / 1e6
