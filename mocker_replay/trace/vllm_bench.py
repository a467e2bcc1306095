"""Results of `vllm bench serve --save-result --save-detailed` as a trace.

Decides by which fields such a result is known. How it is read: bench_result.py.
"""

from __future__ import annotations

from typing import Final

from mocker_replay.trace.bench_result import BenchFormat

# Fields that this benchmark writes and the other one does not.
MARKS: Final = frozenset(("endpoint_type", "tokenizer_id", "model_id", "num_prompts", "burstiness", "request_goodput"))


class VllmBenchFormat(BenchFormat):
    """See FlatFormat."""

    name = "vllm_bench"
    detail_flag = "--save-result --save-detailed"
