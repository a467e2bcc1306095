from typing import NamedTuple, final

from .engine import Engine
from .event_buffer import EventBuffer
from .lanes import Command
from .stimulus_names import PHASE_NAMES as PHASE_NAMES
from .stimulus_names import STATUS_TEXTS as STATUS_TEXTS
from .stimulus_names import STIMULUS_NAMES as STIMULUS_NAMES

class DriverMisuse(RuntimeError): ...

class Step(NamedTuple):
    events: int
    replies: tuple[tuple[int, bool, str], ...]
    boundary_reply: tuple[int, bool, str] | str | None
    wants: tuple[str, ...]
    pass_deadline_ms: float | None
    internal_deadline_ms: float | None
    stopped: bool
    error: str | None

@final
class Machine:
    engine: Engine
    out: EventBuffer
    boundary_events: EventBuffer
    phase: int
    engine_ms: float
    carried_ms: float
    pass_end_ms: float
    rests: bool
    num_effects: int
    def __new__(cls, engine: Engine, out: EventBuffer) -> Machine: ...
    def advance(self, now_ms: float, until_ms: float) -> float: ...
    def enqueue(self, command: Command) -> None: ...
    def step(
        self,
        stimulus: str,
        reading_ms: float,
        *,
        command: Command | None = None,
        num_cancels: int = 0,
        num_commands: int = 0,
    ) -> Step: ...
    def wants(self) -> tuple[str, ...]: ...
    @property
    def phase_name(self) -> str: ...
