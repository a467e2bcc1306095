from typing import Any, Final, final

import numpy.typing as npt

TIMES: Final[tuple[str, ...]]
COUNTS: Final[tuple[str, ...]]
SMALLS: Final[tuple[str, ...]]

@final
class RecordLines:
    def __new__(
        cls,
        columns: dict[str, npt.NDArray[Any]],
        first_row: int,
        dp_size: int,
        names: list[bytes],
        uuids: list[bytes],
        sessions: list[bytes] | None,
    ) -> RecordLines: ...
    def write(self, at: int) -> tuple[bytes, int]: ...
