from typing_extensions import disjoint_base

from .offload import HostTier

@disjoint_base
class SharedTier(HostTier):
    def __new__(
        cls,
        num_blocks: int,
        block_bytes: float,
        d2h_gbps: float,
        h2d_gbps: float,
        latency_ms: float,
        block_size: int,
        trace_block_size: int,
        shared_d2h_gbps: float,
        shared_h2d_gbps: float,
        num_members: int,
    ) -> SharedTier: ...
    def set_link(self, member: int, d2h_gbps: float, h2d_gbps: float, latency_ms: float) -> None: ...
    @property
    def shared_d2h_gbps(self) -> float: ...
    @property
    def shared_h2d_gbps(self) -> float: ...
    @property
    def num_members(self) -> int: ...
    def figures(self) -> tuple[int, int, int]: ...
