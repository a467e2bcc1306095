from collections.abc import Iterable
from typing import final

import numpy as np
import numpy.typing as npt

from .driver import Machine
from .event_buffer import EventBuffer

STATUS_NAMES: tuple[str, ...]

@final
class Fleet:
    machines: tuple[Machine, ...]
    num_workers: int
    dp_size: int
    out: EventBuffer
    now_ms: float
    last_event_ms: float
    worker_seconds: float
    num_arrived: int
    def __new__(
        cls,
        machines: Iterable[Machine],
        out: EventBuffer,
        *,
        telemetry: bool = False,
        wake_on_end: bool = False,
        external_placement: bool = False,
    ) -> Fleet: ...
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
    ) -> None: ...
    def set_horizon(self, horizon_ms: float) -> None: ...
    def set_sample(self, sample_ms: float) -> None: ...
    def advance(self, until_ms: float = ..., max_records: int = 65536) -> str: ...
    def next_arrival(self) -> tuple[int, int, list[int]]: ...
    def place_next(self, worker: int, rank: int) -> None: ...
    def ended_requests(self) -> list[int]: ...
    def clear_events(self) -> None: ...
    def publish_cuts(self) -> None: ...
    @property
    def idle(self) -> bool: ...
