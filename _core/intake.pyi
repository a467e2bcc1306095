import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from .event_buffer import EventBuffer

@disjoint_base
class Intake:
    num_workers: int
    dp_size: int
    out: EventBuffer
    now_ms: float
    num_arrived: int
    def push_rows(
        self,
        due_ms: npt.NDArray[np.float64],
        request: npt.NDArray[np.int32],
        order: npt.NDArray[np.int64],
        turn: npt.NDArray[np.int64],
        session: npt.NDArray[np.int64],
        input_tokens: npt.NDArray[np.int64],
        output_tokens: npt.NDArray[np.int64],
        hash_offsets: npt.NDArray[np.int64],
        hash_ids: npt.NDArray[np.uint64],
        cancel_after_ms: npt.NDArray[np.float64] | None = None,
        priority: npt.NDArray[np.int64] | None = None,
        deadline_after_ms: npt.NDArray[np.float64] | None = None,
        play: npt.NDArray[np.int64] | None = None,
    ) -> None: ...
    def withdraw(self, request: int) -> None: ...
    def set_horizon(self, horizon_ms: float) -> None: ...
    def next_arrival(self) -> tuple[int, int, list[int]]: ...
    @property
    def next_request(self) -> int: ...
    def next_terms(self) -> tuple[int, int, float, float]: ...
    @property
    def next_row_ms(self) -> float: ...
    @property
    def next_due_ms(self) -> float: ...
    @property
    def needs_rows(self) -> bool: ...
    @property
    def next_place(self) -> tuple[int, int]: ...
    def ended_requests(self) -> list[int]: ...
    def take_ends(self) -> list[tuple[int, int]]: ...
