from typing import final

import numpy as np
import numpy.typing as npt

@final
class GapWeights:
    def __new__(cls) -> GapWeights: ...
    def put(self, gaps_ms: npt.NDArray[np.float64], weights: npt.NDArray[np.int64]) -> int: ...
    def arrays(self, num_more: int = 0) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]: ...

def merged(
    columns: list[npt.NDArray[np.float64] | npt.NDArray[np.int64]],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]: ...
