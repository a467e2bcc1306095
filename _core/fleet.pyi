from collections.abc import Iterable
from typing import final

from .arrivals import Handed as Handed
from .disaggregation import Disaggregation
from .driver import Machine
from .event_buffer import EventBuffer
from .intake import Intake
from .lanes import Command
from .onlookers import Onlookers

STATUS_NAMES: tuple[str, ...]

@final
class Fleet(Intake):
    machines: tuple[Machine, ...]
    last_event_ms: float
    worker_seconds: float
    prefill_worker_seconds: float
    handoffs: Disaggregation | None
    external: bool
    directed: bool
    onlookers: Onlookers
    moving_worker: int
    hold_boundary: bool
    hold_start: bool
    moves_anyway: bool
    def __new__(
        cls,
        machines: Iterable[Machine],
        out: EventBuffer,
        *,
        telemetry: bool = False,
        wake_on_end: bool = False,
        external_placement: bool = False,
        external: bool = False,
        directed: bool = False,
        quiet: bool = False,
        handoffs: Disaggregation | None = None,
    ) -> Fleet: ...
    def set_sample(self, sample_ms: float) -> None: ...
    def advance(self, until_ms: float = ..., max_records: int = 65536) -> str: ...
    def place_next(self, worker: int, rank: int, reason: bytes | None = None) -> None: ...
    def clear_events(self) -> None: ...
    def publish_cuts(self, worker: int = -1) -> None: ...
    def publish_cut(self, request: int, worker: int, rank: int) -> None: ...
    def take_next(
        self, worker: int = -1, rank: int = -1, at_ms: float = ..., queued: int = 0, reason: bytes | None = None
    ) -> Handed: ...
    def take_cancel(self) -> tuple[int, int, int]: ...
    def take_command(self) -> tuple[int, Command] | None: ...
    def refuse_command(self, request: int, kind: str) -> None: ...
    def begin_handoff(self, worker: int, command: Command) -> None: ...
    def leave(self, request: int) -> None: ...
    def note_now(self, ms: float) -> None: ...
    @property
    def next_instant_ms(self) -> float: ...
    @property
    def idle(self) -> bool: ...
