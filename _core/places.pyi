from typing import final

@final
class Places:
    def __new__(
        cls, num_prefill_workers: int, num_decode_workers: int, prefill_dp_size: int, decode_dp_size: int
    ) -> Places: ...
