"""What a report has to know about a run beyond its collected columns.

Decides the words for how requests end. Never computes a figure and never reads a trace or a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Columns = Mapping[str, npt.NDArray[Any]]

# Values of the `status` column; the records spell `canceled` as the reference does.
NOT_ARRIVED: Final = -1
NOT_TERMINAL: Final = -2
COMPLETED: Final = 0
REJECTED: Final = 1
CANCELLED: Final = 2
FAILED: Final = 3
STATUS_NAMES: Final = ("completed", "rejected", "canceled", "failed")

# Values of the `reason` column, with what its two figures count.
REASON_NAMES: Final = (
    "output_length",
    "model_len",
    "prompt_over_model_len",
    "prompt_over_pool",
    "client",
    "growth_over_pool",
    "prompt_over_budget",
    "burst_over_pool",
    "pool_len",
)
REASON_TEXTS: Final[Mapping[str, str]] = {
    "output_length": "all requested tokens",
    "model_len": "stopped at max_model_len",
    "pool_len": "stopped where prompt and output fill the KV pool",
    "prompt_over_model_len": "prompt of max_model_len tokens or more",
    "prompt_over_pool": "prompt larger than the KV pool",
    "client": "cancelled by the client",
    "growth_over_pool": "prompt and output larger than the KV pool",
    "prompt_over_budget": "prompt over max_num_batched_tokens with chunked prefill off",
    "burst_over_pool": "speculative burst larger than the KV pool",
}
REASON_UNITS: Final[Mapping[str, str]] = {
    "prompt_over_model_len": "tokens",
    "prompt_over_pool": "blocks",
    "growth_over_pool": "blocks",
    "prompt_over_budget": "tokens",
    "burst_over_pool": "blocks",
}


class Placement(Struct, frozen=True):
    """Where a request went, and what the router knew when it decided."""

    worker: int
    rank: int
    overlap_blocks: int  # leading prompt blocks cached there
    best_overlap_blocks: int  # the most any rank had
    prompt_blocks: int  # of the request, the partial one included
    overlap_tokens: int


class PrefillFacts(Struct, frozen=True, kw_only=True):
    """The prefill workers of a run, where prefill and decode have workers of their own."""

    config: Mapping[str, Any]
    num_workers: int
    dp_size: int
    tensor_parallel_size: int
    worker_seconds: float
    decode_has_tier: bool  # host memory of the decode workers
    comes_second: bool = False  # a request has its place on a decode worker first
    placements: Mapping[int, Placement] | None = None  # by row ordinal, where a router looked at cached prefixes

    @property
    def gpus_per_worker(self) -> int:
        """GPUs of a prefill worker."""
        return self.tensor_parallel_size * self.dp_size


class RunGraph(Struct, frozen=True, kw_only=True):
    """The graph that was replayed; rows are its requests in byte order of their ids."""

    source: Mapping[str, str]  # format and digest of what it was made from
    digest: str
    models: Sequence[str]  # recorded ones, sorted
    play: npt.NDArray[np.int64]  # (num_requests,) ordinal of the play
    play_ids: Sequence[str]  # in play order
    session_names: Sequence[str]  # by row
    is_root: npt.NDArray[np.bool_]  # (num_requests,) waits for no other request
    only_root: npt.NDArray[np.int64]  # (num_plays,) its one root; -1: it has several
    parent: npt.NDArray[np.int64]  # (num_requests,) who spawned it, -1: nobody
    lane: Sequence[int]  # by play; -1: it never started, or there are no lanes
    nested_timestamp_basis: str | None = None  # of a weka trace

    def __len__(self) -> int:
        return len(self.play)


class RunFacts(Struct, frozen=True, kw_only=True):
    """One finished (or cut) run, as its report needs it."""

    config: Mapping[str, Any]  # the normalised engine configuration, nested as the reference prints it
    options: Mapping[str, Any]  # the replay options that were in force

    trace_name: str
    trace_format: str
    trace_rows: int
    trace_digest: str
    timestamp_unit: str
    trace_block_size: int
    trace_span_ms: float  # from the first to the last arrival the trace asks for

    num_workers: int
    dp_size: int
    tensor_parallel_size: int

    wall_time_ms: float  # host time of the simulation, trace loading not included
    worker_seconds: float  # provisioned workers integrated over simulated time (role: decode)
    end_ms: float  # simulated time of the last processed event
    cut: bool = False  # the time limit or an interrupt ended it before the trace did
    interrupted: bool = False

    sla_ttft_ms: float | None = None
    sla_itl_ms: float | None = None
    sla_e2e_ms: float | None = None

    kv_eviction_policy: str = "lru"
    prefill: PrefillFacts | None = None  # the figures above are then those of the decode workers

    request_ids: Sequence[str | None] | None = None  # by row ordinal, None: no row names one
    session_names: Sequence[str] | None = None  # by session ordinal; needed when sessions are reported
    sessions_reported: bool = False  # multi-turn or closed loop: records carry session and turn
    graph: RunGraph | None = None  # None: the trace was none
    num_skipped: int = 0  # requests of plays that failed, which never arrived
    placements: Mapping[int, Placement] | None = None  # by row ordinal, where a router looked at cached prefixes
    trace_assumed: Mapping[str, Any] | None = None  # what the reader took for granted; None: the trace says all
    trace_assumed_texts: tuple[str, ...] = ()  # the same for people
    warnings: tuple[str, ...] = ()
    trace_transforms: tuple[str, ...] = ()  # what made the rows out of those of the file, in order

    @property
    def has_sla(self) -> bool:
        """Whether goodput was asked for."""
        return any(bound is not None for bound in (self.sla_ttft_ms, self.sla_itl_ms, self.sla_e2e_ms))

    def request_name(self, row: int) -> str:
        """Name of a request in logs and records: its `request_id`, else `r<row>`."""
        name = self.request_ids[row] if self.request_ids is not None else None
        return f"r{row}" if name is None else name
