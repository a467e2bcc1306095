from typing import NamedTuple

COMMAND_KINDS: tuple[str, ...]

class Command(NamedTuple):
    command_id: int
    kind: str
    request: int
    rank: int = 0
    n_in: int = 0
    n_out: int = 0
    hash_ids: tuple[int, ...] = ()
    discard: bool = False
    priority: int = 0
    arrival_ms: float = 0.0
    deadline_ms: float = ...
    handoff: int = -1

def check_command(command: Command) -> None: ...
