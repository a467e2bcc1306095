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
_FLAVOURS = ("sglang", "trtllm")  # each has settings of its own
# Goals and samples read what happened; the tensor parallel size scales GPU hours; how a number was given is no matter;
# what Dynamo is told about the engine is not the engine's; how large a trace may be is no matter once it was read.
WITHOUT_EFFECT = frozenset(
    {
        "trace.format",
        "trace.name",
        "config.dynamo",
        "config.tensor_parallel_size",
        "config.num_gpu_blocks_is_explicit",
        "options.sla_ttft_ms",
        "options.sla_itl_ms",
        "options.sla_e2e_ms",
        "options.telemetry_sample_interval_ms",
        "options.max_text_gib",
    }
)


def settings_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], *, all_fields: bool = False
) -> tuple[FieldDifference, ...]:
    """Settings of two headers that differ; `all_fields` adds those without effect."""
    first, second = ({key: value for key, value in side.items() if key not in _FORM} for side in (a, b))
    without = WITHOUT_EFFECT | _other_flavours(a, b)
    return tuple(
        found
        for found in field_differences(first, second)
        if all_fields or not any(found.field == name or found.field.startswith(f"{name}.") for name in without)
    )


def _other_flavours(a: Mapping[str, Any], b: Mapping[str, Any]) -> set[str]:
    """Settings of engine flavours that neither run was."""
    used = []  # no set: in a log edited by hand a flavour can be anything
    for header in (a, b):
        config = header.get("config")
        engine = config.get("engine") if isinstance(config, Mapping) else None
        used.append(engine.get("backend") if isinstance(engine, Mapping) else None)
    return {f"config.engine.{flavour}" for flavour in _FLAVOURS if flavour not in used}
