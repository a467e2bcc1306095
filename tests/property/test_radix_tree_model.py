"""Page pool and radix tree against a slow model with a list of what each page holds, after every step."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mocker_replay._core.radix_tree import RadixTree
from tests.model.radix import Key, Node
from tests.model.radix import RadixTree as ModelTree

# (page size, trace block size): equal, one token a page, coarser, finer, unaligned both ways.
GEOMETRIES = [(4, 4), (1, 8), (4, 8), (4, 2), (4, 6), (6, 4), (5, 3), (1, 1)]
NUM_PAGES = 40


@dataclass
class Holder:
    """A request: its prompt, how far it goes on with tokens of its own, and what it has locked."""

    number: int
    ids: tuple[int, ...]
    num_named: int
    keys: list[Key]
    node: int = 0
    model_node: Node | None = None
    published: int = 0


class RadixTreeAgainstModel(RuleBasedStateMachine):
    """Any interleaving of what requests do with the tree: both find, lock, keep and evict the same."""

    @initialize(geometry=st.sampled_from(GEOMETRIES))
    def start(self, geometry: tuple[int, int]) -> None:
        self.page_size, self.trace_block_size = geometry
        self.tree = RadixTree(*geometry, NUM_PAGES)
        self.model = ModelTree(NUM_PAGES)
        self.holders: list[Holder] = []
        self.left: list[Holder] = []
        self.num_requests = 0

    def _holder(self, data: st.DataObject) -> Holder | None:
        return data.draw(st.sampled_from(self.holders)) if self.holders else None

    def _new(self, ids: tuple[int, ...], n_in: int, own_pages: int) -> Holder:
        named = n_in // self.page_size
        tokens = [ids[at // self.trace_block_size] for at in range(named * self.page_size)]
        pages = [tuple(tokens[at * self.page_size : (at + 1) * self.page_size]) for at in range(named)]
        number = self.num_requests
        self.num_requests += 1
        keys: list[Key] = [*pages, *(("own", number, at) for at in range(own_pages))]
        return Holder(number, ids, named, keys)

    @rule(data=st.data(), ids=st.lists(st.integers(0, 1), min_size=1, max_size=6), own=st.integers(0, 4))
    def begin(self, data: st.DataObject, ids: list[int], own: int) -> None:
        n_in = data.draw(st.integers(1, len(ids) * self.trace_block_size))
        self._admit(self._new(tuple(ids), n_in, own), data)

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """One that had to leave looks for what it had, generated pages included."""
        if self.left:
            holder = data.draw(st.sampled_from(self.left))
            self.left.remove(holder)
            self._admit(holder, data)

    def _admit(self, holder: Holder, data: st.DataObject) -> None:
        found = self.model.peek(holder.keys)
        assert self.tree.find(holder.ids, holder.num_named, holder.number, len(holder.keys)) == found
        wanted = data.draw(st.integers(0, found))
        holder.node, end = self.tree.hold(holder.ids, holder.num_named, holder.number, wanted)
        holder.model_node = self.model.match_and_lock(holder.keys[:wanted])
        holder.published = wanted
        assert end == wanted
        self.holders.append(holder)

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        holder = self._holder(data)
        if holder is None or holder.published == len(holder.keys):
            return
        end = data.draw(st.integers(holder.published + 1, len(holder.keys)))
        if not self._take(end - holder.published):
            return
        known = self._insert(holder, end)
        self.tree.give_back(known)
        self.model.num_free += known

    def _take(self, num_pages: int) -> bool:
        got = self.tree.borrow(num_pages)
        assert got == (num_pages <= self.model.num_free)
        if got:
            self.model.num_free -= num_pages
        return got

    def _insert(self, holder: Holder, end: int) -> int:
        assert holder.model_node is not None
        node, known = self.tree.store(holder.node, holder.ids, holder.num_named, holder.number, end)
        model_node, model_known = self.model.insert(holder.model_node, holder.keys[holder.published : end])
        assert known == model_known
        assert (node == holder.node) == (model_node is holder.model_node)
        if node != holder.node:
            self.tree.hold_node(node)
            self.model.lock(model_node)
            self.tree.let_go(holder.node)
            self.model.unlock(holder.model_node)
        holder.node, holder.model_node, holder.published = node, model_node, end
        return known

    @rule(data=st.data(), comes_back=st.booleans())
    def leave(self, data: st.DataObject, comes_back: bool) -> None:
        holder = self._holder(data)
        if holder is None:
            return
        assert holder.model_node is not None
        self.tree.let_go(holder.node)
        self.model.unlock(holder.model_node)
        self.holders.remove(holder)
        if comes_back:
            self.left.append(holder)

    @rule(num_pages=st.integers(0, 12))
    def evict(self, num_pages: int) -> None:
        self.tree.shrink(num_pages)
        self.model.evict(num_pages)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check()
        self.model.check()
        theirs = (self.model.num_free, self.model.num_cached, self.model.num_evictable)
        assert (self.tree.num_free, self.tree.num_cached, self.tree.num_evictable) == theirs
        assert sorted(self._edges()) == sorted(self._model_edges())

    def _edges(self) -> list[tuple[int, ...]]:
        return [(pages, locks, stamp) for *_, pages, _, _, locks, stamp in self.tree.edges()]

    def _model_edges(self) -> list[tuple[int, ...]]:
        return [(len(node.keys), node.locks, node.stamp) for node in self.model.nodes()]


TestRadixTreeAgainstModel = RadixTreeAgainstModel.TestCase
TestRadixTreeAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
