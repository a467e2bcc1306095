"""A golden against a fresh run, and its update.

Decides: what is compared (events by digest, the end of the run, the summary), and that another input or schema is no
change of the run. Where digests differ, the stored log shows the first event; without it, the block. Never decides that
a change is right: `update` is asked for by name, shows what changes, and is refused in CI.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from mocker_replay import __version__
from mocker_replay.config import TimingCallable
from mocker_replay.errors import ExitCode, InvariantError, MockerReplayError, OutputError, ReplayInterrupted, UsageError
from mocker_replay.events import EVENT_SCHEMA
from mocker_replay.golden.blocks import BLOCK_EVENTS, first_other_block
from mocker_replay.golden.folder import EVENTS, MANIFEST, Golden, GoldenFolder
from mocker_replay.golden.fresh import FreshRun, run_fresh
from mocker_replay.golden.inputs import OtherInput, prefill_config_of, require_trace, settings_of, trace_path
from mocker_replay.golden.manifest import GoldenError, Manifest, is_close
from mocker_replay.golden.record import golden_of
from mocker_replay.golden.result import GoldenResult, Status
from mocker_replay.log.diff import diff_logs
from mocker_replay.log.field_differences import FieldDifference, field_differences
from mocker_replay.log.reader import EventLogReader, LogError

_NO_CI = ("", "0", "false")


def check_golden(folder: GoldenFolder, name: str, *, timing_model: TimingCallable | None = None) -> GoldenResult:
    """Run a golden afresh and compare. What is wrong with the golden or its run is told in the result.

    Raises:
        ReplayInterrupted: the user interrupted the run.
    """
    return guarded(name, lambda: _checked(folder, name, timing_model))


def guarded(name: str, work: Callable[[], GoldenResult]) -> GoldenResult:
    """What stands in the way of one golden is its result: the others are looked at all the same.

    Raises:
        ReplayInterrupted, OutputError: they stand in the way of all.
    """
    try:
        return work()
    except (ReplayInterrupted, OutputError):
        raise
    except OtherInput as exc:
        return GoldenResult(name, Status.OTHER_INPUT, f"{exc}; mocker-replay golden update {name} blesses it")
    except InvariantError as exc:
        return GoldenResult(name, Status.BROKEN, str(exc).splitlines()[0], notes=tuple(str(exc).splitlines()[1:]))
    except MockerReplayError as exc:
        lines = str(exc).splitlines()
        return GoldenResult(name, Status.UNREADABLE, lines[0], notes=tuple(lines[1:]))


def _checked(folder: GoldenFolder, name: str, timing_model: TimingCallable | None) -> GoldenResult:
    golden = folder.read(name)
    manifest, where = golden.manifest, str(folder.place(name) / MANIFEST)
    if manifest.event_schema != EVENT_SCHEMA:
        reason = f"recorded under {manifest.event_schema}, this version writes {EVENT_SCHEMA}"
        return GoldenResult(name, Status.OTHER_SCHEMA, f"{reason}; mocker-replay golden update {name} records it anew")
    trace = trace_path(manifest, folder.path, where)

    def run(log: Path | None = None) -> FreshRun:
        # Anew each time: a timing model of the user's may have a memory.
        config, options = settings_of(manifest, folder.path, where, timing_model)
        prefill = prefill_config_of(manifest, folder.path, where, timing_model)
        return run_fresh(
            trace, config, options, manifest.level,
            prefill=prefill, block_events=_block_events(manifest, where), log=log,
            on_header=lambda header: require_trace(manifest, header),
        )  # fmt: skip

    fresh = run()
    result = _compared(golden, fresh)
    if manifest.log.get("digest") == fresh.footer["digest"] or not manifest.log.get("stored"):
        return result
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / EVENTS
        if run(log).footer["digest"] != fresh.footer["digest"]:
            note = "two fresh runs differ from each other: something in them is not deterministic"
            return structs.replace(result, notes=(*result.notes, note))
        return _with_diff(result, manifest, folder.events(name), log)


def _block_events(manifest: Manifest, where: str) -> int:
    value = manifest.log.get("block_events")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise GoldenError(f"{where}: log.block_events: must be a whole number from 1 to 2^31-1 (got {value})")
    return value


def _compared(golden: Golden, fresh: FreshRun) -> GoldenResult:
    """Golden and fresh run by digests and figures."""
    manifest, footer = golden.manifest, fresh.footer
    name, num_events = manifest.name, footer["events"]
    notes = () if manifest.program == __version__ else (f"recorded by {manifest.program}, this is {__version__}",)
    end = _end_differences(manifest, footer)
    summary = _summary_differences(golden.summary, fresh.summary, manifest.tolerances)
    differs = manifest.log.get("digest") != footer["digest"]
    block = first_other_block(golden.blocks, fresh.blocks, max(num_events, manifest.log.get("events", 0)))
    if not differs and not end and not summary:
        return GoldenResult(name, Status.SAME, f"{num_events:,} events", num_events, notes)
    if differs and block is None:
        raise GoldenError(f"{name}: the digest of its manifest is none of its blocks': the golden was changed by hand")
    if block is not None and differs:
        reason = f"events {block.seq:,} to {block.last_seq:,} differ first"
    elif end:
        reason = f"the same events, but {end[0].field} was {end[0].a} and is {end[0].b}"
    else:
        reason = f"the same events, but another summary: {', '.join(found.field for found in summary[:3])}"
    return GoldenResult(
        name, Status.DIFFERS, reason, num_events, notes, end, summary, block if differs else None,
        has_log=bool(manifest.log.get("stored")),
    )  # fmt: skip


def _end_differences(manifest: Manifest, footer: Mapping[str, Any]) -> tuple[FieldDifference, ...]:
    """Fields of the footer that differ, its digest aside."""
    fields = [name for name in footer if name not in ("event", "digest")]
    return tuple(
        FieldDifference(name, manifest.log.get(name), footer[name])
        for name in fields
        if manifest.log.get(name) != footer[name]
    )


def _summary_differences(
    golden: Mapping[str, Any], fresh: Mapping[str, Any], tolerances: Mapping[str, float]
) -> tuple[FieldDifference, ...]:
    return tuple(
        found
        for found in field_differences(golden, fresh)
        if not is_close(found.a, found.b, tolerances.get(found.field))
    )


def _with_diff(result: GoldenResult, manifest: Manifest, stored: Path, fresh: Path) -> GoldenResult:
    """The first event that differs, from the stored log.

    Raises:
        GoldenError: the stored log is not the recorded one.
    """
    try:
        with EventLogReader(stored) as log:
            digest = log.verify()["digest"]
        if digest != manifest.log.get("digest"):
            raise GoldenError(f"{stored}: is not the log that {manifest.name} recorded: its digest is another one")
        return structs.replace(result, diff=diff_logs(stored, fresh))
    except LogError as exc:
        raise GoldenError(str(exc)) from None


# -- update ------------------------------------------------------------------------------------------


class GoldenUpdate(Struct, frozen=True):
    """What an update changes, or would change."""

    result: GoldenResult  # the golden as it was, against the new one
    is_new: bool  # there is something to write
    written: bool
    is_failed: bool = False  # the new run cannot be kept, or there is none

    @property
    def exit_code(self) -> ExitCode:
        return self.result.exit_code if self.is_failed else ExitCode.OK

    def to_mapping(self) -> dict[str, object]:
        return {**self.result.to_mapping(), "new": self.is_new, "written": self.written}


def refuse_in_ci(environment: Mapping[str, str] = os.environ) -> None:
    """A golden is blessed by a person who has read what changes.

    Raises:
        UsageError: `CI` is set.
    """
    if environment.get("CI", "").lower() not in _NO_CI:
        raise UsageError("golden update is refused where CI is set: update at your desk, read the change and commit it")


def update_golden(
    folder: GoldenFolder,
    name: str,
    *,
    with_log: bool | None = None,
    dry_run: bool = False,
    timing_model: TimingCallable | None = None,
) -> GoldenUpdate:
    """Run a golden afresh and keep what came of it, under the same settings.

    Args:
        with_log: keep the log, or keep it no longer; None leaves it as it was.
        dry_run: only tell what would change.

    Raises:
        UsageError: `CI` is set, or the run is refused.
        GoldenError: no such golden, or a manifest that cannot be read.
        InvariantError: the run stood still or lost a request; nothing is written.
        OutputError: a file cannot be written.
    """
    refuse_in_ci()
    manifest, where = folder.read_manifest(name), str(folder.place(name) / MANIFEST)
    config, options = settings_of(manifest, folder.path, where, timing_model, any_profile=True)
    prefill = prefill_config_of(manifest, folder.path, where, timing_model, any_profile=True)
    trace = trace_path(manifest, folder.path, where)
    stored = bool(manifest.log.get("stored"))
    keeps_log = stored if with_log is None else with_log
    with tempfile.TemporaryDirectory(prefix=".update-", dir=folder.path) as scratch:
        log = Path(scratch) / EVENTS
        kept = log if keeps_log or stored else None
        fresh = run_fresh(trace, config, options, manifest.level, prefill=prefill, log=kept)
        result = _changes(folder, manifest, fresh, log if stored else None)
        new = golden_of(
            folder, name, trace, config, fresh,
            prefill=prefill, level=manifest.level, with_log=keeps_log, tolerances=manifest.tolerances,
        )  # fmt: skip
        is_new = result.status != Status.SAME or new.manifest != manifest
        if dry_run or not is_new:
            return GoldenUpdate(result, is_new, False)
        if keeps_log:
            os.replace(log, folder.events(name))
        folder.write(new)
        if not keeps_log:
            folder.events(name).unlink(missing_ok=True)
    return GoldenUpdate(result, True, True)


def update_or_tell(folder: GoldenFolder, name: str, **settings: Any) -> GoldenUpdate:
    """Update one of several goldens; what stands in its way is told, and the others are updated all the same."""
    done: list[GoldenUpdate] = []

    def work() -> GoldenResult:
        done.append(update_golden(folder, name, **settings))
        return done[0].result

    result = guarded(name, work)
    return done[0] if done else GoldenUpdate(result, is_new=False, written=False, is_failed=True)


def _changes(folder: GoldenFolder, manifest: Manifest, fresh: FreshRun, log: Path | None) -> GoldenResult:
    """The golden as it was against the fresh run; an old one that is not whole has nothing to compare."""
    name = manifest.name
    notes = []
    if manifest.event_schema != EVENT_SCHEMA:
        notes.append(f"the schema was {manifest.event_schema} and is {EVENT_SCHEMA}")
    try:
        require_trace(manifest, fresh.header)
    except OtherInput as exc:
        notes.append(str(exc))
    try:
        golden = folder.read(name)
        if manifest.log.get("block_events") != BLOCK_EVENTS:
            golden = structs.replace(golden, blocks=())
        result = _compared(golden, fresh)
        if log is not None and manifest.log.get("digest") != fresh.footer["digest"]:
            result = _with_diff(result, manifest, folder.events(name), log)
    except GoldenError as exc:
        result = GoldenResult(name, Status.UNREADABLE, str(exc), fresh.footer["events"])
    return structs.replace(result, notes=(*notes, *result.notes))
