"""Results of SGLang's `bench_serving --output-file FILE --output-details` as a trace.

Decides by which fields such a result is known. How it is read: bench_result.py.
"""

from __future__ import annotations

from typing import Final

from mocker_replay.trace.bench_result import BenchFormat

# Fields that this benchmark writes and the other one does not.
MARKS: Final = frozenset(
    (
        "dataset_name", "sharegpt_output_len", "random_input_len", "random_output_len", "random_range_ratio",
        "server_info", "total_output_tokens_retokenized", "mean_e2e_latency_ms",
    )
)  # fmt: skip


class SglangBenchFormat(BenchFormat):
    """See FlatFormat."""

    name = "sglang_bench"
    detail_flag = "--output-details"
