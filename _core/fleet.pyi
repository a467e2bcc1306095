from collections.abc import Iterable
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from .driver import Machine
from .event_buffer import EventBuffer

STATUS_NAMES: tuple[str, ...]

class Handed(NamedTuple):
    request: int
    worker: int
    rank: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    due_ms: float
    cancel_due_ms: float
    priority: int
    arrival_ms: float
    deadline_ms: float

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
    external: bool
    moving_worker: int
    hold_boundary: bool
    def __new__(
        cls,
        machines: Iterable[Machine],
        out: EventBuffer,
        *,
        telemetry: bool = False,
        wake_on_end: bool = False,
        external_placement: bool = False,
        external: bool = False,
        quiet: bool = False,
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
        cancel_after_ms: npt.NDArray[np.float64] | None = None,
        priority: npt.NDArray[np.int64] | None = None,
        deadline_after_ms: npt.NDArray[np.float64] | None = None,
        play: npt.NDArray[np.int64] | None = None,
    ) -> None: ...
    def withdraw(self, request: int) -> None: ...
    def set_horizon(self, horizon_ms: float) -> None: ...
    def set_sample(self, sample_ms: float) -> None: ...
    def advance(self, until_ms: float = ..., max_records: int = 65536) -> str: ...
    def next_arrival(self) -> tuple[int, int, list[int]]: ...
    @property
    def next_request(self) -> int: ...
    def next_terms(self) -> tuple[int, int, float, float]: ...
    def place_next(self, worker: int, rank: int, reason: bytes | None = None) -> None: ...
    def ended_requests(self) -> list[int]: ...
    def take_ends(self) -> list[tuple[int, int]]: ...
    def clear_events(self) -> None: ...
    def publish_cuts(self, worker: int = -1) -> None: ...
    def publish_cut(self, request: int, worker: int, rank: int) -> None: ...
    def take_next(
        self, worker: int = -1, rank: int = -1, at_ms: float = ..., queued: int = 0, reason: bytes | None = None
    ) -> Handed: ...
    def take_cancel(self) -> tuple[int, int, int]: ...
    def note_now(self, ms: float) -> None: ...
    @property
    def next_place(self) -> tuple[int, int]: ...
    @property
    def next_due_ms(self) -> float: ...
    @property
    def next_instant_ms(self) -> float: ...
    @property
    def next_row_ms(self) -> float: ...
    @property
    def needs_rows(self) -> bool: ...
    @property
    def idle(self) -> bool: ...
