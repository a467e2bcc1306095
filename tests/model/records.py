"""The forward-pass record of a rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tests.model.request import Request, Status

if TYPE_CHECKING:
    from tests.model.scheduler import Work


def population_variance(values: Sequence[int]) -> float:
    if not values:
        return 0.0
    k = len(values)
    return float(Fraction(k * sum(v * v for v in values) - sum(values) ** 2, k * k))


def forward_pass_record(works: Iterable[Work], waiting: Iterable[Request]) -> dict[str, Any]:
    """Counts, sums and variances of one pass; queues as they stand after scheduling. `wall_time` comes later."""
    works = list(works)
    prefill = [w for w in works if w.prompt > 0]
    decode = [w.length for w in works if w.prompt == 0 and not w.terminal]
    queued = list(waiting)
    queued_prefill = [r.n_in for r in queued if r.status is Status.WAITING]
    queued_decode = [r.length for r in queued if r.status is Status.PREEMPTED]
    return {
        "num_prefill_requests": len(prefill),
        "sum_prefill_tokens": sum(w.total for w in prefill),
        "var_prefill_length": population_variance([w.n_in for w in prefill]),
        "sum_prefill_kv_tokens": sum(w.prefix for w in prefill),
        "num_decode_requests": len(decode),
        "sum_decode_kv_tokens": sum(decode),
        "var_decode_kv_tokens": population_variance(decode),
        "num_queued_prefill": len(queued_prefill),
        "sum_queued_prefill_tokens": sum(queued_prefill),
        "var_queued_prefill_length": population_variance(queued_prefill),
        "num_queued_decode": len(queued_decode),
        "sum_queued_decode_kv_tokens": sum(queued_decode),
        "var_queued_decode_kv_tokens": population_variance(queued_decode),
    }
