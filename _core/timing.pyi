from collections.abc import Mapping
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

class TimingCallback(Protocol):
    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float: ...
    def decode(
        self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int
    ) -> float: ...

@final
class TimingModel:
    kind: int
    def __init__(
        self,
        kind: str = "polynomial",
        *,
        prefill_ms: float = 0.0,
        decode_ms: float = 0.0,
        arrays: Mapping[str, npt.NDArray[np.float64]] | None = None,
        callback: TimingCallback | None = None,
        speedup_ratio: float = 1.0,
        decode_speedup_ratio: float = 1.0,
    ) -> None: ...
    def predict_prefill_ms(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float: ...
    def predict_decode_ms(self, batch_size: int, active_kv_tokens: int, total_kv_tokens: int) -> float: ...

def scaled_ms(raw_ms: float, ratio: float = 0.0) -> float: ...
