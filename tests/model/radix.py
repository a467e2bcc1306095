"""Pages and radix tree of the SGLang flavour, page by page: what an edge holds is a list of what its pages hold.

Decides: what a sequence finds, where edges split, which page is evicted next. Every question is answered by looking at
all nodes. Source: SGLang engine specification, section 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

Key = Hashable  # what one page holds


@dataclass(eq=False)
class Node:
    """An edge, and what stands below it."""

    parent: Node | None
    keys: list[Key]
    stamp: int
    locks: int = 0
    children: dict[Key, Node] = field(default_factory=dict)

    def path(self) -> list[Node]:
        """From this node up to just below the root."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes


def common(a: Sequence[Key], b: Sequence[Key]) -> int:
    """Length of the common beginning."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class RadixTree:
    """`num_pages` pages; those that no node and no request holds are free."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_free = num_pages
        self.clock = 0
        self.root = Node(None, [], 0)

    def nodes(self) -> list[Node]:
        """All but the root, parents first."""
        found, left = [], list(self.root.children.values())
        while left:
            node = left.pop(0)
            found.append(node)
            left += node.children.values()
        return found

    @property
    def num_cached(self) -> int:
        return sum(len(node.keys) for node in self.nodes())

    @property
    def num_evictable(self) -> int:
        return sum(len(node.keys) for node in self.nodes() if node.locks == 0)

    def peek(self, keys: Sequence[Key]) -> int:
        node, at = self.root, 0
        while at < len(keys) and keys[at] in node.children:
            node = node.children[keys[at]]
            n = common(node.keys, keys[at:])
            at += n
            if n < len(node.keys):
                break
        return at

    def match_and_lock(self, keys: Sequence[Key]) -> Node:
        self.clock += 1
        node, at = self.root, 0
        while at < len(keys) and keys[at] in node.children:
            child = node.children[keys[at]]
            n = common(child.keys, keys[at:])
            at += n
            if n < len(child.keys):
                node = self._split(child, n)
                break
            child.stamp = self.clock
            node = child
        self.lock(node)
        return node

    def lock(self, node: Node) -> None:
        for one in node.path():
            one.locks += 1

    def unlock(self, node: Node) -> None:
        for one in node.path():
            one.locks -= 1
            assert one.locks >= 0

    def insert(self, start: Node, keys: Sequence[Key]) -> tuple[Node, int]:
        """Cache `keys` behind `start`; (node at their end, how many were there already)."""
        if not keys:
            return start, 0
        self.clock += 1
        for one in start.path():
            one.stamp = self.clock
        node, left = start, list(keys)
        while left:
            alone = node.locks == 0 or (node is start and node.locks == 1)
            if node is not self.root and not node.children and alone:
                node.keys += left
                node.stamp = self.clock
                return node, len(keys) - len(left)
            child = node.children.get(left[0])
            if child is None:
                child = node.children[left[0]] = Node(node, left, self.clock)
                return child, len(keys) - len(left)
            n = common(child.keys, left)
            left = left[n:]
            if n < len(child.keys):
                node = self._split(child, n)
                if not left:
                    return node, len(keys)
                node.children[left[0]] = Node(node, left, self.clock)
                return node.children[left[0]], len(keys) - len(left)
            child.stamp = self.clock
            node = child
        return node, len(keys)

    def _split(self, node: Node, n: int) -> Node:
        assert node.parent is not None
        upper = Node(node.parent, node.keys[:n], node.stamp, node.locks)
        node.parent.children[node.keys[0]] = upper
        node.parent, node.keys = upper, node.keys[n:]
        upper.children[node.keys[0]] = node
        return upper

    def evict(self, n: int) -> list[Node]:
        """Free `n` pages, or as many as there are; the nodes that lost some."""
        touched = []
        while n > 0:
            leaves = [node for node in self.nodes() if node.locks == 0 and not node.children]
            if not leaves:
                break
            node = min(leaves, key=lambda node: node.stamp)
            touched.append(node)
            gone = min(n, len(node.keys))
            n -= gone
            self.num_free += gone
            if gone == len(node.keys):
                assert node.parent is not None
                del node.parent.children[node.keys[0]]
            else:
                node.keys = node.keys[:-gone]
        return touched

    def check(self) -> None:
        for node in self.nodes():
            assert node.keys
            assert all(child.keys[0] == key for key, child in node.children.items())
            assert all(child.locks <= node.locks for child in node.children.values())
        assert 0 <= self.num_free <= self.num_pages - self.num_cached
