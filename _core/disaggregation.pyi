from typing import Protocol, final, type_check_only

from .coordinator import MODE_NAMES as MODE_NAMES
from .coordinator import ORDER_NAMES as ORDER_NAMES
from .event_buffer import EventBuffer

@type_check_only
class Chooser(Protocol):
    def choose_prefill(
        self, now_ms: float, request: int, input_tokens: int, hash_ids: list[int]
    ) -> tuple[int, int]: ...
    def choose_decode(self, now_ms: float, request: int, input_tokens: int) -> tuple[int, int]: ...

@final
class Disaggregation:
    num_prefill_workers: int
    num_decode_workers: int
    prefill_dp_size: int
    decode_dp_size: int
    out: EventBuffer
    def __new__(
        cls,
        out: EventBuffer,
        *,
        num_prefill_workers: int,
        num_decode_workers: int,
        prefill_dp_size: int,
        decode_dp_size: int,
        block_size: int,
        num_blocks: int,
        max_model_len: int | None,
        order: str = "source_first",
        books_outputs: bool = False,
        timing_mode: str = "full_prompt",
        bytes_per_token: int | None = None,
        bandwidth_gbps: float | None = None,
    ) -> Disaggregation: ...
    def set_chooser(self, chooser: Chooser | None) -> None: ...
    @property
    def next_transfer_ms(self) -> float: ...
    @property
    def has_work(self) -> bool: ...
    def living(self) -> list[tuple[int, int, int]]: ...
    @property
    def num_open(self) -> int: ...
