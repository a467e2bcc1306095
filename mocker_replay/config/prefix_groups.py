"""Sharing between sessions that a trace does not describe: which part of their prompts, in how many groups.

Decides which pairs of settings make sense together. Makes no block.
"""

from __future__ import annotations

import numbers
from typing import Final

MAX_GROUPS: Final = 2**30


def sharing_fault(ratio: object, num_groups: object) -> tuple[str, str] | None:
    """What is wrong with trace_shared_prefix_ratio and trace_num_prefix_groups: the setting, and the rule it breaks."""
    if ratio is not None and (
        not isinstance(ratio, numbers.Real) or isinstance(ratio, bool) or not 0.0 <= float(ratio) <= 1.0  # NaN is not
    ):
        return "trace_shared_prefix_ratio", "must be a number from 0 to 1"
    if num_groups is not None and (
        not isinstance(num_groups, numbers.Integral)
        or isinstance(num_groups, bool)
        or not 0 <= int(num_groups) <= MAX_GROUPS
    ):
        return "trace_num_prefix_groups", f"must be a whole number from 0 to {MAX_GROUPS}"
    if ratio and not num_groups:
        return "trace_shared_prefix_ratio", "needs trace_num_prefix_groups: without groups nothing is shared"
    if num_groups and not ratio:
        return "trace_num_prefix_groups", "needs trace_shared_prefix_ratio: without a part of them nothing is shared"
    return None
