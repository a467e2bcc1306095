from collections.abc import Callable, Sequence
from typing import final

from .sched_handoff import HandoffScheduler
from .timing import TimingModel

@final
class TrtllmScheduler(HandoffScheduler):
    num_booked: int
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
        max_num_seqs: int | None = 256,
        max_num_batched_tokens: int | None = 8192,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        enable_chunked_prefill: bool = True,
        accept_rates: Sequence[float] = (),
        sampler_seed: int = 0,
        block_tokens: Callable[[int, int, int], bytes] | None = None,
        xxh3: Callable[[bytes, int], int] | None = None,
        asks_prompt_tokens: bool = False,
        calendar: bool = True,
        knows_outputs: bool = False,
        free_prefill: bool = False,
        free_decode: bool = False,
    ) -> None: ...
