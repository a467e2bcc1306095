"""Block pool and prefix index against a slow model: lists of copies, a deque for the LRU, tokens one by one."""

from __future__ import annotations

from collections import deque

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mocker_replay._core.block_pool import BlockPool
from mocker_replay._core.prefix_index import PrefixIndex
from mocker_replay.events import EventKind
from tests.support.machines import Shell, make_machine, submit

# (block_size, trace_block_size): equal, coarser, finer, unaligned both ways, more than 64 blocks a trace block.
GEOMETRIES = [(4, 4), (4, 8), (4, 2), (4, 6), (6, 4), (5, 3), (2, 200), (3, 1_000), (16, 7)]
geometries = st.sampled_from(GEOMETRIES) | st.tuples(st.integers(1, 9), st.integers(1, 700))


def tokens_of(hash_ids: list[int], trace_block_size: int, n: int) -> list[int]:
    return [hash_ids[p // trace_block_size] for p in range(n)]


def identities(index: PrefixIndex, nodes: list[int], num_blocks: int) -> list[int]:
    """Identity of each block from the nodes of its path: the trace block of its last token, then the part of it."""
    found = []
    for block in range(num_blocks):
        trace_block = ((block + 1) * index.block_size - 1) // index.trace_block_size
        nth = block - trace_block * index.trace_block_size // index.block_size
        part, at = divmod(nth, index.stride)
        found.append(nodes[trace_block * index.parts + part] * index.stride + at)
    return found


@st.composite
def prompt_pairs(draw):
    """Two prompts with a random number of equal leading hash ids."""
    block_size, trace_block_size = draw(geometries)
    keys = st.integers(0, 2) | st.sampled_from([2**32, 2**64 - 1])
    longest = max(1, min(12, 1_500 // trace_block_size))
    common = draw(st.lists(keys, max_size=longest))
    pair = [common + draw(st.lists(keys, min_size=not common, max_size=4)) for _ in range(2)]
    lengths = [draw(st.integers(1, len(ids) * trace_block_size)) for ids in pair]
    return block_size, trace_block_size, pair, lengths


@given(prompt_pairs())
@example((4, 6, [[1, 2], [1, 3]], [12, 11]))
@example((4, 4, [[1], [1 + 2**32]], [4, 4]))
@example((2, 300, [[1, 2], [1, 3]], [600, 599]))
@settings(max_examples=150)
def test_an_identity_is_equal_exactly_when_the_leading_tokens_are(case) -> None:
    block_size, trace_block_size, pair, lengths = case
    index = PrefixIndex(block_size, trace_block_size)
    assert index.stride <= 64
    assert index.stride * index.parts * block_size >= trace_block_size
    tokens = [tokens_of(ids, trace_block_size, n) for ids, n in zip(pair, lengths, strict=True)]
    paths = [index.path(ids, n // block_size) for ids, n in zip(pair, lengths, strict=True)]
    found = [identities(index, path, n // block_size) for path, n in zip(paths, lengths, strict=True)]
    for mine in found:
        assert len(set(mine)) == len(mine)
    for i, a in enumerate(found[0]):
        for j, b in enumerate(found[1]):
            end = (i + 1) * block_size
            assert (a == b) == (i == j and tokens[0][:end] == tokens[1][:end])
    index.check()
    assert index.num_holds() == sum(bool(path) for path in paths)
    for path in paths:
        if path:
            index.forget(path[-1])
    index.check()
    assert index.num_nodes == 0


@given(prompt_pairs())
@example((2, 300, [[1, 2], [1, 3]], [600, 599]))
@example((4, 6, [[1, 2], [1, 3]], [12, 11]))
@settings(max_examples=80)
def test_a_later_prompt_reuses_the_blocks_it_shares(case) -> None:
    """The same through a whole engine: interning, caching and look-up agree with tokens compared one by one."""
    block_size, trace_block_size, pair, lengths = case
    machine = make_machine(
        num_gpu_blocks=2_000, block_size=block_size, trace_block_size=trace_block_size, max_num_batched_tokens=None
    )
    shell = Shell(machine)
    for request in range(2):
        shell.put(submit(request, request, lengths[request], 1, hash_ids=pair[request]))
        shell.run(1_000.0 * (request + 1))
    a, b = (tokens_of(ids, trace_block_size, n) for ids, n in zip(pair, lengths, strict=True))
    shared = 0
    while (shared + 1) * block_size <= min(lengths) and a[: (shared + 1) * block_size] == b[
        : (shared + 1) * block_size
    ]:
        shared += 1
    # At least one token is computed: a context that is wholly cached gives up its last block.
    expected = min(shared * block_size, (lengths[1] - 1) // block_size * block_size)
    assert [event.a for event in shell.events(EventKind.ADMISSION)] == [0, expected]
    machine.engine.schedulers[0].check()


class BlockPoolAgainstModel(RuleBasedStateMachine):
    """Any order of prompts coming and going, blocks acquired, cached and released."""

    @initialize(geometry=st.sampled_from(GEOMETRIES[:7]), num_blocks=st.integers(1, 14))
    def start(self, geometry, num_blocks):
        self.index = PrefixIndex(*geometry)
        self.pool = BlockPool(self.index, num_blocks)
        self.free = num_blocks
        self.num_private = 0
        self.copies: dict[int, list[int]] = {}  # identity -> copies, oldest first
        self.identity_of: dict[int, int] = {}
        self.references: dict[int, int] = {}
        self.lru: deque[int] = deque()  # next victim first
        self.held: list[int] = []  # one entry a reference
        self.prompts: list[tuple[int, list[int]]] = []  # (last node, identities)

    def evict(self) -> None:
        victim = self.lru.popleft()
        identity = self.identity_of.pop(victim)
        del self.references[victim]
        self.copies[identity].remove(victim)
        if not self.copies[identity]:
            del self.copies[identity]

    @rule(keys=st.lists(st.integers(0, 2), min_size=1, max_size=4), cut=st.integers(0, 3))
    def prompt(self, keys, cut):
        num_blocks = min(8, max(0, len(keys) * self.index.trace_block_size - cut) // self.index.block_size)
        nodes = self.index.path(keys, num_blocks)
        if nodes:
            self.prompts.append((nodes[-1], identities(self.index, nodes, num_blocks)))

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def prompt_goes(self, data):
        node, _ = self.prompts.pop(data.draw(st.integers(0, len(self.prompts) - 1)))
        self.index.forget(node)

    @rule(data=st.data(), num_fresh=st.integers(0, 6))
    def acquire(self, data, num_fresh):
        """As a request does: the leading blocks of a prompt that are cached, then fresh ones. All or nothing."""
        wanted = data.draw(st.sampled_from(self.prompts))[1] if self.prompts else []
        hits = []
        for identity in wanted:
            if identity not in self.copies:
                break
            hits.append(self.copies[identity][0])
        missing = max(0, num_fresh - self.free)
        fits = missing <= len(self.lru) - sum(hit in self.lru for hit in hits)
        assert self.pool.py_acquire(hits, num_fresh) is fits
        if not fits:
            return
        for hit in hits:
            if hit in self.lru:
                self.lru.remove(hit)
            self.references[hit] += 1
            self.held.append(hit)
        self.free -= num_fresh - missing
        for _ in range(missing):
            self.evict()
        self.num_private += num_fresh

    @precondition(lambda self: self.num_private and self.prompts)
    @rule(data=st.data())
    def cache(self, data):
        identity = data.draw(st.sampled_from(data.draw(st.sampled_from(self.prompts))[1] or [-1]))
        if identity < 0:
            return
        copy, visible = self.pool.py_cache(identity)
        assert copy not in self.references
        assert visible is (identity not in self.copies)
        self.copies.setdefault(identity, []).append(copy)
        self.identity_of[copy] = identity
        self.references[copy] = 1
        self.held.append(copy)
        self.num_private -= 1

    @precondition(lambda self: self.held or self.num_private)
    @rule(data=st.data(), num_private=st.integers(0, 3))
    def release(self, data, num_private):
        n = data.draw(st.integers(0, min(4, len(self.held))))
        released = [self.held.pop(data.draw(st.integers(0, len(self.held) - 1))) for _ in range(n)]
        num_private = min(num_private, self.num_private)
        self.pool.py_release(released, num_private)
        self.num_private -= num_private
        self.free += num_private
        for copy in released:
            self.references[copy] -= 1
            if self.references[copy] == 0:
                self.lru.append(copy)

    @invariant()
    def agrees(self):
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert (pool.num_free, pool.num_inactive, pool.num_cached) == (
            self.free, len(self.lru), len(self.references),
        )  # fmt: skip
        assert pool.num_active() == len(self.references) - len(self.lru) + self.num_private
        assert pool.lru_order() == [self.identity_of[copy] for copy in self.lru]
        assert {copy: pool.ref_count(copy) for copy in self.references} == self.references
        for _, known in self.prompts:
            for identity in known:
                assert pool.primary(identity) == self.copies.get(identity, [-1])[0]
        pool.check()
        self.index.check()
        assert self.index.num_holds() == len(self.prompts)

    def teardown(self):
        if not hasattr(self, "pool"):
            return
        self.pool.py_release(self.held, self.num_private)
        for node, _ in self.prompts:
            self.index.forget(node)
        self.pool.check()
        assert self.pool.num_active() == 0
        assert self.pool.py_acquire([], self.pool.num_blocks)  # whatever is cached goes
        assert (self.pool.num_cached, self.index.num_nodes) == (0, 0)
        self.index.check()


TestBlockPoolAgainstModel = BlockPoolAgainstModel.TestCase
TestBlockPoolAgainstModel.settings = settings(max_examples=60, stateful_step_count=40)


def test_ten_thousand_prompts_come_and_go_and_leave_nothing_behind() -> None:
    """The table grows, gaps close, nodes are used again."""
    index = PrefixIndex(4, 8)
    live: deque[int] = deque()
    for i in range(10_000):
        live.append(index.path([i % 7, i % 91, i, i * i], 8)[-1])
        if len(live) > 1_500:
            index.forget(live.popleft())
    index.check()
    assert index.num_holds() == len(live)
    while live:
        index.forget(live.pop())
    index.check()
    assert index.num_nodes == 0
