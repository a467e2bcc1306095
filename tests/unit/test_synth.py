"""Synthetic workloads: arrivals and groups as the peer drew them, and what the rows say."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mocker_replay._core.chacha import ChaCha12Rng
from mocker_replay.errors import UsageError
from mocker_replay.trace.synth import SyntheticWorkload


def workload(**fields: Any) -> SyntheticWorkload:
    arrival = {"arrival_interval_ms": 50.0} if not {"request_rate", "replay_concurrency"} & fields.keys() else {}
    return SyntheticWorkload(**({"input_tokens": 128, "output_tokens": 2, "request_count": 4} | arrival | fields))


def rows_of(**fields: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in workload(**fields).rows()]


# Arrivals as the peer reported them.
SEEN_ARRIVALS = [
    ({"request_rate": 100.0}, [0.0, 7.477246176406965, 15.301953951913882, 25.420753684496404]),
    ({"request_rate": 100.0, "arrival_seed": 7}, [0.0, 0.30786437168091013, 3.976362317455055, 5.515361258397029]),
    (
        {"request_rate": 100.0, "arrival_speedup_ratio": 4.0},
        [0.0, 1.8693115441017412, 3.8254884879784705, 6.355188421124101],
    ),
    ({"arrival_interval_ms": 5.0, "arrival_speedup_ratio": 2.0}, [0.0, 2.5, 5.0, 7.5]),
    ({"arrival_interval_ms": 30.0}, [0.0, 29.999999999999996, 59.99999999999999, 89.99999999999999]),
    (
        {"arrival_interval_ms": 30.0, "arrival_speedup_ratio": 0.3},
        [0.0, 99.99999999999999, 199.99999999999997, 299.99999999999994],
    ),
    ({"arrival_interval_ms": 0.0}, [0.0] * 4),
    ({"replay_concurrency": 2, "arrival_speedup_ratio": 4.0}, [0.0] * 4),
]


@pytest.mark.parametrize(("fields", "arrivals_ms"), SEEN_ARRIVALS)
def test_arrivals_to_the_bit(fields: dict[str, Any], arrivals_ms: list[float]) -> None:
    assert [row["timestamp"] for row in rows_of(**fields)] == arrivals_ms


def test_groups_are_drawn_from_a_stream_of_their_own() -> None:
    seen_reuse = [0, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 0]  # by the peer: half of 256 tokens, 7 groups
    options: dict[str, Any] = {
        "input_tokens": 256,
        "request_count": 14,
        "shared_prefix_ratio": 0.5,
        "num_prefix_groups": 7,
    }
    rows = rows_of(**options)
    prefixes = [tuple(row["hash_ids"][:2]) for row in rows]
    assert [int(prefix in prefixes[:at]) for at, prefix in enumerate(prefixes)] == seen_reuse
    assert rows_of(arrival_seed=43, **options) == rows
    rng = ChaCha12Rng(42)
    groups = [rng.below(7) for _ in range(14)]
    assert [prefixes.index(prefix) for prefix in prefixes] == [groups.index(group) for group in groups]


@pytest.mark.parametrize(
    ("input_tokens", "ratio", "shared_tokens"),
    [(320, 0.5, 192), (256, 0.5, 128), (100, 1.0, 100), (100, 0.5, 64), (128, 0.2, 0), (128, 0.25, 64), (128, 0.0, 0)],
)
def test_shared_blocks_are_rounded_half_up(input_tokens: int, ratio: float, shared_tokens: int) -> None:
    made = workload(input_tokens=input_tokens, shared_prefix_ratio=ratio, num_prefix_groups=1)
    assert made.shared_tokens == shared_tokens
    size = made.written_block_size
    rows = [json.loads(line)["hash_ids"] for line in made.rows()]
    assert all(len(ids) == math.ceil(input_tokens / size) for ids in rows)
    common = math.ceil(shared_tokens / size)
    assert all(ids[:common] == rows[0][:common] for ids in rows)
    own = [i for ids in rows for i in ids[common:]]
    assert len(set(own)) == len(own)
    assert set(own).isdisjoint(rows[0][:common])


def test_no_groups_share_nothing() -> None:
    ids = [i for row in rows_of(shared_prefix_ratio=1.0) for i in row["hash_ids"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("fields", "size", "flags"),
    [
        ({}, 512, []),
        ({"block_size": 16}, 512, []),  # nothing is shared: any block size says so
        ({"shared_prefix_ratio": 1.0, "num_prefix_groups": 3}, 512, []),
        ({"input_tokens": 1024, "shared_prefix_ratio": 0.5, "num_prefix_groups": 3}, 512, []),
        ({"shared_prefix_ratio": 0.5, "num_prefix_groups": 3}, 64, ["--trace-block-size", "64"]),
        (
            {"shared_prefix_ratio": 0.5, "num_prefix_groups": 3, "block_size": 16},
            16,
            ["--trace-block-size", "16", "--block-size", "16"],
        ),
        ({"trace_block_size": 32}, 32, ["--trace-block-size", "32"]),
        ({"replay_concurrency": 3}, 512, ["--replay-concurrency", "3"]),
    ],
)
def test_rows_are_written_in_the_default_block_size_where_it_can_say_them(
    fields: dict[str, Any], size: int, flags: list[str]
) -> None:
    made = workload(**fields)
    assert (made.written_block_size, made.run_flags()) == (size, flags)


def test_turns_stand_together_with_their_think_time() -> None:
    rows = rows_of(
        request_count=2, turns_per_session=3, request_rate=100.0, inter_turn_delay_ms=100.0, arrival_speedup_ratio=4.0
    )
    assert [row["session_id"] for row in rows] == ["session_0"] * 3 + ["session_1"] * 3
    assert [row.get("timestamp") for row in rows] == [0.0, None, None, 1.8693115441017412, None, None]
    assert [row.get("delay") for row in rows] == [None, 25.0, 25.0, None, 25.0, 25.0]
    assert len({i for row in rows for i in row["hash_ids"]}) == 6
    closed = rows_of(turns_per_session=2, replay_concurrency=1, inter_turn_delay_ms=100.0, arrival_speedup_ratio=4.0)
    assert [row.get("delay") for row in closed] == [None, 100.0] * 4


def test_a_group_prefix_stands_in_every_turn() -> None:
    rows = rows_of(turns_per_session=2, shared_prefix_ratio=0.5, num_prefix_groups=1)
    assert {row["hash_ids"][0] for row in rows} == {0}
    assert rows_of(turns_per_session=0) == rows_of()


def test_sessions_are_named_when_the_peer_reports_them() -> None:
    assert "session_id" not in rows_of()[0]
    for fields in (
        {"turns_per_session": 2},
        {"inter_turn_delay_ms": 1.0},
        {"replay_concurrency": 1},
        {"shared_prefix_ratio": 0.1, "num_prefix_groups": 1},
    ):
        assert rows_of(**fields)[0]["session_id"] == "session_0"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input_tokens": 0}, "input_tokens"),
        ({"output_tokens": 0}, "output_tokens"),
        ({"request_count": 0}, "request_count"),
        ({"input_tokens": 2**31}, "input_tokens"),
        ({"block_size": 0}, "block_size"),
        ({"trace_block_size": 0}, "trace_block_size"),
        ({"request_rate": 0.0}, "request_rate"),
        ({"request_rate": math.nan}, "request_rate"),
        ({"request_rate": 1e-306}, "request_rate"),
        ({"arrival_interval_ms": -1.0}, "arrival_interval_ms"),
        ({"arrival_interval_ms": math.inf}, "arrival_interval_ms"),
        ({"arrival_interval_ms": 1e308}, "arrival_interval_ms"),
        ({"arrival_interval_ms": 5.0, "request_rate": 10.0}, "arrival_interval_ms"),
        ({"arrival_interval_ms": None}, "request_rate"),
        ({"replay_concurrency": 0}, "replay_concurrency"),
        ({"arrival_speedup_ratio": 0.0}, "arrival_speedup_ratio"),
        ({"arrival_seed": -1}, "arrival_seed"),
        ({"turns_per_session": -1}, "turns_per_session"),
        ({"inter_turn_delay_ms": -1.0}, "inter_turn_delay_ms"),
        ({"shared_prefix_ratio": 1.5, "num_prefix_groups": 1}, "shared_prefix_ratio"),
        ({"shared_prefix_ratio": math.nan}, "shared_prefix_ratio"),
        ({"num_prefix_groups": 2**32}, "num_prefix_groups"),
        ({"shared_prefix_ratio": 0.5, "num_prefix_groups": 1, "trace_block_size": 48}, "trace_block_size"),
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        workload(**fields)
    assert [fault.file for fault in caught.value.faults] == [field]


def test_all_faults_are_named_together() -> None:
    with pytest.raises(UsageError) as caught:
        workload(input_tokens=0, output_tokens=0, turns_per_session=-1)
    assert len(caught.value.faults) == 3
