"""Placement among prefill and decode workers: what counts where, from when on and until when."""

from __future__ import annotations

import math

import pytest

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.events import EventKind, HandoffStage
from mocker_replay.replay.pool_router import PoolRouter, PoolShape

BLOCK = 4


class Routed:
    """Two prefill and three decode workers, seen through their records."""

    def __init__(self, *, prefill: int = 2, decode: int = 3, dp_size: int = 1, **settings: object) -> None:
        self.events = EventBuffer()
        self.num_prefill = prefill
        self.router = PoolRouter(
            PoolShape(prefill, dp_size), PoolShape(decode, 1), BLOCK, BLOCK, 42, self.events,
            **settings,  # type: ignore[arg-type]
        )  # fmt: skip

    def prefill(self, request: int, num_tokens: int, ids: list[int], at_ms: float = 0.0) -> tuple[int, int]:
        return self.router.choose_prefill(at_ms, request, num_tokens, ids)

    def decode(self, request: int, num_tokens: int) -> int:
        worker, rank = self.router.choose_decode(0.0, request, num_tokens)
        assert rank == 0
        return worker

    def held(self, request: int, worker: int, at_ms: float = 0.0) -> None:
        self.events.append_record(EventKind.HANDOFF, at_ms, worker, 0, request, a=HandoffStage.SOURCE_HELD, f=request)

    def ended(self, request: int, worker: int) -> None:
        self.events.append_record(EventKind.TERMINAL, 0.0, worker, 0, request, d=-1)

    def stored(self, worker: int, ids: list[int], at_ms: float = 0.0) -> None:
        chain = self.router._cached.chain(len(ids) * BLOCK, ids)
        signed = [hash_ - 2**64 if hash_ >= 2**63 else hash_ for hash_ in chain]
        words = [0, *(word for hash_ in signed for word in (hash_, 0))]
        self.events.append_record(EventKind.KV_STORED, at_ms, worker, 0, 0, a=len(chain), words=words)


def test_a_prompt_goes_where_fewest_tokens_are_to_be_computed() -> None:
    """The first takes either worker; the others go where fewer tokens wait, until prompts are held."""
    pools = Routed()
    first, _ = pools.prefill(0, 16, [1, 2, 3, 4])
    other = 1 - first
    assert pools.prefill(1, 9, [5, 6, 7]) == (other, 0)  # nothing waits there, 16 tokens do here
    assert pools.prefill(2, 10, [8, 9, 10]) == (other, 0)  # 9 against 16
    assert pools.prefill(3, 2, [11]) == (first, 0)  # 19 against 16
    pools.held(1, other)
    pools.held(2, other)
    assert pools.prefill(4, 4, [12]) == (other, 0)  # 0 against 18


def test_cached_blocks_are_not_computed_and_do_not_wait() -> None:
    pools = Routed()
    pools.stored(1, [1, 2, 3])
    assert pools.prefill(0, 16, [1, 2, 3, 4]) == (1, 0)  # 4 tokens against 16
    assert pools.prefill(1, 3, [9]) == (0, 0)  # beside nothing: those 4 wait
    placed = pools.router.prefill_placements[0]
    assert (placed.overlap_blocks, placed.best_overlap_blocks, placed.overlap_tokens) == (3, 3, 12)


def test_caches_of_decode_workers_do_not_count() -> None:
    pools = Routed()
    pools.stored(pools.num_prefill, [1, 2, 3])
    pools.prefill(0, 16, [1, 2, 3, 4])
    assert pools.router.prefill_placements[0].best_overlap_blocks == 0


def test_cache_events_are_seen_late() -> None:
    pools = Routed(event_lag_ms=5.0)
    pools.stored(1, [1, 2, 3], at_ms=10.0)
    pools.prefill(0, 12, [1, 2, 3], at_ms=14.9)
    pools.prefill(1, 12, [1, 2, 3], at_ms=15.0)
    seen = [pools.router.prefill_placements[request].best_overlap_blocks for request in (0, 1)]
    assert seen == [0, 3]


@pytest.mark.parametrize("shown", [True, False])
def test_where_pages_are_shown_a_held_prompt_counts_as_cached(shown: bool) -> None:
    pools = Routed(shows_held=shown)
    worker, _ = pools.prefill(0, 10, [1, 2, 3])
    pools.held(0, worker, at_ms=7.0)
    pools.prefill(1, 10, [1, 2, 3], at_ms=7.0)
    assert pools.router.prefill_placements[1].best_overlap_blocks == (2 if shown else 0)


def test_a_request_goes_where_fewest_prompt_blocks_are_decoded() -> None:
    """Full blocks only, each request for itself: equal prompts count twice."""
    pools = Routed(decode=2)
    first = pools.decode(0, 19)  # 4 blocks
    other = 1 - first
    assert pools.decode(1, 11) == other  # 2
    assert pools.decode(2, 11) == other  # 4, the same blocks as before
    assert pools.decode(3, 3) in (first, other)  # equal, and none of its own
    pools.ended(1, pools.num_prefill + other)
    assert pools.decode(4, 40) == other  # 2 against 4
    assert pools.router.placements[4].best_overlap_blocks == 0


def test_who_leaves_or_is_rejected_counts_nowhere() -> None:
    """A prompt that is held after its client left changes nothing any more."""
    pools = Routed(decode=2)
    worker, _ = pools.prefill(0, 16, [1, 2, 3, 4])
    decode = pools.decode(0, 16)
    pools.ended(0, worker)
    pools.held(0, worker)
    other, _ = pools.prefill(1, 4, [9])
    assert pools.router._pending_tokens[other] == 4
    assert sum(pools.router._pending_tokens) == 4
    assert pools.router._held_blocks[decode] == 0


def test_records_count_once_whoever_reads_them_first() -> None:
    pools = Routed()
    worker, _ = pools.prefill(0, 16, [1, 2, 3, 4])
    pools.held(0, worker)
    pools.prefill(1, 4, [9])  # looks at the record
    pools.router.consume(pools.events)
    pools.events.clear()
    pools.held(1, pools.router.prefill_placements[1].worker)
    pools.router.consume(pools.events)
    assert pools.router._pending_tokens == [0, 0]


def test_ranks_are_numbered_worker_by_worker() -> None:
    pools = Routed(prefill=2, dp_size=2)
    places = {pools.prefill(request, 4, [request]) for request in range(4)}
    assert places == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize(("late", "first"), [(True, (0.0, 0)), (False, (0.5, 1))])
def test_a_sample_sees_placements_of_its_instant_or_not(late: bool, first: tuple[float, int]) -> None:
    pools = Routed(prefill=1, hits_late=late)
    pools.stored(0, [1])
    pools.prefill(0, 8, [1, 2], at_ms=5.0)
    pools.decode(0, 8)
    assert pools.router.hits.take(5.0) == first
    assert pools.router.hits.take(math.inf) == ((0.5, 1) if late else (0, 0))
