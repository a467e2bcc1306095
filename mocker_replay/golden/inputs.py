"""The inputs of a golden: its trace, and the timing profile if it used one.

Decides: that a manifest names them relative to the goldens' folder, so that a repository can be anywhere, and that
another digest means another input. Never decides what the input is good for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

from mocker_replay.config import EngineConfig, ReplayOptions, TimingCallable
from mocker_replay.errors import UsageError
from mocker_replay.events import EventLevel
from mocker_replay.golden.manifest import GoldenError, Manifest
from mocker_replay.replay.recorded_config import recorded_config

_READ_BYTES = 1 << 20


class OtherInput(Exception):
    """An input that is not the recorded one; the message says which."""


def trace_section(trace: str | os.PathLike[str], folder: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of the trace."""
    return {"path": _relative(trace, folder), **header["trace"]}


def profile_section(config: EngineConfig, folder: Path) -> dict[str, Any] | None:
    """What a manifest says of the timing profile; None where there is none."""
    path = config.timing_model.path
    if config.timing_model.type != "external" or path is None:
        return None
    return {"path": _relative(path, folder), "digest": _digest(Path(path))}


def trace_path(manifest: Manifest, folder: Path, where: str) -> Path:
    """Where the trace of a golden is.

    Raises:
        GoldenError: the manifest does not say, or there is no such file.
    """
    return _file(manifest.trace, folder, f"{where}: trace")


def require_trace(manifest: Manifest, header: Mapping[str, Any]) -> None:
    """Hold the trace that was read against the recorded one.

    Raises:
        OtherInput: it is another one.
    """
    recorded, found = manifest.trace, header["trace"]
    if recorded.get("digest") != found["digest"]:
        rows = f"{recorded.get('rows')} rows then, {found['rows']} now"
        raise OtherInput(f"the trace {recorded.get('path')} has changed ({rows})")


def settings_of(
    manifest: Manifest,
    folder: Path,
    where: str,
    timing_model: TimingCallable | None = None,
    *,
    any_profile: bool = False,
) -> tuple[EngineConfig, ReplayOptions]:
    """The settings of a golden's run; with two pools the configuration is that of the decode workers.

    Args:
        any_profile: take the timing profile as it is now.

    Raises:
        GoldenError: a level or options that this version does not have.
        UsageError: settings or a timing model that cannot be had.
        OtherInput: the timing profile has changed.
    """
    if manifest.level not in list(EventLevel):
        raise GoldenError(f"{where}: level: must be one of {', '.join(EventLevel)} (got {manifest.level})")
    known = ReplayOptions.__struct_fields__
    unknown = sorted(set(manifest.options) - set(known))
    if unknown:
        raise GoldenError(f"{where}: options: this version does not know {', '.join(unknown)}")
    options = ReplayOptions(**manifest.options)
    options.validate(lambda name: f"{where}: options.{name}")
    document = _at_its_place(manifest.config, manifest.profile, folder, where, any_profile)
    role = "aggregated" if manifest.prefill_config is None else "decode"
    return recorded_config(document, where, timing_model, role=role), options


def prefill_config_of(
    manifest: Manifest,
    folder: Path,
    where: str,
    timing_model: TimingCallable | None = None,
    *,
    any_profile: bool = False,
) -> EngineConfig | None:
    """The configuration of the prefill workers of a golden's run; None where all workers are the same.

    Raises:
        as `settings_of`.
    """
    if manifest.prefill_config is None:
        return None
    document = _at_its_place(manifest.prefill_config, manifest.prefill_profile, folder, where, any_profile)
    return recorded_config(document, where, timing_model, role="prefill", key="prefill_config")


def _at_its_place(
    document: Mapping[str, Any], profile: Mapping[str, Any] | None, folder: Path, where: str, any_profile: bool
) -> Mapping[str, Any]:
    """A configuration whose timing profile, if it has one, is where it is now."""
    if profile is None:
        return document
    path = _file(profile, folder, f"{where}: profile")
    if not any_profile and _digest(path) != profile.get("digest"):
        raise OtherInput(f"the timing profile {profile.get('path')} has changed")
    return with_profile(document, str(path), where)


def with_profile(config: Mapping[str, Any], path: str, where: str = "config") -> dict[str, Any]:
    """A configuration whose timing profile is at another place.

    Raises:
        GoldenError: it has no timing model that could use one.
    """
    engine = config.get("engine")
    model = engine.get("timing_model") if isinstance(engine, dict) else None
    if not isinstance(engine, dict) or not isinstance(model, dict):
        raise GoldenError(f"{where}: config.engine.timing_model: must be that of the profile (got {model!r})")
    return {**config, "engine": {**engine, "timing_model": {**model, "config": {"path": path}}}}


def _file(section: Mapping[str, Any], folder: Path, where: str) -> Path:
    path = section.get("path")
    if not isinstance(path, str):
        raise GoldenError(f"{where}: path: must be a text (got {path!r})")
    found = folder / path
    if not found.is_file():
        raise GoldenError(f"{where}: {path}: no such file beside {folder}")
    return found


def _relative(path: str | os.PathLike[str], folder: Path) -> str:
    relative = Path(os.path.relpath(os.path.abspath(path), os.path.abspath(folder))).as_posix()
    try:
        relative.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{relative}: a manifest cannot hold this path, it is not Unicode") from None
    return relative


def _digest(path: Path) -> str:
    digest = blake3()
    try:
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read: {exc.strerror}") from None
    return digest.hexdigest()
