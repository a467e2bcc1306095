from typing_extensions import disjoint_base

@disjoint_base
class Scheduler:
    worker: int
    rank: int
    num_steady: int
    pass_number: int
    pass_end_ms: float
    def standing(self, limit: int = 20) -> list[tuple[str, int, int, int, int]]: ...
