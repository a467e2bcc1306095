"""What the headers of two logs say differently.

Decides: which settings have no effect on events and are left out. Settings explain a difference and are none: two logs
with the same events are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mocker_replay.log.field_differences import FieldDifference, field_differences

# They say what the other fields and lines of this log are, or what its clock said.
_FORM = ("event", "schema", "level", "wall")
# Goals and samples read what happened; the tensor parallel size scales GPU hours; how a number was given is no matter.
WITHOUT_EFFECT = frozenset(
    {
        "trace.format",
        "trace.name",
        "config.tensor_parallel_size",
        "config.num_gpu_blocks_is_explicit",
        "options.sla_ttft_ms",
        "options.sla_itl_ms",
        "options.sla_e2e_ms",
        "options.telemetry_sample_interval_ms",
    }
)


def settings_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], *, all_fields: bool = False
) -> tuple[FieldDifference, ...]:
    """Settings of two headers that differ; `all_fields` adds those without effect."""
    first, second = ({key: value for key, value in side.items() if key not in _FORM} for side in (a, b))
    return tuple(found for found in field_differences(first, second) if all_fields or found.field not in WITHOUT_EFFECT)
