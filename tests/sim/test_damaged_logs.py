"""Realtime logs with pieces replaced at random: a rerun always answers, with a difference or with what is wrong."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import orjson
import pytest

from mocker_replay.errors import UsageError
from mocker_replay.replay.rerun import rerun

GOLDEN = Path(__file__).parents[1] / "golden" / "realtime"
PIECES = (
    b"null", b"-1", b"1e999", b"[]", b"{}", b'"x"', b"0", b"7", b"99999999999999999999", b"true", b"", b",", b"}",
    b'"', b"\xff", b"\n",
)  # fmt: skip
VALUES = re.compile(rb'-?\d+(\.\d+)?|true|false|null|"[a-z_]+"|\[\]')


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One value or one byte is another; every tenth time in the header."""
    end = data.index(b"\n") if rng.random() < 0.1 else len(data)
    if rng.random() < 0.3:
        start = rng.randrange(end)
        stop = start + 1
    else:
        start, stop = rng.choice([match.span() for match in VALUES.finditer(data, 0, end)])
    return data[:start] + rng.choice(PIECES) + data[stop:]


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_log_always_gets_an_answer(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    logs = [path.read_bytes() for path in sorted(GOLDEN.iterdir())]
    path = tmp_path / "log.jsonl"
    answers: Counter[str] = Counter()
    for _ in range(60):
        path.write_bytes(damaged(rng.choice(logs), rng))
        try:
            result = rerun(path)
        except UsageError:
            answers["refused"] += 1
            continue
        orjson.dumps(result.to_mapping())
        answers["same" if result.same else "different"] += 1
    assert answers["refused"] > 0
    assert answers["different"] > 0
