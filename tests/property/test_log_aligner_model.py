"""The core's comparison of log lines against the slow model, on logs of runs and on broken ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay._core.log_aligner import ENDED, Aligner
from mocker_replay._core.log_figures import LogFigures
from mocker_replay._core.log_lines import KINDS, LineRules, at_level, line_at_level, skip_lines
from mocker_replay.events import EVENT_LEVELS, EventLevel, LogEvent
from tests.model.log_lines import Line, ModelResult, align
from tests.support.logs import random_run, read_log, record, with_other_value

LEVELS = list(EventLevel)
IGNORED: list[tuple[str, ...]] = [
    (), ("t_ms",), ("gauges",), ("ranks.fpm",), ("ranks.fpm.wall_time", "worker"), ("ranks", "block_hashes"),
    ("before.running", "tokens"),
]  # fmt: skip


class Logs(list[list[bytes]]):
    """Logs that Hypothesis does not print."""

    def __repr__(self) -> str:
        return f"{len(self)} logs"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    folder = tmp_path_factory.mktemp("runs")
    return Logs(read_log(record(random_run(seed), folder, f"{seed}.jsonl")).lines for seed in range(40))


def run_aligner(
    a: Sequence[bytes], b: Sequence[bytes], window: int, ignored: Sequence[str], rng: random.Random
) -> ModelResult:
    """The core, given blocks of random lengths."""
    aligner = Aligner(LineRules(ignored), LogFigures(), LogFigures(), window)
    left = [list(a), list(b)]
    while (which := aligner.run()) != ENDED:
        taken = rng.randint(1, 40)
        block, left[which] = left[which][:taken], left[which][taken:]
        aligner.give(which, b"".join(line + b"\n" for line in block) if block else None)
    counts = {kind: found for kind, found in aligner.counts().items() if any(found.values())}
    return ModelResult(counts, aligner.first_classes(), aligner.given_up())


def disturbed(lines: Sequence[bytes], rng: random.Random) -> list[bytes]:
    """A log in which a few lines are missing, doubled, changed, later, or elsewhere."""
    new = list(lines)
    for _ in range(rng.randint(1, 12)):
        at = rng.randrange(len(new))
        change = rng.randrange(5)
        if change == 0 and len(new) > 1:
            del new[at]
        elif change == 1:
            new.insert(rng.randrange(len(new)), new[at])
        elif change == 2:
            new[at] = with_other_value(new[at], rng)
        elif change == 3:
            event = orjson.loads(new[at])
            event["t_ms"] += 0.5
            new[at] = orjson.dumps(event)
        else:
            new.insert(rng.randrange(len(new)), new.pop(at))
    return new


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), window=st.sampled_from([1, 2, 3, 7, 40, 100_000]))
def test_the_aligner_does_what_the_model_does(logs: Logs, seed: int, window: int) -> None:
    rng = random.Random(seed)
    a = logs[rng.randrange(len(logs))]
    b = logs[rng.randrange(len(logs))] if rng.random() < 0.2 else disturbed(a, rng)
    ignored = rng.choice(IGNORED)
    wanted = align([Line(line, ignored) for line in a], [Line(line, ignored) for line in b], window)
    assert run_aligner(a, b, window, ignored, rng) == wanted


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_two_lines_are_the_same_as_in_the_model(logs: Logs, seed: int) -> None:
    rng = random.Random(seed)
    log = logs[rng.randrange(len(logs))]
    ignored = rng.choice(IGNORED)
    rules = LineRules(ignored)
    for _ in range(20):
        line = rng.choice(log)
        other = with_other_value(line, rng) if rng.random() < 0.7 else rng.choice(log)
        (kind, *ours), (_, *theirs) = rules.tell(line), rules.tell(other)
        model, model_other = Line(line, ignored), Line(other, ignored)
        assert kind == model.kind
        wanted = [getattr(model, name) == getattr(model_other, name) for name in ("key", "content", "timeless")]
        assert [mine == yours for mine, yours in zip(ours, theirs, strict=True)] == wanted


@given(st.one_of(st.binary(max_size=200), st.text('{}[]":,\\ab1 ', max_size=80).map(str.encode)))
def test_no_text_confuses_the_scanner(text: bytes) -> None:
    """Whatever stands in a line: it is an event, equal to itself, and figures can be fed with it."""
    line = text.replace(b"\n", b" ")
    rules = LineRules(("a", "b.a"))
    told = rules.tell(line)
    assert told == rules.tell(bytes(bytearray(line)))
    assert told[0] in KINDS
    LogFigures().feed(line + b"\n")
    at_level(line + b"\n", "requests")
    block = line + b"\n" + line + b"!\n"
    at_a, at_b, same, differs = rules.first_difference(block, 0, line + b"\n" + line + b"?\n", 0)
    assert (at_a, at_b) == (len(line) + 1, len(line) + 1) or (same, differs) == (2, False)


def test_lines_that_cannot_be_read_equal_only_themselves() -> None:
    rules = LineRules()
    broken = [
        b'{"seq":1,"a":{}',
        b'{"seq":1,"a":{}}}',
        b'{"seq":1,"a"}',
        b"",
        b"[1]",
        b'{"a":"x',
        b'{"a":' * 20 + b"1" + b"}" * 20,
    ]
    told = [rules.tell(line) for line in broken]
    assert {kind for kind, *_ in told} == {"other"}
    assert len({content for _, _, content, _ in told}) == len(broken)


def test_a_level_is_lines_left_out(logs: Logs) -> None:
    for log in logs:
        block = b"".join(line + b"\n" for line in log)
        for level in LEVELS:
            kept = [
                (place, line)
                for place, line in enumerate(log)
                if LEVELS.index(EVENT_LEVELS[LogEvent(orjson.loads(line)["event"])]) <= LEVELS.index(level)
            ]
            bare = b"".join(b"{" + line[line.index(b",") + 1 :] + b"\n" for _, line in kept)
            assert at_level(block, level) == bare
            for index in range(0, len(kept), 17):
                assert line_at_level(block, level, index) == (kept[index][1], kept[index][0])
            with pytest.raises(IndexError):
                line_at_level(block, level, len(kept))


def test_lines_are_skipped_and_counted() -> None:
    block = b"a\nbb\n\nc"
    assert [skip_lines(block, 0, count) for count in range(5)] == [(0, 0), (2, 1), (5, 2), (6, 3), (6, 3)]
    assert skip_lines(block, 2, 1) == (5, 1)
    with pytest.raises(IndexError):
        skip_lines(block, 8, 1)


def test_blocks_are_asked_for_and_must_be_whole(tmp_path: Path) -> None:
    aligner = Aligner(LineRules(), LogFigures(), LogFigures(), 8)
    assert aligner.run() == 0
    with pytest.raises(ValueError, match="whole lines"):
        aligner.give(0, b"half")
    with pytest.raises(ValueError, match="two logs"):
        aligner.give(2, b"")
    aligner.give(0, None)
    with pytest.raises(ValueError, match="ended"):
        aligner.give(0, b"more\n")
    aligner.give(1, None)
    assert aligner.run() == ENDED
    assert aligner.first_classes() == (None, None)
    with pytest.raises(ValueError, match="window"):
        Aligner(LineRules(), LogFigures(), LogFigures(), 0)
