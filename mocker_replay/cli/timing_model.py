"""The value of `--timing-model`: a name, JSON text, a profile file, or a Python object of the user's."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from typing import TYPE_CHECKING

from mocker_replay.errors import ConfigError, Fault, UsageError

if TYPE_CHECKING:
    from mocker_replay.config import TimingCallable

_FLAG = "--timing-model"


def timing_model_of(text: str) -> object:
    """What `engine.timing_model` would hold.

    Raises:
        ConfigError: the text is none of the four, or the object cannot be had.
    """
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as exc:
            raise _refuse(text, f"not valid JSON: {exc}") from None
    if text.endswith(".npz"):
        return {"type": "external", "provider": "dynamo_profile", "config": {"path": text}}
    if ":" in text:
        return _import(text)
    return {"type": text}


def own_timing_model(text: str) -> TimingCallable:
    """The object `MODULE:NAME` that stands for the one which a record names.

    Raises:
        UsageError: it cannot be had, or is none.
    """
    from mocker_replay.config import TimingCallable

    model = timing_model_of(text)
    if not isinstance(model, TimingCallable):
        raise UsageError(f"--timing-model: must name an object with the methods prefill and decode (got {text})")
    return model


def search_working_directory() -> None:
    """Let modules of the user's be found where the command is run."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _import(text: str) -> object:
    """The object `MODULE:NAME`, looked for in the working directory too; a class is called without arguments."""
    module_name, _, name = text.partition(":")
    search_working_directory()
    try:
        target = importlib.import_module(module_name)
        for part in name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as exc:
        raise _refuse(text, f"cannot be imported: {exc}") from None
    return target() if inspect.isclass(target) else target


def _refuse(text: str, rule: str) -> ConfigError:
    return ConfigError.of([Fault(_FLAG, 0, "", text, rule)])
