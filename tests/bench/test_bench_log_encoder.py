"""Speed of the encoder in bytes of JSON lines; run with --benchmark-only for figures."""

from __future__ import annotations

import pytest

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.log_encoder import LogEncoder
from tests.support.event_stream import StreamMaker


def decode_heavy_stream(num_passes: int) -> EventBuffer:
    """Passes of a busy engine: mostly decoding, every eighth admits and prefills a request."""
    make = StreamMaker()
    t_ms = 0.0
    for pass_id in range(num_passes):
        rank: dict[str, object] = {"requests": 113, "tokens": 113}
        if pass_id % 8 == 0:
            rank |= {"admitted": [(pass_id // 8, 512, 0)], "prefill": [(pass_id // 8, 1600)]}
        end_ms = t_ms + 18.023974 + (pass_id % 7) * 0.001
        make.pass_start(t_ms, end_ms, pass_id=pass_id, ranks=[rank])
        t_ms = end_ms
        make.pass_end_open(t_ms, pass_id=pass_id)
        fpm = (0.018023974, 1, 1600, 0.0, 512, 112, 1234567, 12345.678912 + pass_id, 0, 0, 0.0, 0, 0, 0.0)
        make.rank_end(t_ms, tokens=113, fpm=fpm)
        make.gauges(t_ms, active=12345, inactive=3000, running=113)
        make.pass_end_close(t_ms)
    return make.buffer


@pytest.mark.benchmark(group="log_encoder")
def test_encode_passes(benchmark) -> None:
    stream = decode_heavy_stream(5_000)

    def encode() -> bytes:
        return LogEncoder("passes").encode(stream)

    text = benchmark.pedantic(encode, rounds=10, warmup_rounds=1)
    assert text.count(b"\n") == 5_000 * 2 + 5_000 // 8
    benchmark.extra_info["megabytes_per_second"] = len(text) / benchmark.stats.stats.min / 1e6
