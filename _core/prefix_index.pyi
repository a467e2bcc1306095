from collections.abc import Sequence
from typing import final

@final
class PrefixIndex:
    block_size: int
    trace_block_size: int
    stride: int
    shift: int
    parts: int
    knows_outputs: bool
    num_nodes: int
    def __new__(cls, block_size: int, trace_block_size: int) -> PrefixIndex: ...
    def path(self, hash_ids: Sequence[int], num_blocks: int) -> list[int]: ...
    def forget(self, node: int) -> None: ...
    def num_holds(self) -> int: ...
    def check(self) -> None: ...
