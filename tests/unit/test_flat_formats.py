"""Traces of single requests in the formats of others: columns, facts, warnings, and everything that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mocker_replay.errors import TraceError, UsageError
from mocker_replay.trace import RowBatch, TraceFacts, concatenate, open_trace
from mocker_replay.trace.datetimes import DateTimes, text_of_ticks

QWEN = {
    "chat_id": 7, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 20, "output_length": 3, "type": "text",
    "turn": 1, "hash_ids": [1, 2],
}  # fmt: skip
BENCH: dict[str, Any] = {"model_id": "m", "input_lens": [30, 5], "output_lens": [2, 3], "start_times": [10.25, 10.5]}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def write(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "trace"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8", newline="")
    return path


def read(path: Path, max_rows: int = 2, **options: Any) -> tuple[TraceFacts, RowBatch]:
    with open_trace(path, trace_format="auto", **options) as source:
        return source.scan(), concatenate(list(source.batches(max_rows)))


def told(path: Path, trace_format: str, **options: Any) -> list[str]:
    """All faults, as `line field rule (got value)`."""
    with open_trace(path, trace_format=trace_format, **options) as source, pytest.raises(TraceError) as caught:
        source.scan()
    return [f"{f.line} {f.field}: {f.rule}" + (f" (got {f.value})" if f.value else "") for f in caught.value.faults]


def ids_of(batch: RowBatch) -> list[list[int]]:
    return [part.tolist() for part in np.split(batch.hash_ids, batch.hash_offsets[1:-1])]


# -- qwen --------------------------------------------------------------------------------------------


def test_qwen_rows_arrive_when_they_were_recorded(tmp_path: Path) -> None:
    rows = [
        QWEN,
        QWEN
        | {"chat_id": 9, "parent_chat_id": 7, "turn": 2, "timestamp": 61.114}
        | {"input_length": 40, "hash_ids": [1, 2, 5]},
        QWEN | {"chat_id": 8, "timestamp": 70, "input_length": 17, "hash_ids": [2**64 - 1, 0, 4], "output_length": 0},
    ]  # fmt: skip
    facts, batch = read(write(tmp_path, *rows))
    assert batch.timestamp_ms.tolist() == [1500.0, 61114.0, 70000.0], "seconds become ms with one rounding"
    assert batch.session.tolist() == [0, 1, 2], "a parent orders nothing"
    assert batch.request_ids == ["7", "9", "8"]
    assert ids_of(batch) == [[1, 2], [1, 2, 5], [2**64 - 1, 0]]
    assert (facts.format, facts.trace_block_size, facts.timestamp_unit) == ("qwen", 16, "s")
    assert facts.warnings == (
        "1 row with more hash_ids than their prompt has blocks of 16 tokens (first at line 3); the surplus is ignored",
    )
    assert facts.assumptions is not None
    assert facts.assumptions.texts() == ("time 0 is 1.5 s",)


def test_qwen_relations_that_are_odd_are_warned_of(tmp_path: Path) -> None:
    rows = [
        QWEN,
        QWEN | {"chat_id": 8, "parent_chat_id": 3},
        QWEN | {"chat_id": 9, "parent_chat_id": 7, "turn": 3},
        QWEN | {"chat_id": 10, "parent_chat_id": 7, "turn": 2, "timestamp": 1.25, "extra": 1},
    ]
    facts, _ = read(write(tmp_path, *rows))
    assert not facts.is_sorted
    assert facts.warnings == (
        "1 row with a parent_chat_id that is no chat of the trace (it may have begun before) (first at line 2)",
        "1 row with a turn other than the one after its parent's (first at line 3)",
        "1 row with a timestamp before that of its parent (first at line 4)",
        "fields that mean nothing here were ignored: extra",
        "rows are not in order of time (first at line 4); they are sorted",
    )


def test_qwen_faults_are_all_named(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        QWEN,
        "",
        QWEN,
        QWEN | {"chat_id": 8, "parent_chat_id": 8},
        {"chat_id": -1, "timestamp": "x", "output_length": 1.0, "hash_ids": [1, -1]},
        QWEN | {"chat_id": 10, "input_length": 33},
        QWEN | {"chat_id": 11, "hash_ids": [1, 2, 3, 4]},
        QWEN | {"chat_id": 12, "hash_ids": None, "type": 3},
        '{"chat_id": 1, "chat_id": 2}',
        "[1]",
        "{",
    )
    assert told(path, "qwen", surplus_hash_ids="refuse") == [
        "3 chat_id: must not be given twice, but stands at line 1 too (got 7)",
        "4 parent_chat_id: must not be the chat itself (got 8)",
        "5 input_length: is required",
        "5 chat_id: must be an integer from 0 to 9223372036854775807 (got -1)",
        "5 output_length: must be an integer from 0 to 2147483647 (got 1.0)",
        '5 timestamp: must be a finite number of seconds (got "x")',
        "5 hash_ids[1]: must be an integer from 0 to 18446744073709551615 (got -1)",
        "6 input_length: must not exceed the 32 tokens of 2 hash_ids at trace block size 16 "
        "(--missing-hash-ids private allows it) (got 33)",
        "7 hash_ids: must hold one id per 16 tokens, 2 for 20, but holds 4 (--surplus-hash-ids ignore allows it)",
        "8 type: must be a string (got 3)",
        "8 hash_ids: is required: one id per prompt block of 16 tokens",
        "9 chat_id: must not be given twice (got 2)",
        "10 : must be one JSON object (got [1])",
        "11 : must be one JSON object: unexpected end of data at column 2 (got {)",
    ]


def test_qwen_blocks_without_ids_share_nothing_if_asked(tmp_path: Path) -> None:
    rows = [QWEN | {"hash_ids": [5]}, QWEN | {"chat_id": 8, "hash_ids": None}]
    facts, batch = read(write(tmp_path, *rows), missing_hash_ids="private")
    assert ids_of(batch) == [[5, 6], [7, 8]]
    assert facts.warnings == ("2 rows with 3 prompt blocks that have no hash id; these share nothing",)


# -- azure -------------------------------------------------------------------------------------------


def test_azure_differences_are_exact_to_100_ns(tmp_path: Path) -> None:
    rows = ("2023-11-16 18:17:04.0319600,4808,10", "2023-11-16 18:17:03.9799601,1,0", "2023-11-17 00:00:00,65,2")
    facts, batch = read(write(tmp_path, AZURE, *rows, ""))
    assert batch.timestamp_ms.tolist() == [51.9999, 0.0, 20576020.0399]
    assert (batch.lines.tolist(), batch.input_tokens.tolist()) == ([2, 3, 4], [4808, 1, 65])
    assert batch.output_tokens.tolist() == [10, 0, 2]
    assert np.diff(batch.hash_offsets).tolist() == [76, 1, 2]
    assert batch.hash_ids.tolist() == list(range(79)), "every prompt is private"
    assert (facts.format, facts.timestamp_unit, facts.trace_block_size) == ("azure", "datetime", 64)
    assert facts.min_first_timestamp_ms == 0.0
    assert facts.assumptions is not None
    assert facts.assumptions.origin == "2023-11-16 18:17:03.9799601"
    assert facts.assumptions.texts()[1] == "no prompt shares a prefix"
    assert "every prompt is taken for private" in facts.warnings[1]


def test_azure_times_with_offsets_and_fewer_digits(tmp_path: Path) -> None:
    rows = ("2024-05-10 00:00:00.009930+00:00,5,1", "2024-05-10T02:00:01+02:00,5,1", "2024-05-09 23:00:02.5-0100,5,1")
    facts, batch = read(write(tmp_path, AZURE, *rows, "2024-05-10 00:00:03Z,5,1"))
    assert batch.timestamp_ms.tolist() == [0.0, 990.07, 2490.07, 2990.07]
    assert facts.is_sorted


@pytest.mark.parametrize(
    "text",
    [
        "", "2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-00-01 00:00:00", "2023-01-00 00:00:00",
        "2023-01-01 24:00:00", "2023-01-01 00:60:00", "2023-01-01 00:00:60", "2023-01-01 00:00:00.12345678",
        "0000-01-01 00:00:00", "2023-01-01", "2023-01-01 00:00", "2023-01-01 00:00:00 UTC", "1684108800",
        "2023-01-01 00:00:00+24:00", "٢٠٢٣-01-01 00:00:00",
    ],
)  # fmt: skip
def test_azure_refuses_what_is_no_time(tmp_path: Path, text: str) -> None:
    (fault,) = told(write(tmp_path, AZURE, f"{text},5,1"), "azure")
    assert fault.startswith("2 TIMESTAMP: must be a date and time such as")


def test_dates_are_those_of_the_calendar() -> None:
    import datetime

    for year, month, day in ((1, 1, 1), (1900, 3, 1), (2000, 2, 29), (2023, 12, 31), (2024, 12, 31), (9999, 12, 31)):
        text = f"{year:04}-{month:02}-{day:02} 23:59:58.0000001"
        ticks = DateTimes().ticks(text)
        assert isinstance(ticks, int)
        days = datetime.date(year, month, day).toordinal() - 1
        assert ticks == (days * 86_400 + 86_398) * 10_000_000 + 1
        assert text_of_ticks(ticks) == text
    assert text_of_ticks(0) == "0001-01-01 00:00:00.0000000"


def test_azure_faults_are_all_named(tmp_path: Path) -> None:
    rows = ("2023-01-01 00:00:00,0,-1", "2023-01-01 00:00:00", "2023-01-01 00:00:00+00:00,5,1", 'a,"b', "", "a\0,b,c")
    assert told(write(tmp_path, AZURE, "2023-01-01 00:00:00,1.0,2147483648", *rows), "azure") == [
        "2 ContextTokens: must be an integer from 1 to 2147483647 (got 1.0)",
        "2 GeneratedTokens: must be an integer from 0 to 2147483647 (got 2147483648)",
        "3 ContextTokens: must be an integer from 1 to 2147483647 (got 0)",
        "3 GeneratedTokens: must be an integer from 0 to 2147483647 (got -1)",
        "4 : must have 3 values, one a column, but has 1 (got 2023-01-01 00:00:00)",
        "5 TIMESTAMP: must have an offset from UTC in all rows or in none (got 2023-01-01 00:00:00+00:00)",
        '6 : must be comma-separated values; a quoted one ends in its line (got a,"b)',
        r"8 : must be text, but byte 2 is NUL (got a\x00,b,c)",
    ]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    text = 'GeneratedTokens, more ,TIMESTAMP,ContextTokens\r\n2,x,2023-01-01 00:00:00,"70"\r\n\r\n'
    facts, batch = read(write(tmp_path, text))
    assert (batch.input_tokens.tolist(), batch.output_tokens.tolist()) == ([70], [2])
    assert facts.warnings[0] == "fields that mean nothing here were ignored: more"


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ("TIMESTAMP,ContextTokens", "1 GeneratedTokens: is required as a column (got TIMESTAMP,ContextTokens)"),
        (f"{AZURE},TIMESTAMP", f"1 TIMESTAMP: must not be given twice (got {AZURE},TIMESTAMP)"),
        (f"\ufeff{AZURE}", "1 : must not begin with a byte-order mark"),
    ],
)
def test_a_header_that_is_none(tmp_path: Path, header: str, fault: str) -> None:
    assert told(write(tmp_path, header, "2023-01-01 00:00:00,5,1"), "azure") == [fault]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE)
    path.write_bytes(path.read_bytes() + b"\n2023-01-01 00:00:00,\xff,1")
    assert told(path, "azure")[0].startswith("2 : must be UTF-8, but byte 21 is not")


# -- burstgpt ----------------------------------------------------------------------------------------


def test_burstgpt_leaves_failed_calls_out_and_says_so(tmp_path: Path) -> None:
    rows = ("5,ChatGPT,472,18,490,Conversation log", "45.5,GPT-4,30,0,30,API log", "45.625,GPT-4,30,6,36,API log")
    path = write(tmp_path, BURST, *rows)
    facts, batch = read(path)
    assert (batch.timestamp_ms.tolist(), batch.lines.tolist()) == ([5000.0, 45625.0], [2, 4])
    assert facts.warnings[0] == "calls of several models are replayed by one engine: ChatGPT, GPT-4"
    assert facts.warnings[2] == "1 row of failed calls left out (--failed-rows drop; keep replays their prompts)"
    assert facts.assumptions is not None
    assert (facts.assumptions.failed_rows, facts.assumptions.num_failed_rows) == ("drop", 1)
    assert facts.assumptions.texts()[2] == "1 failed calls left out"
    facts, batch = read(path, failed_rows="keep")
    assert (batch.input_tokens.tolist(), batch.output_tokens.tolist()) == ([472, 30, 30], [18, 0, 6])
    assert "1 row of failed calls kept: prompts without output (--failed-rows keep)" in facts.warnings
    assert told(path, "burstgpt", failed_rows="refuse") == [
        "3 Response tokens: must not be 0, a failed call, with --failed-rows refuse (got 0)"
    ]


def test_burstgpt_of_newer_releases(tmp_path: Path) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    facts, batch = read(write(tmp_path, header, "1e1,abc,3.25,ChatGPT,10,2,12,Conversation log"))
    assert (facts.format, batch.timestamp_ms.tolist()) == ("burstgpt", [10000.0])


def test_burstgpt_faults_are_all_named(tmp_path: Path) -> None:
    rows = ("nan,m,0,1,1,x", "1e400,m,5,1,7,x", "3,m,5,1,7,x", "4,m,5,1,,x", "5,m,0,0,0,x", "6,m,-1,x,0,x")
    assert told(write(tmp_path, BURST, *rows), "burstgpt") == [
        "2 Timestamp: must be a finite number of seconds (got nan)",
        "2 Request tokens: must be an integer from 1 to 2147483647 (got 0)",
        "3 Timestamp: must be a finite number of seconds (got 1e400)",
        "4 Total tokens: must be 6, the sum of request and response tokens (got 7)",
        "7 Request tokens: must be an integer from 0 to 2147483647 (got -1)",
        "7 Response tokens: must be an integer from 0 to 2147483647 (got x)",
    ]


# -- results of benchmarks ---------------------------------------------------------------------------


def test_a_result_arrives_as_it_was_sent(tmp_path: Path) -> None:
    facts, batch = read(write(tmp_path, json.dumps(BENCH, indent=1)))
    assert (facts.format, batch.timestamp_ms.tolist(), batch.lines.tolist()) == ("vllm_bench", [0.0, 250.0], [1, 2])
    assert facts.assumptions is not None
    assert facts.assumptions.origin == "10.25 s"
    path = write(tmp_path, BENCH | {"start_times": [10.000001, 10.1]})
    with open_trace(path, trace_format="sglang_bench") as source:
        (batch,) = source.batches()
    assert batch.timestamp_ms.tolist() == [0.0, 99.999], "differences are exact to the ns"


def test_a_result_without_start_times_says_what_settles_it(tmp_path: Path) -> None:
    text = json.dumps(BENCH | {"start_times": None, "request_rate": 1, "max_concurrency": 4})
    path = write(tmp_path, text.replace('"request_rate": 1', '"request_rate": Infinity'))
    assert told(path, "vllm_bench") == [
        "1 start_times: is required for an open loop; the benchmark ran with request_rate inf and max_concurrency 4; "
        "--missing-timestamps zero replays one burst (request_rate inf), --replay-concurrency N a closed loop"
    ]
    facts, batch = read(path, missing_timestamps="zero")
    assert batch.timestamp_ms.tolist() == [0.0, 0.0]
    assert facts.warnings[0] == (
        "the result has no start_times: all requests arrive at once (--missing-timestamps zero)"
    )
    facts, batch = read(path, closed_loop=True)
    assert np.isnan(batch.timestamp_ms).all()
    assert facts.min_first_timestamp_ms is None
    assert facts.assumptions is not None
    assert facts.assumptions.origin is None


def test_failed_requests_of_a_result(tmp_path: Path) -> None:
    failed = {"input_lens": [0, 5, 6], "output_lens": [0, 4, 0], "errors": ["x", "cut", ""], "start_times": [1, 2, 3]}
    path = write(tmp_path, BENCH | failed)
    with pytest.raises(TraceError, match="must hold at least one request"):
        read(path)
    path = write(tmp_path, BENCH | failed | {"errors": None})
    facts, batch = read(path)
    assert (batch.input_tokens.tolist(), batch.lines.tolist()) == ([5], [2])
    assert facts.assumptions is not None
    assert facts.assumptions.num_failed_rows == 2
    assert told(path, "vllm_bench", failed_rows="refuse")[0].startswith(
        "1 output_lens[0]: must not be that of a failed"
    )
    assert told(path, "vllm_bench", failed_rows="keep") == [
        "1 input_lens[0]: must be an integer from 1 to 2147483647 (got 0)"
    ]


@pytest.mark.parametrize(
    ("changed", "faults"),
    [
        (
            {"input_lens": None},
            ["1 input_lens: is required: the benchmark writes it with --save-result --save-detailed"],
        ),
        ({"output_lens": 3}, ["1 output_lens: must be a list (got 3)"]),
        (
            {"output_lens": [1], "errors": [""]},
            [
                "1 output_lens: must have 2 values, one for each of input_lens, but has 1",
                "1 errors: must have 2 values, one for each of input_lens, but has 1",
            ],
        ),
        (
            {"input_lens": [True, None], "errors": [3, ""], "start_times": ["x", 1e18]},
            [
                "1 input_lens[0]: must be an integer from 1 to 2147483647 (got true)",
                "1 errors[0]: must be a string (got 3)",
                '1 start_times[0]: must be a number of seconds (got "x")',
                "1 input_lens[1]: must be an integer from 1 to 2147483647 (got null)",
                "1 start_times[1]: must be a number of seconds (got 1e+18)",
            ],
        ),
        ({"start_times": [1, float("nan")]}, ['1 start_times[1]: must be a finite number (got "nan")']),
    ],
)  # fmt: skip
def test_faults_of_a_result(tmp_path: Path, changed: dict[str, Any], faults: list[str]) -> None:
    assert told(write(tmp_path, BENCH | changed), "vllm_bench", failed_rows="keep") == faults


def test_a_file_of_several_results_is_refused(tmp_path: Path) -> None:
    assert told(write(tmp_path, BENCH, BENCH), "sglang_bench") == [
        "1 : must be one result, but 2 begin at the lines 1, 2; sed -n 2p takes one"
    ]
    assert told(write(tmp_path, "[1]"), "vllm_bench") == ["1 : must be one JSON object (got [1])"]
    assert "must be one JSON object" in told(write(tmp_path, "{"), "vllm_bench")[0]


def test_a_result_is_not_read_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocker_replay.trace.bench_result.MAX_RESULT_BYTES", 1 << 20)
    (fault,) = told(write(tmp_path, BENCH, " " * (1 << 20)), "vllm_bench")
    assert fault == "0 : must not be larger than 1 MiB, since a result is read as a whole"


# -- what all have in common -------------------------------------------------------------------------


def test_prefixes_are_shared_as_estimated(tmp_path: Path) -> None:
    rows = [f"2023-01-01 00:00:0{at},{tokens},1" for at, tokens in enumerate((640, 320, 64, 1))]
    path = write(tmp_path, AZURE, *rows)
    facts, batch = read(path, estimate_prefix="0.5:2")
    groups = [splitmix64(row) % 2 for row in range(4)]
    shared = [5, 3, 1, 1]  # half of 10, 5, 1 and 1 blocks, a half rounded up
    expected, private = [], 10  # above block 4 of group 1
    for group, num_shared, num_blocks in zip(groups, shared, (10, 5, 1, 1), strict=True):
        expected.append([2 * at + group for at in range(num_shared)])
        expected[-1] += range(private, private + num_blocks - num_shared)
        private += num_blocks - num_shared
    assert ids_of(batch) == expected
    assert facts.assumptions is not None
    assert facts.assumptions.estimate_prefix == "0.5:2"
    assert facts.warnings[-1] == (
        "azure has no hash ids: it is assumed that the first 0.5 of each prompt's blocks are those of one of 2 groups "
        "(--estimate-prefix)"
    )
    _, whole = read(path, max_rows=100, estimate_prefix="0.5:2")
    assert whole.hash_ids.tolist() == batch.hash_ids.tolist(), "however the rows are batched"


def splitmix64(state: int) -> int:
    mixed = (state + 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


@pytest.mark.parametrize(
    ("lines", "options", "text"),
    [
        ((AZURE, "2023-01-01 00:00:00,5,1"), {"failed_rows": "drop"}, "failed_rows is of no use to .* azure"),
        ((AZURE, "2023-01-01 00:00:00,5,1"), {"timestamp_unit": "us"}, "timestamps of azure are dates and times"),
        ((QWEN,), {"estimate_prefix": "none"}, "estimate_prefix is of no use to .* qwen: it has hash ids"),
        ((QWEN,), {"timestamp_unit": "us"}, "timestamps of qwen are in s"),
        (({"input_length": 1, "output_length": 1, "hash_ids": [1]},), {"failed_rows": "keep"}, "format mooncake"),
        ((QWEN,), {"failed_rows": "perhaps"}, "must be one of drop, keep, refuse"),
        ((QWEN,), {"estimate_prefix": "0:4"}, "must be none or RATIO:GROUPS"),
        ((QWEN,), {"max_text_gib": 0}, "max_text_gib must be an integer from 1"),
    ],
)
def test_options_of_no_use_are_refused(tmp_path: Path, lines: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        open_trace(write(tmp_path, *lines), trace_format="auto", **options)


def test_a_unit_that_the_format_has_anyway_is_no_fault(tmp_path: Path) -> None:
    assert read(write(tmp_path, QWEN), timestamp_unit="s")[0].timestamp_unit == "s"


def test_a_prompt_without_ids_has_a_limit(tmp_path: Path) -> None:
    """Its ids take memory that no byte of the file answers for."""
    path = write(tmp_path, AZURE, "2023-01-01 00:00:00,131072,1", "2023-01-01 00:00:00,131073,1")
    assert told(path, "azure", trace_block_size=1) == [
        "3 : must not need more than 131072 blocks without a hash id, but needs 131073 (got 131073)"
    ]


def test_batches_of_long_prompts_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocker_replay.trace.flat.MAX_BATCH_IDS", 10)
    lengths = (4, 5, 3, 20, 1, 9)
    rows = [
        QWEN | {"chat_id": at, "input_length": 16 * length, "hash_ids": list(range(length))}
        for at, length in enumerate(lengths)
    ]
    with open_trace(write(tmp_path, *rows, ""), trace_format="qwen") as source:
        batches = list(source.batches())
    assert [np.diff(batch.hash_offsets).tolist() for batch in batches] == [[4, 5], [3], [20], [1, 9]]
    assert [batch.first_row for batch in batches] == [0, 2, 3, 4]


@pytest.mark.parametrize("trace_format", ["qwen", "azure", "burstgpt", "vllm_bench", "sglang_bench"])
def test_a_trace_without_rows(tmp_path: Path, trace_format: str) -> None:
    header = {"azure": AZURE, "burstgpt": BURST}.get(trace_format, "")
    (fault,) = told(write(tmp_path, header, "", " "), trace_format)
    assert fault == "0 : must hold at least one request"


def test_a_file_that_changes_after_the_scan_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, QWEN)
    for replacement in (QWEN | {"input_length": 19}, QWEN | {"input_length": "x"}):
        path = write(tmp_path, QWEN)
        with open_trace(path, trace_format="qwen") as source:
            source.scan()
            path.write_text(json.dumps(replacement))
            with pytest.raises(TraceError, match="must not change"):
                list(source.batches())
