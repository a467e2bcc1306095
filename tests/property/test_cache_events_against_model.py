"""Cache events of a `kv` log against the slow model: which blocks appear and vanish, in which order, with which hashes.

The hashes are computed here from the tokens alone: content XXH3-64 over little-endian 32-bit words, chains over
(parent, content), seed 1337. Prompt tokens are hash ids renumbered in order of first appearance in the file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from mocker_replay.config import ReplayOptions
from mocker_replay.identity import deterministic_output_tokens
from mocker_replay.replay import replay
from tests.fuzz.generate import make_case
from tests.fuzz.trtllm import make_trtllm_case
from tests.model.engine_model import ModelRun, run_model
from tests.model.pool import Removed
from tests.parity.cases import Case
from tests.parity.runners import SLA, block_size_of

SEEDS = st.integers(0, 2**32 - 1)
HASH_SEED = 1337
TOKEN_SEED = 0
Event = tuple[Any, ...]


class Hashes:
    """Block hashes of every request of a trace, from its tokens."""

    def __init__(self, run: ModelRun, block_size: int, trace_block_size: int) -> None:
        self.block_size = block_size
        self.tokens: dict[int, list[int]] = {}
        self._known: dict[tuple[int, int], tuple[int, int]] = {}
        numbers: dict[int, int] = {}
        for figures in run.figures:
            turn = figures.turn
            dense = [numbers.setdefault(hash_id, len(numbers)) for hash_id in turn.hash_ids]  # surplus ids count
            prompt = [dense[p // trace_block_size] & 0xFFFFFFFF for p in range(turn.input_tokens)]
            generated = deterministic_output_tokens(TOKEN_SEED, f"r{turn.row}", turn.output_tokens)
            self.tokens[turn.row] = prompt + generated

    def of_block(self, row: int, index: int) -> tuple[int, int]:
        """(chain hash, content hash) of block `index` of a request."""
        if (row, index) not in self._known:
            block = self.tokens[row][index * self.block_size : (index + 1) * self.block_size]
            assert len(block) == self.block_size
            content = xxh3_64_intdigest(b"".join(t.to_bytes(4, "little") for t in block), HASH_SEED)
            chain = content
            if index > 0:
                parent = self.of_block(row, index - 1)[0]
                chain = xxh3_64_intdigest(parent.to_bytes(8, "little") + content.to_bytes(8, "little"), HASH_SEED)
            self._known[row, index] = (chain, content)
        return self._known[row, index]


def model_events(run: ModelRun, hashes: Hashes) -> list[Event]:
    hash_of_identity: dict[tuple[int, int, int], int] = {}
    events: list[Event] = []
    for at_ms, worker, rank, event in run.cache_events:
        if isinstance(event, Removed):
            gone = [hash_of_identity[worker, rank, identity] for identity in event.identities]
            events.append((at_ms, worker, rank, "kv_removed", gone))
            continue
        blocks = [hashes.of_block(event.request, event.first_block + i) for i in range(len(event.identities))]
        for identity, (chain, _) in zip(event.identities, blocks, strict=True):
            hash_of_identity[worker, rank, identity] = chain
        parent = hashes.of_block(event.request, event.first_block - 1)[0] if event.first_block else None
        chains, contents = [c for c, _ in blocks], [c for _, c in blocks]
        events.append((at_ms, worker, rank, "kv_stored", event.request, event.first_block, parent, chains, contents))
    return events


def log_events(path: Path) -> Iterator[Event]:
    for line in path.read_text().splitlines():
        e = json.loads(line)
        if e["event"] == "kv_removed":
            yield (e["t_ms"], e["worker"], e["rank"], "kv_removed", e["block_hashes"])
        elif e["event"] == "kv_stored":
            request = int(e["request"].removeprefix("r"))
            figures = (e["first_block"], e["parent_hash"], e["block_hashes"], e["local_hashes"])
            yield (e["t_ms"], e["worker"], e["rank"], "kv_stored", request, *figures)


def both(case: Case) -> tuple[list[Event], list[Event]]:
    args = {k: v for k, v in case.args.items() if k not in (*SLA, "telemetry_sample_interval_ms")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = case.config_with_files(folder)
        run = run_model(case.rows, config, **args)
        log = folder / "events.jsonl"
        replay(case.write_trace(folder), config, ReplayOptions(**args), events=log, event_level="kv")
        hashes = Hashes(run, block_size_of(config), args["trace_block_size"])
        return model_events(run, hashes), list(log_events(log))


@settings(max_examples=40)
@given(SEEDS)
def test_cache_events_of_the_tensorrt_llm_flavour_equal_the_model(seed: int) -> None:
    case = make_trtllm_case(seed)
    assume(case.format == "mooncake" and "prefill" not in case.config)
    expected, got = both(case)
    assert got == expected


@settings(max_examples=80)
@given(SEEDS)
def test_cache_events_equal_the_model(seed: int) -> None:
    case = make_case(seed)
    assume(case.format == "mooncake")
    expected, got = both(case)
    assert got == expected
