"""Event logs written and read back: compression, reproducibility, truncation, damage, faults of the output."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import blake3
import orjson
import pytest
import zstandard

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.errors import OutputError
from mocker_replay.log.compression import CHUNK_BYTES
from mocker_replay.log.reader import EventLogReader, LogError
from mocker_replay.log.writer import EventLogWriter
from tests.support.event_stream import StreamMaker, sample_stream

GOLDEN = Path(__file__).parents[1] / "golden" / "event_log" / "sample.jsonl"
HEADER: dict[str, Any] = {
    "clock": "virtual",
    "trace": {"name": "sample.jsonl", "rows": 5, "digest": "00"},
    "config": {"engine": {"block_size": 4, "num_gpu_blocks": 8}},
    "options": {"num_workers": 1},
}
SUFFIXES = ["", ".gz", ".zst"]


def write_log(path: Path, level: str = "kv", *, repeat: int = 1, header: dict[str, Any] = HEADER, **end: bool) -> bytes:
    writer = EventLogWriter(path, level, header=header, with_terms=True)
    writer.add_names(2, ["a request of its own name"])
    stream = sample_stream()
    for _ in range(repeat):
        writer.consume(stream)
    writer.close(**end)
    return path.read_bytes()


def decompress(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.decompress(data)
    if suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


def test_log_is_byte_for_byte_the_golden(tmp_path: Path) -> None:
    assert write_log(tmp_path / "log.jsonl") == GOLDEN.read_bytes()


def test_header_and_footer_stand_first_and_last(tmp_path: Path) -> None:
    header, *events, footer = map(orjson.loads, write_log(tmp_path / "log", "requests").splitlines())
    assert list(header) == ["event", "schema", "level", "clock", "trace", "config", "options"]
    assert header == {"event": "header", "schema": "mocker-replay.events/1", "level": "requests"} | HEADER
    lines = (tmp_path / "log").read_bytes().split(b"\n", 1)[1].rsplit(b"\n", 2)[0] + b"\n"
    assert footer == {
        "event": "footer", "events": len(events), "arrived": 5, "finished": 1, "failed": 1, "rejected": 1,
        "cancelled": 1, "cut": 1, "end": "complete", "digest": blake3.blake3(lines).hexdigest(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ({}, "complete"),
        ({"cut": True}, "time_limit"),
        ({"interrupted": True}, "interrupted"),
        ({"cut": True, "interrupted": True}, "interrupted"),
    ],
)
def test_footer_says_how_the_run_ended(tmp_path: Path, end: dict[str, bool], text: str) -> None:
    write_log(tmp_path / "log", **end)
    with EventLogReader(tmp_path / "log") as log:
        assert log.verify()["end"] == text


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    plain = write_log(tmp_path / "plain", repeat=50)
    path = tmp_path / f"log.jsonl{suffix}"
    assert decompress(write_log(path, repeat=50), suffix) == plain
    with EventLogReader(path) as log:
        events = list(log.events())
        assert log.header["trace"] == HEADER["trace"]
        assert log.footer is not None
        assert log.footer["events"] == len(events) == log.num_events
    assert b"\n".join(orjson.dumps(event) for event in events) == b"\n".join(plain.splitlines()[1:-1])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_reading_keeps_a_few_blocks_in_memory(tmp_path: Path, suffix: str) -> None:
    write_log(tmp_path / f"log{suffix}", repeat=3_000)
    tracemalloc.start()
    try:
        read_all(tmp_path / f"log{suffix}")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 12 * CHUNK_BYTES < 3_000 * GOLDEN.stat().st_size


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_same_events_same_bytes_whatever_the_batches(tmp_path: Path, suffix: str) -> None:
    first = write_log(tmp_path / f"first{suffix}", repeat=300)
    assert write_log(tmp_path / f"other-name{suffix}", repeat=300) == first
    whole = EventBuffer()
    stream = sample_stream()
    for record in [stream] * 300:
        copy_records(record, whole)
    writer = EventLogWriter(tmp_path / f"whole{suffix}", "kv", header=HEADER, with_terms=True)
    writer.add_names(2, ["a request of its own name"])
    writer.consume(whole)
    writer.close()
    assert len(decompress(first, suffix)) > 2 * CHUNK_BYTES
    assert (tmp_path / f"whole{suffix}").read_bytes() == first


def copy_records(source: EventBuffer, target: EventBuffer) -> None:
    """Append the records of one buffer to another by hand; payload kinds get their words."""
    words = source.words_array()
    with_payload = {7, 11, 17, 18, 22}
    for r in source.records_array():
        kind, offset = int(r["kind"]), int(r["c"])
        payload = None
        if kind in with_payload:
            payload = words[offset : offset + int(r["d"])].tolist()
        elif kind == 16 and r["d"] >= 0:
            payload = words[int(r["d"]) : int(r["d"]) + 2].tolist()
        target.append_record(
            kind, float(r["t_ms"]), int(r["worker"]), int(r["rank"]), int(r["request"]),
            a=int(r["a"]), b=int(r["b"]), c=offset, d=int(r["d"]), e=int(r["e"]), f=int(r["f"]),
            x=float(r["x"]), words=payload,
        )  # fmt: skip


def test_digest_covers_the_event_lines_alone(tmp_path: Path) -> None:
    footers = []
    for name, header in (("a", HEADER), ("b", HEADER | {"clock": "realtime", "note": "another header"})):
        write_log(tmp_path / name, header=header)
        with EventLogReader(tmp_path / name) as log:
            footers.append(log.verify())
    assert footers[0] == footers[1]


def test_log_without_events(tmp_path: Path) -> None:
    EventLogWriter(tmp_path / "log", "kv", header=HEADER).close()
    with EventLogReader(tmp_path / "log") as log:
        assert list(log.lines()) == []
        assert log.footer is not None
        assert log.footer["digest"] == blake3.blake3(b"").hexdigest()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_log_cut_anywhere_is_seen(tmp_path: Path, suffix: str) -> None:
    data = write_log(tmp_path / f"log{suffix}", "passes", repeat=3)
    cut = tmp_path / f"cut{suffix}"
    # In zstd the last four bytes are a checksum: without them every line is there, and the digest proves it.
    last = len(data) - (5 if suffix == ".zst" else 1)
    for size in [*range(4, last, max(1, len(data) // 100)), last]:
        cut.write_bytes(data[:size])
        with pytest.raises(LogError, match=r"truncated after line \d+: no footer|damaged"):
            read_all(cut)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_log_in_several_compressed_pieces(tmp_path: Path, suffix: str) -> None:
    plain = write_log(tmp_path / "plain", repeat=200)
    compress = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    pieces = [compress(plain[start : start + 100_000]) for start in range(0, len(plain), 100_000)]
    (tmp_path / "pieces").write_bytes(b"".join(pieces))
    read_all(tmp_path / "pieces")
    (tmp_path / "pieces").write_bytes(b"".join(pieces[:-1]))
    with pytest.raises(LogError, match="truncated"):
        read_all(tmp_path / "pieces")


def test_a_log_can_be_verified_after_some_of_its_lines(tmp_path: Path) -> None:
    write_log(tmp_path / "log")
    with EventLogReader(tmp_path / "log") as log:
        assert orjson.loads(next(log.lines()))["seq"] == 0
        assert log.verify()["events"] == 42
    with EventLogReader(tmp_path / "log") as log:
        list(log.lines())
        assert log.verify()["events"] == 42


def test_a_log_cut_at_a_line_end_is_seen(tmp_path: Path) -> None:
    lines = write_log(tmp_path / "log").splitlines(keepends=True)
    (tmp_path / "cut").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LogError, match=f"cut: truncated after line {len(lines) - 1}: no footer"):
        read_all(tmp_path / "cut")


def read_all(path: Path) -> None:
    with EventLogReader(path) as log:
        log.verify()


def test_a_changed_line_is_seen(tmp_path: Path) -> None:
    data = write_log(tmp_path / "log")
    (tmp_path / "log").write_bytes(data.replace(b'"input_tokens":4096', b'"input_tokens":4097', 1))
    with pytest.raises(LogError, match="log:44: digest: the footer must agree with the event lines"):
        read_all(tmp_path / "log")


def test_a_lost_line_is_seen(tmp_path: Path) -> None:
    lines = write_log(tmp_path / "log").splitlines(keepends=True)
    (tmp_path / "log").write_bytes(b"".join(lines[:4] + lines[5:]))
    with pytest.raises(LogError, match=r"log:43: events: .* which give 41 \(got 42\)"):
        read_all(tmp_path / "log")
    with EventLogReader(tmp_path / "log") as log, pytest.raises(LogError, match=r"log:5: seq must count .* \(got 4\)"):
        list(log.events())


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_damaged_stream_is_seen(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    data = bytearray(write_log(path, repeat=30))
    data[len(data) // 2] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(LogError, match=r"damaged|digest|not a JSON line|truncated"):
        read_all(path)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"", "the file is empty"),
        (b'{"timestamp":0}\n', "begins with a header line"),
        (b'{"event":"header"', "truncated after line 0"),
        (b'{"event":"header",]\n', ":1: not a JSON line"),
        (
            b'{"event":"header","schema":"mocker-replay.events/999"}\n',
            r":1: schema: .* \(got mocker-replay.events/999\)",
        ),
    ],
)
def test_what_is_no_event_log_is_refused(tmp_path: Path, text: bytes, rule: str) -> None:
    (tmp_path / "log").write_bytes(text)
    with pytest.raises(LogError, match=rule):
        EventLogReader(tmp_path / "log")


def test_nothing_may_follow_the_footer(tmp_path: Path) -> None:
    data = write_log(tmp_path / "log")
    (tmp_path / "log").write_bytes(data + b"x\n")
    with pytest.raises(LogError, match=r"log:45: nothing may follow the footer"):
        read_all(tmp_path / "log")


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"cannot read .*none: No such file"):
        EventLogReader(tmp_path / "none")


def test_a_log_on_standard_input(tmp_path: Path) -> None:
    write_log(tmp_path / "log.zst")
    script = "from mocker_replay.log.reader import EventLogReader as R\nprint(R('-').verify()['events'])"
    with open(tmp_path / "log.zst", "rb") as log:
        done = subprocess.run([sys.executable, "-c", script], stdin=log, capture_output=True, check=True)
    assert done.stdout == b"42\n"


def test_a_failed_run_leaves_no_log(tmp_path: Path) -> None:
    def run(path: Path) -> None:
        with EventLogWriter(path, "kv", header=HEADER) as writer:
            writer.consume(sample_stream())
            raise RuntimeError("boom")

    for suffix in SUFFIXES:
        with pytest.raises(RuntimeError, match="boom"):
            run(tmp_path / f"log{suffix}")
    with EventLogWriter(tmp_path / "not-closed", "kv", header=HEADER):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_broken_stream_leaves_no_log(tmp_path: Path) -> None:
    make = StreamMaker()
    make.pass_end_open(1.0)
    with EventLogWriter(tmp_path / "log", "kv", header=HEADER) as writer, pytest.raises(ValueError, match="closed"):
        writer.consume(make.buffer)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_ends_the_log() -> None:
    writer = EventLogWriter("/dev/full", "kv", header=HEADER)
    whole = EventBuffer()
    for _ in range(100):
        copy_records(sample_stream(), whole)
    with pytest.raises(OutputError, match="cannot write /dev/full: No space left on device"):
        writer.consume(whole)
    with pytest.raises(ValueError, match="closed already"):
        writer.close()
    short = EventLogWriter("/dev/full", "kv", header=HEADER)
    with pytest.raises(OutputError, match="cannot write /dev/full: No space left on device"):
        short.close()


def test_a_sink_stays_the_callers() -> None:
    sink = io.BytesIO()
    with EventLogWriter(sink, "passes", header=HEADER) as writer:
        writer.consume(sample_stream())
        footer = writer.close(interrupted=True)
    assert orjson.loads(sink.getvalue().splitlines()[-1]) == footer


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        ({}, "needs clock, trace, config, options"),
        (HEADER | {"schema": "x"}, "sets schema in the header"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        EventLogWriter(tmp_path / "log", "kv", header=header)
    assert list(tmp_path.iterdir()) == []
