from typing import final

from .driver import Machine

@final
class Onlookers:
    held_worker: int
    def __new__(cls, machines: tuple[Machine, ...], *, look_around: bool) -> Onlookers: ...
    def take_told(self) -> bool: ...
    def look(self, now_ms: float) -> None: ...
