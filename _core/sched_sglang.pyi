from collections.abc import Callable, Sequence
from typing import final

from .sched_pages import PageScheduler
from .timing import TimingModel

@final
class SglangScheduler(PageScheduler):
    ratio: float
    interval: int
    def __init__(
        self,
        worker: int,
        rank: int,
        *,
        num_gpu_blocks: int,
        block_size: int,
        trace_block_size: int,
        timing: TimingModel,
        want: int = 0,
        num_ranks: int = 1,
        max_num_seqs: int | None = 256,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        prefill_decode_interval: int = 0,
        schedule_policy: str = "fifo",
        max_prefill_tokens: int = 16384,
        chunked_prefill_size: int = 8192,
        clip_max_new_tokens: int = 4096,
        schedule_conservativeness: float = 1.0,
        accept_rates: Sequence[float] = (),
        sampler_seed: int = 0,
        block_tokens: Callable[[int, int, int], bytes] | None = None,
        xxh3: Callable[[bytes, int], int] | None = None,
        asks_prompt_tokens: bool = False,
        knows_outputs: bool = False,
        free_prefill: bool = False,
    ) -> None: ...
