from typing import NamedTuple, final

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
class Arrivals:
    def __len__(self) -> int: ...
