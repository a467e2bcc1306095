"""What `estimate_prefix` may say: which part of each prompt is taken for that of its group.

Decides the form of the setting alone; what is made of it is decided where prompts are made.
"""

from __future__ import annotations

import re
from typing import Final

NO_SHARING: Final = "none"
MAX_GROUPS: Final = 2**31 - 1
ESTIMATE_RULE: Final = "must be none or RATIO:GROUPS, such as 0.5:8, with a ratio above 0 and at most 1"
_FORM: Final = re.compile(r"(\d{1,3}(?:\.\d{1,15})?|\.\d{1,15}):(\d{1,10})", re.ASCII)


def read_estimate(text: object) -> tuple[float, int] | None:
    """Ratio and number of groups, (0, 1) for `none`; None for what says nothing."""
    if text == NO_SHARING:
        return 0.0, 1
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    ratio, num_groups = float(found[1]), int(found[2])
    return (ratio, num_groups) if 0.0 < ratio <= 1.0 and 1 <= num_groups <= MAX_GROUPS else None
