class Scheduler:
    worker: int
    rank: int
    num_steady: int
    pass_number: int
    pass_end_ms: float
