"""The pass-time model as configured: which one, and its figures. The core computes with it."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from mocker_replay.config.decimals import read_json_number
from mocker_replay.config.origin import nearest
from mocker_replay.config.schema import TIMING_PROVIDERS, TIMING_TYPES


@runtime_checkable
class TimingCallable(Protocol):
    """A timing model of the user's own, in Python. Both answers are milliseconds, finite and not negative."""

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        """Time of the prefill part of a pass."""

    def decode(self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int) -> float:
        """Time of the decode part of a pass."""


class TimingModel(Struct, frozen=True):
    """`type` is polynomial, fixed, external (a provider with a file) or callback (a Python object)."""

    type: str = "polynomial"
    prefill_ms: float | None = None  # fixed: per pass with prefill
    decode_ms: float | None = None  # fixed: per pass with a decode batch
    provider: str | None = None  # external: dynamo_profile, ais, aic
    path: str | None = None  # dynamo_profile: the .npz file
    config: Mapping[str, object] | None = None  # external: the provider's mapping as given
    callable: TimingCallable | None = None  # callback

    def to_mapping(self) -> dict[str, object]:
        """As the reference writes it out; a callback is named, since it cannot be written."""
        if self.type == "fixed":
            return {"type": "fixed", "prefill_ms": self.prefill_ms, "decode_ms": self.decode_ms}
        if self.type == "external":
            return {"type": "external", "provider": self.provider, "config": self.config}
        if self.type == "callback":
            return {"type": "callback", "callable": _name_of(self.callable)}
        return {"type": self.type}


def _name_of(target: object) -> str:
    """Module and name, never an address: the same callable has the same name in every run."""
    named: Any = target if inspect.isclass(target) or inspect.ismodule(target) else type(target)
    if inspect.ismodule(named):
        return named.__name__
    return f"{named.__module__}:{named.__qualname__}"


def read_timing_model(value: object) -> TimingModel | list[tuple[str, object, str]]:
    """A model, or its faults of shape as (key below the model or "", value, rule)."""
    if isinstance(value, TimingModel):
        return value
    if not isinstance(value, Mapping):
        if isinstance(value, TimingCallable):
            return TimingModel("callback", callable=value)
        return [("", value, "must be a mapping with a type, or an object with the methods prefill and decode")]
    if "type" not in value:
        return [("", value, f"lacks type, one of {', '.join(TIMING_TYPES)}")]
    kind = value["type"]
    if not isinstance(kind, str) or kind not in TIMING_TYPES:
        near = nearest(kind, TIMING_TYPES) if isinstance(kind, str) else None
        hint = f"; did you mean {near}?" if near else ""
        return [("type", kind, f"must be one of {', '.join(TIMING_TYPES)}{hint}")]
    if kind == "fixed":
        return _read_fixed(value)
    if kind == "external":
        return _read_external(value)
    return TimingModel(kind)


def _read_fixed(value: Mapping[str, object]) -> TimingModel | list[tuple[str, object, str]]:
    figures: dict[str, float] = {}
    faults: list[tuple[str, object, str]] = []
    # Figures that are given are judged in the order of the document, then come those that lack.
    for key in [*(key for key in value if key in ("prefill_ms", "decode_ms")), "prefill_ms", "decode_ms"]:
        if key not in value:
            faults.append(("", value, f"lacks {key}, which type fixed needs"))
        elif key in figures:
            continue
        elif (figure := _figure(value[key])) is not None:
            figures[key] = figure
        elif all(fault[0] != key for fault in faults):
            faults.append((key, value[key], "must be a number"))
    return faults or TimingModel("fixed", figures["prefill_ms"], figures["decode_ms"])


def _figure(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return read_json_number(str(int(value))) if isinstance(value, numbers.Integral) else float(value)


def _read_external(value: Mapping[str, object]) -> TimingModel | list[tuple[str, object, str]]:
    if "provider" not in value:
        return [("", value, "lacks provider, which type external needs")]
    provider = value["provider"]
    if not isinstance(provider, str):
        return [("provider", provider, "must be a text")]
    config = value.get("config")
    path = config.get("path") if isinstance(config, Mapping) else None
    return TimingModel(
        "external",
        provider=provider,
        path=path if isinstance(path, str) else None,
        config=config if isinstance(config, Mapping) else None,
    )


def provider_faults(model: TimingModel) -> Iterator[tuple[str, object, str]]:
    """What is wrong with an external model once its shape is right, as (key below the model, value, rule)."""
    if model.provider not in TIMING_PROVIDERS:
        near = nearest(model.provider or "", TIMING_PROVIDERS)
        hint = f"; did you mean {near}?" if near else ""
        yield "provider", model.provider, f"must be one of {', '.join(TIMING_PROVIDERS)}{hint}"
    elif model.provider == "dynamo_profile":
        yield from _profile_faults(model)


def _profile_faults(model: TimingModel) -> Iterator[tuple[str, object, str]]:
    from pathlib import Path

    if model.config is None:
        yield "config", None, 'must be a mapping {"path": FILE.npz}'
        return
    for key in model.config:
        if key != "path":
            yield f"config.{key}", model.config[key], "unknown key; the only one is path"
    if "path" not in model.config:
        yield "config", dict(model.config), "lacks path, the .npz file of the profile"
    elif model.path is None:
        yield "config.path", model.config["path"], "must be a text"
    elif not Path(model.path).is_file():
        yield "config.path", model.path, "no such file"
