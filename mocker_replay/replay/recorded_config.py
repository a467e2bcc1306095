"""The engine configuration that a log or a golden recorded, made usable again.

Decides where a timing model comes from that was a Python object: the record only names it. Never builds a machine.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from mocker_replay.config import EngineConfig, TimingCallable
from mocker_replay.errors import UsageError


def recorded_config(
    document: Any,
    where: str,
    timing_model: TimingCallable | None = None,
    *,
    role: str = "aggregated",
    key: str = "config",
) -> EngineConfig:
    """Read a configuration as `EngineConfig.to_mapping` wrote it.

    Args:
        where: what holds the record, for messages.
        timing_model: the user's own model, where the record only names it; else it is imported by its name.
        role: of the workers, as `worker_type` says. key: where the record has it.

    Raises:
        UsageError: no configuration, or a timing model that cannot be had.
        ConfigError: a configuration that this version does not run.
    """
    engine = document.get("engine") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(engine, dict):
        raise UsageError(f"{where}: {key}: must be the engine configuration of the run (got {document})")
    model = engine.get("timing_model")
    kind = model.get("type") if isinstance(model, dict) else None
    if timing_model is not None and kind != "callback":
        raise UsageError(f"{where}: the timing model of this run is {kind}, which needs no object of yours")
    if isinstance(model, dict) and kind == "callback":
        found = timing_model if timing_model is not None else _imported(model.get("callable"), where)
        document = {**document, "engine": {**engine, "timing_model": found}}
    config = EngineConfig.from_mapping(document, f"{where}: {key}")
    config.require_supported(role)
    return config


def _imported(name: object, where: str) -> TimingCallable:
    """The object named as MODULE:NAME, or MODULE alone; a class is called without arguments."""
    try:
        module_name, _, path = str(name).partition(":")
        target: Any = importlib.import_module(module_name)
        for part in path.split(".") if path else ():
            target = getattr(target, part)
        model = target() if inspect.isclass(target) else target
    except Exception as exc:  # a module of the user's may raise anything
        raise UsageError(
            f"{where}: the run used a timing model of its own, {name}, which cannot be had here: "
            f"{type(exc).__name__}: {exc}; --timing-model MODULE:NAME says where it is"
        ) from exc
    if not isinstance(model, TimingCallable):
        raise UsageError(f"{where}: the timing model {name} must have the methods prefill and decode")
    return model
