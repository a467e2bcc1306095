"""Files as lines: compressed, in several parts, from a pipe; and what is refused before a line is looked at."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from blake3 import blake3

from mocker_replay.errors import TraceError, UsageError
from mocker_replay.trace import TracePath, open_trace
from mocker_replay.trace.decompression import DecompressionError, TextLimit, decompressed
from mocker_replay.trace.line_file import READ_BYTES, LineFile

TEXT = b"".join(b'{"line": %d, "filler": "%s"}\n' % (at, b"x" * (at % 97)) for at in range(9000))


def gzipped(*texts: bytes) -> bytes:
    return b"".join(gzip.compress(text, mtime=0) for text in texts)


def zstded(*texts: bytes) -> bytes:
    return b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(text) for text in texts)


def lines_of(path: TracePath, max_lines: int = 1000, limit: TextLimit | None = None) -> tuple[list[bytes], str]:
    """All lines, and the digest; their numbers are dense."""
    file = LineFile(path, limit)
    try:
        lines: list[bytes] = []
        for block in file.blocks(max_lines):
            assert block.first_line == len(lines) + 1
            assert 1 <= len(block.lines) <= max_lines
            lines += block.lines
        return lines, file.digest
    finally:
        file.close()


def refusal(path: TracePath, limit: TextLimit | None = None) -> str:
    with pytest.raises(TraceError) as caught:
        lines_of(path, limit=limit)
    (fault,) = caught.value.faults
    return f"{os.path.basename(fault.file)}: {fault.rule}"


# -- compressed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        gzipped(TEXT),
        gzipped(TEXT[:5000], b"", TEXT[5000:300_001], TEXT[300_001:]),
        gzipped(TEXT) + b"\0" * 1000,
        zstded(TEXT),
        zstded(TEXT[:5000], b"", TEXT[5000:]),
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + zstded(TEXT[:10], TEXT[10:]),
        zstandard.ZstdCompressor(level=19, write_content_size=False).compress(TEXT),
    ],
    ids=["gzip", "members", "padded", "zstd", "frames", "skippable", "unsized"],
)
def test_a_compressed_copy_is_the_same_trace(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(data)
    lines, digest = lines_of(path)
    assert lines == TEXT.split(b"\n")[:-1]
    assert digest == blake3(TEXT).hexdigest()


def test_compressed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzipped(TEXT[:1000], TEXT[1000:]))))
    lines, digest = lines_of("-")
    assert (len(lines), digest) == (9000, blake3(TEXT).hexdigest())


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (gzipped(TEXT, TEXT)[:-9], "is cut short: gzip member 2 has no end"),
        (gzipped(TEXT)[:15], "is cut short: gzip member 1 has no end"),
        (gzipped(TEXT) + b"rest", "is corrupt: gzip member 2: incorrect header check"),
        (gzipped(TEXT)[:-8] + b"\0" * 8, "is corrupt: gzip member 1: incorrect data check"),
        (zstded(TEXT, TEXT)[:-9], "is cut short: zstd frame 2 has no end"),
        (zstded(TEXT)[:-4] + b"\0\0\0\0", "is corrupt: zstd frame 1: "),
        (zstded(TEXT) + b"rest of something else", "is corrupt: zstd frame 2: "),
        (gzipped(gzipped(TEXT)), "is compressed twice, the inner time with gzip; unpack it once"),
        (gzipped(zstded(TEXT)), "is compressed twice, the inner time with zstd; unpack it once"),
        (gzipped("x".encode("utf-16")), "is UTF-16; a trace is UTF-8"),
    ],
)
def test_what_is_wrong_with_a_member_is_said(tmp_path: Path, data: bytes, rule: str) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(data)
    assert refusal(path).startswith(f"trace.jsonl.gz: {rule}")


@pytest.mark.parametrize("compress", [gzipped, zstded])
def test_a_bomb_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Any) -> None:
    """Of a text beyond the first 256 MiB (here 1 MiB) only so much may come of each byte."""
    monkeypatch.setattr("mocker_replay.trace.decompression.MIN_SUSPECT_BYTES", 1 << 20)
    path = tmp_path / "bomb"
    path.write_bytes(compress((b" " * 4095 + b"\n") * 4096))
    assert refusal(path) == (
        "bomb: holds 250 times as much text as it has bytes, like a decompression bomb; "
        "--max-text-gib N reads it up to N GiB"
    )
    file = LineFile(path, TextLimit(1))
    assert sum(len(block.lines) for block in file.blocks(10_000)) == 4096
    file.close()
    monkeypatch.setattr("mocker_replay.trace.decompression.GIB", 1 << 20)
    assert refusal(path, TextLimit(2)) == "bomb: holds more than 2 GiB of text; --max-text-gib allows more"


def test_a_zstd_bomb_makes_little_at_a_time() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    sizes = [len(piece) for piece in decompressed(iter([bomb]), "zstd", TextLimit())]
    assert sum(sizes) == 1 << 26
    assert max(sizes) <= 1 << 25


def test_pieces_are_not_small() -> None:
    data = gzipped(TEXT[:100], TEXT[100:])
    chunks = [data[at : at + 7] for at in range(0, len(data), 7)]
    sizes = [len(piece) for piece in decompressed(iter(chunks), "gzip", TextLimit())]
    assert sum(sizes) == len(TEXT)
    assert min(sizes[:-1]) >= 256 * 1024


def test_a_window_that_would_take_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=29, enable_ldm=True, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = stream.compress(os.urandom(1000)) + stream.flush()
    with pytest.raises(DecompressionError, match="zstd frame 1"):
        list(decompressed(iter([data]), "zstd", TextLimit()))


# -- several files -----------------------------------------------------------------------------------


def test_files_one_after_another_are_one_trace(tmp_path: Path) -> None:
    cuts = [0, TEXT.index(b"\n", 100_000), TEXT.index(b"\n", 200_000) + 1, len(TEXT)]
    parts = [TEXT[a:b] for a, b in itertools.pairwise(cuts)]
    parts[1] = parts[1][1:]  # the first file has no line feed at its end
    for name, data in zip("abc", (parts[0], gzipped(parts[1]), zstded(parts[2])), strict=True):
        (tmp_path / name).write_bytes(data)
    paths = [tmp_path / name for name in "abc"]
    assert lines_of(paths) == (TEXT.split(b"\n")[:-1], blake3(TEXT).hexdigest())
    assert lines_of(paths, 7) == lines_of(paths)
    file = LineFile(paths)
    for _ in file.blocks(1000):
        pass
    num_first = parts[0].count(b"\n") + 1
    assert file.locate(num_first) == (str(paths[0]), num_first)
    assert file.locate(num_first + 1) == (str(paths[1]), 1)
    assert file.locate(9000)[0] == str(paths[2])
    assert (file.name, file.path) == ("a and 2 more", " ".join(map(str, paths)))
    assert file.head(READ_BYTES * 9) == TEXT
    file.close()


def test_faults_and_warnings_name_the_file_and_the_line_in_it(tmp_path: Path) -> None:
    row = {"timestamp": 5, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(json.dumps(row))
    second.write_text("\n" + json.dumps(row | {"timestamp": 1}) + "\n" + json.dumps(row | {"output_length": "x"}))
    with open_trace([first, second], trace_block_size=4) as source, pytest.raises(TraceError) as caught:
        source.scan()
    (fault,) = caught.value.faults
    assert (fault.file, fault.line, fault.field) == (str(second), 3, "output_length")
    second.write_text("\n" + json.dumps(row | {"timestamp": 1}))
    with open_trace([first, second], trace_block_size=4) as source:
        facts = source.scan()
        assert [batch.lines.tolist() for batch in source.batches()] == [[1], [3]]
    assert facts.num_rows == 2
    assert "(first at line 2 of" in facts.warnings[-1]


def test_tables_may_repeat_their_header(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    (tmp_path / "a").write_text(header + "2023-01-01 00:00:00,5,1\n")
    (tmp_path / "b").write_text("GeneratedTokens,TIMESTAMP,ContextTokens\n2,2023-01-01 00:00:01,6")
    (tmp_path / "c").write_text("3,2023-01-01 00:00:02,7\n3,x,7")
    with open_trace([tmp_path / "a", tmp_path / "b"], trace_format="auto") as source:
        batches = list(source.batches())
    assert [value for batch in batches for value in batch.input_tokens.tolist()] == [5, 6]
    paths = [tmp_path / name for name in "abc"]
    with open_trace(paths, trace_format="auto") as source, pytest.raises(TraceError) as caught:
        source.scan()
    assert [(os.path.basename(fault.file), fault.line) for fault in caught.value.faults] == [("c", 2)]


def test_paths_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one file"):
        LineFile([])
    with pytest.raises(UsageError, match="standard input can be given once only"):
        LineFile(["-", "-"])
    (tmp_path / "a").write_text("{}")
    assert refusal([tmp_path / "a", tmp_path / "b"]) == "b: cannot be opened: No such file or directory"
    assert refusal("a\0b") == "a\0b: cannot be opened: embedded null byte"


# -- other kinds of files ----------------------------------------------------------------------------


def test_devices_are_refused_and_links_are_followed(tmp_path: Path) -> None:
    assert refusal("/dev/zero") == "zero: is a device; a trace is a file, a pipe or standard input"
    (tmp_path / "real").write_bytes(TEXT)
    (tmp_path / "link").symlink_to("real")
    assert lines_of(tmp_path / "link") == lines_of(tmp_path / "real")
    (tmp_path / "loop").symlink_to("loop")
    assert refusal(tmp_path / "loop").startswith("loop: cannot be opened: Too many levels of symbolic links")


def test_a_pipe_that_never_ends_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocker_replay.trace.decompression.GIB", 1 << 20)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def write_for_ever() -> None:
        with open(fifo, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x\n" * 10_000)
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write_for_ever)
    writer.start()
    assert refusal(fifo, TextLimit(1)) == "fifo: gave more than 1 GiB; --max-text-gib allows more"
    writer.join()


# -- hostile lines -----------------------------------------------------------------------------------

ROW = {"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}


def faults_of(tmp_path: Path, data: bytes, **options: Any) -> list[str]:
    path = tmp_path / "trace"
    path.write_bytes(data)
    with open_trace(path, **({"trace_block_size": 4} | options)) as source, pytest.raises(TraceError) as caught:
        source.scan()
    return [f"{fault.line} {fault.field}: {fault.rule}" for fault in caught.value.faults]


@pytest.mark.parametrize("depth", [900, 1100, 200_000])
@pytest.mark.parametrize("trace_format", ["mooncake", "qwen"])
def test_nesting_of_any_depth_is_a_fault_and_no_crash(tmp_path: Path, depth: int, trace_format: str) -> None:
    deep = b'{"hash_ids": ' + b"[" * depth + b"]" * depth + b"}"
    (fault, *_) = faults_of(tmp_path, deep, trace_format=trace_format)
    assert fault.startswith("1 ")
    objects = b'{"x": ' * depth + b"1" + b"}" * depth
    assert faults_of(tmp_path, objects, trace_format=trace_format)


@pytest.mark.parametrize("trace_format", ["mooncake", "qwen", "azure", "burstgpt", "vllm_bench", "sglang_bench"])
@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\n\0", b"\xff\xfe\xfd", b'{"hash_ids": ["\xff"]}', b'{"chat_id": "\\ud800"}', b"9" * 100_000,
        b'{"timestamp": ' + b"9" * 5000 + b"}", b'{"timestamp": 1e999999999}', b'{"a":1,' * 10_000, b'"' * 99_999,
        b"," * 99_999, b'{"input_lens": [], "output_lens": []}', b"{}\r{}", b"\r\r\r", b"\x1a", b"-",
    ],
)  # fmt: skip
def test_bytes_of_any_kind_end_in_faults(tmp_path: Path, data: bytes, trace_format: str) -> None:
    assert faults_of(tmp_path, data.replace(b"\xff\xfe\xfd", b"a\xff\xfe"), trace_format=trace_format)


def test_there_is_a_most_of_named_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocker_replay.trace.sessions.MAX_NAMED_SESSIONS", 100)
    rows = [json.dumps(ROW | {"session_id": f"s{at}"}) for at in range(101)]
    assert faults_of(tmp_path, "\n".join(rows).encode()) == ["101 session_id: must not be the name of session 101: "
                                                             "at most 100 can have one"]  # fmt: skip
    path = tmp_path / "trace"
    path.write_text("\n".join(rows[:100] * 2))
    with open_trace(path, trace_block_size=4) as source:
        assert source.scan().num_sessions == 100


def test_blocks_without_ids_have_a_limit(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 2**31 - 1, "output_length": 1}
    (fault,) = faults_of(tmp_path, json.dumps(row).encode(), trace_block_size=1, missing_hash_ids="private")
    assert fault == "1 hash_ids: must not leave more than 131072 blocks without an id, but leaves 2147483647"


def test_a_number_of_zlib_is_what_we_think() -> None:
    """Text beyond what was asked for stays in the stream, so a gzip bomb cannot make more at a time."""
    stream = zlib.decompressobj(31)
    assert len(stream.decompress(gzipped(bytes(1 << 20)), 1000)) == 1000
