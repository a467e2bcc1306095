from typing import final

import numpy as np
import numpy.typing as npt

@final
class GapPool:
    num_ranks: int
    def __new__(cls, num_ranks: int) -> GapPool: ...
    def gaps(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]: ...
