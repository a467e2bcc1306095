"""Prefix chains: which engine blocks are the same block.

A full block is told apart by everything from the start of the prompt to its end. The chain is a pair
(identity before it, its tokens) and is interned, so that equal chains are equal small numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest


class Chains:
    """Hands out identities; the same chain always gets the same one."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._of_chain: dict[tuple[int | None, tuple[int, ...]], int] = {}
        self._chain_of: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self._number_of: dict[int, int] = {}
        self._next = 0

    def fresh(self) -> int:
        """An identity no prompt can ever match."""
        self._next += 1
        return self._next

    def of_prompt(self, tokens: Sequence[int]) -> list[int | None]:
        """One entry a block of the prompt: identities of the full ones, None for a partial tail."""
        identities: list[int | None] = []
        before: int | None = None
        for start in range(0, len(tokens), self.block_size):
            block = tuple(tokens[start : start + self.block_size])
            if len(block) < self.block_size:
                identities.append(None)
                break
            chain = (before, block)
            if chain not in self._of_chain:
                self._of_chain[chain] = self.fresh()
                self._chain_of[self._of_chain[chain]] = chain
            before = self._of_chain[chain]
            identities.append(before)
        return identities

    def number_of(self, identity: int) -> int:
        """The number that routers know the block by: XXH3-64 over its tokens, chained to the block before."""
        if identity in self._number_of:
            return self._number_of[identity]
        before, tokens = self._chain_of[identity]
        own = xxh3_64_intdigest(b"".join(token.to_bytes(4, "little") for token in tokens), 1337)
        if before is not None:
            own = xxh3_64_intdigest(self.number_of(before).to_bytes(8, "little") + own.to_bytes(8, "little"), 1337)
        self._number_of[identity] = own
        return own


def prompt_tokens(hash_ids: Sequence[int], trace_block_size: int, input_tokens: int) -> list[int]:
    """Token p of a prompt stands for the hash id of its trace block."""
    return [hash_ids[position // trace_block_size] for position in range(input_tokens)]
