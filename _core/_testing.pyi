from collections.abc import Iterable
from typing import final

from .engine import Engine
from .scheduler import Scheduler

BUILT_WITH_CHECKS: bool

@final
class ScriptedEngine(Engine):
    deadlines: list[float]
    masked: bool
    fail_internal: bool
    fail_completion: bool
    refuse_passes: int
    deny_effects: bool
    def __new__(
        cls, worker: int, schedulers: Iterable[Scheduler], prefill_schedule_interval: int = 1
    ) -> ScriptedEngine: ...
    def __init__(self, *args: object) -> None: ...

def run_cancellations(script: Iterable[tuple[object, ...]]) -> list[tuple[object, int, float]]: ...
