class Scheduler:
    worker: int
    rank: int
    pass_number: int
    pass_end_ms: float
