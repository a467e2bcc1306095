from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

FPM_FIELDS: tuple[str, ...]
KIND_NAMES: tuple[str, ...]
RECORD_DTYPE: np.dtype[Any]

@final
class EventBuffer:
    def __new__(cls) -> EventBuffer: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    def records_array(self) -> npt.NDArray[Any]: ...
    def words_array(self) -> npt.NDArray[np.int64]: ...
    def rows(
        self,
    ) -> tuple[list[tuple[float, float, int, int, int, int, int, int, int, int, int, int]], list[int]]: ...
    def requests_of(self, kind: int) -> list[int]: ...
    def rows_of(
        self, kinds: tuple[int, ...], first: int
    ) -> list[tuple[int, float, int, int, int, list[int] | None, int]]: ...
    def append_record(
        self,
        kind: int,
        t_ms: float,
        worker: int = 0,
        rank: int = -1,
        request: int = -1,
        *,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        d: int = 0,
        e: int = 0,
        f: int = 0,
        x: float = ...,
        words: Sequence[int] | None = None,
    ) -> None: ...
