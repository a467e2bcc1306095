"""Blessing a run.

Decides: that a golden is never overwritten by `record`, and that nothing is left of one that could not be made whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from mocker_replay import __version__
from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.errors import UsageError
from mocker_replay.events import EVENT_SCHEMA
from mocker_replay.golden.blocks import BLOCK_EVENTS
from mocker_replay.golden.folder import Golden, GoldenFolder
from mocker_replay.golden.fresh import FreshRun, run_fresh
from mocker_replay.golden.inputs import profile_section, trace_section, with_profile
from mocker_replay.golden.manifest import GoldenError, Manifest, check_tolerances


def record_golden(
    folder: GoldenFolder,
    name: str,
    trace: str | os.PathLike[str],
    config: EngineConfig,
    options: ReplayOptions,
    *,
    prefill: EngineConfig | None = None,
    level: str = "passes",
    with_log: bool = False,
    tolerances: Mapping[str, float] | None = None,
) -> Golden:
    """Run a trace and keep what came of it under a name.

    Args:
        prefill: of prefill workers; `config` is that of decode workers then.

    Raises:
        GoldenError: the name is taken or none, or a tolerance may not be.
        UsageError: the trace is standard input, or the run is refused.
        InvariantError: the run stood still or lost a request; nothing is written.
        ReplayInterrupted: the user interrupted it.
        OutputError: a file cannot be written.
    """
    if folder.exists(name):
        raise GoldenError(f"{folder.place(name)}: is recorded already; mocker-replay golden update {name} changes it")
    if os.fspath(trace) == "-":
        raise UsageError("a golden needs a trace that can be read again, not standard input")
    tolerances = dict(tolerances or {})
    check_tolerances(tolerances, "--tolerance")
    try:
        log = folder.events(name) if with_log else None
        fresh = run_fresh(trace, config, options, level, prefill=prefill, log=log)
        golden = golden_of(
            folder, name, trace, config, fresh,
            prefill=prefill, level=level, with_log=with_log, tolerances=tolerances,
        )  # fmt: skip
        folder.write(golden)
    except BaseException:
        _remove(folder, name)
        raise
    return golden


def golden_of(
    folder: GoldenFolder,
    name: str,
    trace: str | os.PathLike[str],
    config: EngineConfig,
    fresh: FreshRun,
    *,
    prefill: EngineConfig | None,
    level: str,
    with_log: bool,
    tolerances: Mapping[str, float],
) -> Golden:
    """A run as a golden keeps it."""
    counts = {key: value for key, value in fresh.footer.items() if key != "event"}
    profile = profile_section(config, folder.path)
    prefill_profile = None if prefill is None else profile_section(prefill, folder.path)
    manifest = Manifest(
        name=name,
        program=__version__,
        event_schema=EVENT_SCHEMA,
        level=str(level),
        trace=trace_section(trace, folder.path, fresh.header),
        config=_portable(fresh.header["config"], profile),
        options=fresh.header["options"],
        profile=profile,
        log={**counts, "block_events": BLOCK_EVENTS, "stored": with_log},
        tolerances=tolerances,
        prefill_config=None if prefill is None else _portable(fresh.header["prefill_config"], prefill_profile),
        prefill_profile=prefill_profile,
    )
    return Golden(manifest, fresh.summary, fresh.blocks)


def _portable(document: dict[str, Any], profile: Mapping[str, Any] | None) -> dict[str, Any]:
    """A configuration that names its timing profile relative to the goldens' folder."""
    return document if profile is None else with_profile(document, profile["path"])


def _remove(folder: GoldenFolder, name: str) -> None:
    """Take back what was begun; the place was free before."""
    place = folder.place(name)
    with contextlib.suppress(OSError):
        for path in list(place.iterdir()):
            path.unlink()
        place.rmdir()
