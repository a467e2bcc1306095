"""The corpus, read once; and the oracle itself, which must be able to fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from mocker_replay.trace import FORMATS, open_trace
from tests.fuzz_readers import make_corpus, oracle

SEEDS = sorted(make_corpus.CORPUS.iterdir())
WHOLE = {name.partition("-")[0] for name in make_corpus.SEEDS}  # seeds that are traces without fault


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.name)
def test_a_seed_is_refused_or_read(path: Path, tmp_path: Path) -> None:
    told = oracle.check(path.read_bytes(), tmp_path)
    if path.name == "weka-two":  # several files are a folder for this format
        assert told == "refused"
    elif path.name.partition("-")[0] in WHOLE:
        assert told == "read"


def test_every_format_has_a_seed() -> None:
    assert {path.name.partition("-")[0] for path in SEEDS} >= {name.replace("-", "_") for name in FORMATS}


def test_facts_that_the_batches_do_not_bear_out_are_found() -> None:
    with open_trace(Path(__file__).parents[2] / "traces" / "tiny.jsonl") as source:
        facts = source.scan()
        oracle._require_agreement(facts, source.batches(5), 5, closed_loop=False)
        for wrong in ({"num_rows": 13}, {"total_input_tokens": 1}, {"min_first_timestamp_ms": 2.0}, {"digest": ""}):
            with pytest.raises(oracle.Broken):
                oracle._require_agreement(replace(facts, **wrong), source.batches(5), 5, closed_loop=False)
        with pytest.raises(oracle.Broken, match="rows are dense"):
            oracle._require_agreement(facts, source.batches(5), 4, closed_loop=False)
