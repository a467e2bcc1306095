from typing_extensions import disjoint_base

@disjoint_base
class SchedulingPolicy:
    orders: bool
    reorders: bool
    wants_matches: bool
    max_matches: int
    by_match: bool
    chooses_victims: bool
    vetoes: bool
    limits_budget: bool
