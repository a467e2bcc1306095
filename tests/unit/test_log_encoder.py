"""Lines of the encoder, byte by byte, on hand-made records."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.log_encoder import LEVELS, LogEncoder
from mocker_replay._core.request_names import RequestNames
from mocker_replay.events import CommandKind, CommandResult, EventKind, TerminalReason, TerminalStatus, Want
from tests.support.event_stream import StreamMaker, double_words, sample_stream

GOLDEN = Path(__file__).parents[1] / "golden" / "log_encoder"


def encode_one(make: StreamMaker, level: str = "kv", **sizes: int) -> bytes:
    return LogEncoder(level, **sizes).encode(make.buffer)


@pytest.mark.parametrize("level", LEVELS)
def test_sample_is_byte_for_byte_the_golden(level: str) -> None:
    text = LogEncoder(level, with_terms=True).encode(sample_stream())
    assert text == (GOLDEN / f"sample-{level}.jsonl").read_bytes()


def test_empty_buffer_gives_no_bytes() -> None:
    encoder = LogEncoder("kv")
    assert encoder.encode(EventBuffer()) == b""
    assert encoder.counts()["events"] == 0


def test_seq_goes_on_over_calls() -> None:
    make = StreamMaker()
    make.arrival(1.0, 0)
    make.arrival(2.0, 1)
    encoder = LogEncoder("requests")
    lines = (encoder.encode(make.buffer) + encoder.encode(make.buffer)).splitlines()
    assert [orjson.loads(line)["seq"] for line in lines] == [0, 1, 2, 3]
    assert encoder.counts() == {
        "events": 4, "arrived": 4, "finished": 0, "failed": 0, "rejected": 0, "cancelled": 0, "cut": 0,
    }  # fmt: skip


def test_counts_do_not_depend_on_the_level() -> None:
    for level in LEVELS:
        encoder = LogEncoder(level)
        events = len(encoder.encode(sample_stream()).splitlines())
        ends = {"finished": 1, "failed": 1, "rejected": 1, "cancelled": 1, "cut": 1}
        assert encoder.counts() == {"events": events, "arrived": 5, **ends}


@pytest.mark.parametrize(
    ("level", "wants"),
    [
        ("requests", Want(0)),
        ("passes", Want.PREFILL | Want.FPM),
        ("tokens", Want.PREFILL | Want.FPM | Want.TOKENS),
        ("kv", Want.PREFILL | Want.FPM | Want.TOKENS | Want.KV),
    ],
)
def test_wants_of_a_level(level: str, wants: Want) -> None:
    assert LogEncoder(level).wants == wants


def test_names_replace_row_numbers_and_are_escaped() -> None:
    make = StreamMaker()
    for row in range(5):
        make.arrival(float(row), row)
    encoder = LogEncoder("requests")
    encoder.add_names(1, ['say "hi"\n', None, "ü/€"])
    rows = [orjson.loads(line) for line in encoder.encode(make.buffer).splitlines()]
    assert [row["request"] for row in rows] == ["r0", 'say "hi"\n', "r2", "ü/€", "r4"]
    assert [row.get("row") for row in rows] == [None, 1, None, 3, None]


def test_a_name_longer_than_any_line() -> None:
    name = "x" * 300_000
    make = StreamMaker()
    make.arrival(0.0, 0)
    make.pass_start(0.0, 1.0, ranks=[{"admitted": [(0, 0, 0)] * 3, "prefill": [(0, 1)] * 3}])
    encoder = LogEncoder("passes")
    encoder.add_names(0, [name])
    rows = [orjson.loads(line) for line in encoder.encode(make.buffer).splitlines()]
    assert rows[0]["request"] == name
    assert rows[1]["ranks"][0]["admitted"] == [[name, 0]] * 3


def test_names_are_added_in_any_order_of_rows_and_once_each() -> None:
    names = RequestNames()
    names.add(10, ["k"])
    names.add(0, ["a", "b"])
    names.add(2, [None, None])
    assert [names.text(row) for row in (0, 1, 2, 9, 10, 11, -1)] == [
        b'"a"', b'"b"', b'"r2"', b'"r9"', b'"k"', b'"r11"', b"null",
    ]  # fmt: skip
    with pytest.raises(ValueError, match='row 10: it is called "k" already'):
        names.add(9, ["i", "again"])
    assert names.text(9) == b'"r9"'
    names.add(9, ["i", None])
    assert (names.text(9), names.text(10)) == (b'"i"', b'"k"')
    with pytest.raises(ValueError, match="row 11"):
        names.add(11, ["\ud800"])


def test_many_names_survive_growth() -> None:
    names = RequestNames()
    for first in range(0, 3000, 100):
        names.add(first, [f"request-{row}" for row in range(first, first + 100)])
    assert [names.text(row) for row in range(3000)] == [f'"request-{row}"'.encode() for row in range(3000)]


def test_zero_and_minus_zero_keep_their_sign() -> None:
    make = StreamMaker()
    for t_ms in (0.0, -0.0, 0.0):
        make.arrival(t_ms, 0)
    times = [line.split(b",")[1] for line in encode_one(make).splitlines()]
    assert times == [b'"t_ms":0.0', b'"t_ms":-0.0', b'"t_ms":0.0']


def test_groups_with_ranks_say_wave_and_rank_ends() -> None:
    make = StreamMaker()
    ranks = [
        {"rank": 0, "requests": 2, "tokens": 9, "end_ms": 4.0},
        {"rank": 1, "end_ms": 5.0, "admitted": [(1, 0, 0)]},
    ]
    make.pass_start(0.0, 5.0, pass_id=7, wave=3, ranks=ranks)
    make.pass_end_open(5.0, pass_id=7, num_ranks=2)
    for rank in range(2):
        make.rank_end(5.0, rank=rank, tokens=rank, fpm=None)
        make.first_token(5.0, rank, rank=rank)
        make.gauges(5.0, rank=rank, running=rank)
    make.pass_end_close(5.0)
    start, admission, end, *first = encode_one(make, "passes", dp_size=2).splitlines()
    assert start == (
        b'{"seq":0,"t_ms":0.0,"event":"pass_start","worker":0,"pass":7,"wave":3,"end_ms":5.0,"ranks":['
        b'{"rank":0,"end_ms":4.0,"scheduled_requests":2,"scheduled_tokens":9},'
        b'{"rank":1,"end_ms":5.0,"scheduled_requests":1,"scheduled_tokens":1,"admitted":[["r1",0]]}]}'
    )
    gauges = b'"gauges":{"active_blocks":0,"inactive_blocks":0,"running":%d,"waiting":0}'
    assert end == (
        b'{"seq":2,"t_ms":5.0,"event":"pass_end","worker":0,"pass":7,"ranks":[{"rank":0,"tokens":0,'
        + (gauges % 0) + b'},{"rank":1,"tokens":1,' + (gauges % 1) + b"}]}"
    )  # fmt: skip
    assert [orjson.loads(line)["event"] for line in (admission, *first)] == ["admission", "first_token", "first_token"]


def test_gauges_of_another_rank_are_not_taken_for_the_commands_own() -> None:
    make = StreamMaker()
    make.command(0.0, 0)
    make.gauges(0.0, rank=1)
    make.command(0.0, 0)
    make.gauges(0.0, mid_pass=1)
    for line in encode_one(make, dp_size=2).splitlines():
        assert "gauges" not in orjson.loads(line)


@pytest.mark.parametrize("result", CommandResult)
@pytest.mark.parametrize("kind", CommandKind)
def test_commands(kind: CommandKind, result: CommandResult) -> None:
    make = StreamMaker()
    make.command(0.0, 0, kind=kind, result=result)
    row = orjson.loads(encode_one(make))
    assert (row["kind"], row["result"]) == (kind.name.lower(), result.name.lower())
    assert ("suppressed" in row) == (kind is CommandKind.CANCEL)


@pytest.mark.parametrize(
    ("reason", "names"),
    [
        (TerminalReason.PROMPT_OVER_MODEL_LEN, ("needed_tokens", "max_model_len")),
        (TerminalReason.PROMPT_OVER_POOL, ("needed_blocks", "pool_blocks")),
        (TerminalReason.GROWTH_OVER_POOL, ("needed_blocks", "pool_blocks")),
        (TerminalReason.PROMPT_OVER_BUDGET, ("needed_tokens", "max_num_batched_tokens")),
        (TerminalReason.BURST_OVER_POOL, ("needed_blocks", "pool_blocks")),
    ],
)
def test_reasons_name_their_figures(reason: TerminalReason, names: tuple[str, str]) -> None:
    make = StreamMaker()
    make.terminal(1.0, 0, status=TerminalStatus.FAILED, reason=reason, figures=[10, 8])
    row = orjson.loads(encode_one(make))
    assert row["reason"] == reason.name.lower()
    assert [row[name] for name in names] == [10, 8]


@pytest.mark.parametrize("reason", TerminalReason)
def test_every_reason_has_a_text(reason: TerminalReason) -> None:
    make = StreamMaker()
    make.terminal(1.0, 0, reason=reason)
    assert orjson.loads(encode_one(make))["reason"] == reason.name.lower()


def test_forward_pass_counts_are_whole_numbers() -> None:
    make = StreamMaker()
    make.pass_end_open(1.0)
    make.rank_end(1.0, fpm=tuple(range(14)))
    make.pass_end_close(1.0)
    fpm = orjson.loads(encode_one(make))["ranks"][0]["fpm"]
    assert list(fpm.values()) == list(range(14))
    assert {name for name, value in fpm.items() if isinstance(value, float)} == {
        "wall_time", "var_prefill_length", "var_decode_kv_tokens", "var_queued_prefill_length",
        "var_queued_decode_kv_tokens",
    }  # fmt: skip


def broken_streams() -> dict[str, tuple[StreamMaker, str]]:
    """Streams no engine may emit, with the rule each breaks."""
    open_group, nested, stray, crowded, few_words, reason, internal = (StreamMaker() for _ in range(7))
    open_group.pass_end_open(1.0)
    nested.pass_end_open(1.0)
    nested.pass_start(1.0, 2.0)
    stray.add(EventKind.FPM, 1.0, 0, 0, words=double_words((0.0,) * 14))
    crowded.arrival(1.0, 0, worker=1)
    few_words.pass_end_open(1.0)
    few_words.add(EventKind.RANK_END, 1.0, 0, 0)
    few_words.add(EventKind.FPM, 1.0, 0, 0, words=[0])
    few_words.pass_end_close(1.0)
    reason.add(EventKind.TERMINAL, 1.0, 0, 0, 0, c=99, d=-1)
    internal.add(EventKind.HOST, 1.0, 0, 0, a=99)
    return {
        "open_group": (open_group, "group must be closed in the same buffer"),
        "nested": (nested, "group must be closed in the same buffer"),
        "stray": (stray, "must stand inside the group of its pass"),
        "worker": (crowded, "worker and rank must exist"),
        "few_words": (few_words, "carry 14 words"),
        "reason": (reason, "unknown reason"),
        "host_step": (internal, "unknown step of a host tier"),
    }


@pytest.mark.parametrize("name", broken_streams())
def test_a_broken_stream_is_refused(name: str) -> None:
    make, rule = broken_streams()[name]
    with pytest.raises(ValueError, match=rule):
        encode_one(make)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="one of requests, passes, tokens, kv"):
        LogEncoder("everything")
    with pytest.raises(ValueError, match="must be >= 1"):
        LogEncoder("kv", num_workers=0)
