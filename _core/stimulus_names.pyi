from typing import Final

PHASE_NAMES: Final[tuple[str, ...]]
STIMULUS_NAMES: Final[tuple[str, ...]]
STATUS_TEXTS: Final[dict[int, str]]
