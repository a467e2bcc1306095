PHASE_NAMES: tuple[str, ...]
STIMULUS_NAMES: tuple[str, ...]
STATUS_TEXTS: dict[int, str]
