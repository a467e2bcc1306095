"""Digests of a log in blocks: the same however the log is cut, and the place where two logs part."""

from __future__ import annotations

import random

import orjson
import pytest
from blake3 import blake3

from mocker_replay.golden.blocks import Block, BlockDigester, first_other_block
from tests.support.logs import generated_log, with_other_value


def blocks_of(lines: list[bytes], block_events: int, rng: random.Random | None = None) -> tuple[Block, ...]:
    digester = BlockDigester(block_events)
    at = 0
    while at < len(lines):
        count = len(lines) if rng is None else rng.randint(1, 40)
        digester.update(b"".join(line + b"\n" for line in lines[at : at + count]))
        at += count
    return digester.close()


@pytest.mark.parametrize("block_events", [1, 7, 64, 10_000])
def test_blocks_are_those_of_the_lines(block_events: int) -> None:
    lines = generated_log(1, num_events=500).lines
    blocks = blocks_of(lines, block_events)
    assert blocks == blocks_of(lines, block_events, random.Random(block_events))
    assert len(blocks) == -(-len(lines) // block_events)
    for index, block in enumerate(blocks):
        own = lines[index * block_events : (index + 1) * block_events]
        events = [orjson.loads(line) for line in own]
        assert (block.seq, block.t_ms) == (events[0]["seq"], events[0]["t_ms"])
        assert block.digest == blake3(b"".join(line + b"\n" for line in own)).hexdigest()
        passes = [event for event in events if event["event"].startswith("pass_")]
        place = (passes[0]["worker"], passes[0]["pass"]) if passes else (None, None)
        assert (block.worker, block.pass_id) == place
        assert Block.from_mapping(orjson.loads(orjson.dumps(block.to_mapping()))) == block
    assert BlockDigester().close() == ()


def test_the_first_other_block_holds_the_first_other_line() -> None:
    rng = random.Random(7)
    lines = generated_log(2, num_events=400).lines
    golden = blocks_of(lines, 32)
    assert first_other_block(golden, golden, len(lines)) is None
    for _ in range(100):
        at = rng.randrange(len(lines))
        other = [*lines[:at], with_other_value(lines[at], rng), *lines[at + 1 :]]
        found = first_other_block(golden, blocks_of(other, 32), len(lines))
        assert found is not None
        assert found.seq <= at <= found.last_seq
        assert found.index == at // 32
        events = [orjson.loads(line) for line in lines]
        assert found.t_ms == events[found.seq]["t_ms"]
        behind = found.last_seq + 1
        assert found.until_ms == (events[behind]["t_ms"] if behind < len(events) else None)


def test_one_log_may_be_longer() -> None:
    lines = generated_log(3, num_events=100).lines
    golden, longer = blocks_of(lines[:64], 32), blocks_of(lines[:70], 32)
    for first, second in ((golden, longer), (longer, golden)):
        found = first_other_block(first, second, 70)
        assert found is not None
        assert (found.index, found.seq, found.last_seq, found.until_ms) == (2, 64, 69, None)
    found = first_other_block((), golden, 64)
    assert found is not None
    assert found.index == 0
