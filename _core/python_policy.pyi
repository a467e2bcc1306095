from collections.abc import Collection
from typing import Any, final

from .policy import SchedulingPolicy

@final
class RequestFacts:
    row: int
    input_tokens: int
    output_tokens: int
    generated_tokens: int
    computed_tokens: int
    match_tokens: int
    num_blocks: int
    num_preemptions: int
    num_admissions: int
    priority: int
    arrival_ms: float
    deadline_ms: float
    def __init__(
        self,
        row: int = 0,
        input_tokens: int = 0,
        output_tokens: int = 0,
        *,
        priority: int = 0,
        arrival_ms: float = 0.0,
        deadline_ms: float = ...,
    ) -> None: ...

@final
class RankFacts:
    worker: int
    rank: int
    now_ms: float
    pass_number: int
    num_running: int
    num_waiting: int
    block_size: int
    num_blocks: int
    num_free_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    budget_tokens: int
    def __init__(
        self,
        worker: int = 0,
        rank: int = 0,
        *,
        now_ms: float = 0.0,
        pass_number: int = 0,
        num_running: int = 0,
        num_waiting: int = 0,
        block_size: int = 64,
        num_blocks: int = 16384,
        num_free_blocks: int = 16384,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        budget_tokens: int = 8192,
    ) -> None: ...

@final
class PythonPolicy(SchedulingPolicy):
    target: Any
    def __init__(
        self, target: Any, hooks: Collection[str], *, reorders: bool = False, max_matches: int = 0
    ) -> None: ...
