"""The part of `mocker-replay check` that writes a repaired copy.

It decides what is told of repairs and where the copy goes; the repairs are `mocker_replay.trace.repair`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from mocker_replay.cli.console import plain
from mocker_replay.cli.reading import open_by_flags
from mocker_replay.errors import Fault, UsageError

if TYPE_CHECKING:
    from mocker_replay.trace.base import TraceFacts
    from mocker_replay.trace.check import Pool, TraceProfile
    from mocker_replay.trace.repair import Repaired
    from mocker_replay.trace.repair_row import Fix

_FIX_FLAG: Final = "--fix"
_MAX_TOLD: Final = 100


def fix_faults(traces: list[str], given: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with the flags of a repair."""
    out = given["fix"]
    if out is None:
        if given["fix_drop"]:
            yield Fault("--fix-drop", 0, "", "", f"is only of use with {_FIX_FLAG}")
        return
    if len(traces) > 1:
        yield Fault(_FIX_FLAG, 0, "", "", "repairs one file at a time")
    if given["transform"]:
        yield Fault(_FIX_FLAG, 0, "", "", "repairs rows as they are: --transform belongs to mocker-replay convert")
    if out == "-" and given["json"]:
        yield Fault("--json", 0, "", "", f"standard output is already taken by {_FIX_FLAG}")


def write_repaired(
    traces: list[str], given: Mapping[str, Any], pool: Pool | None
) -> tuple[Repaired, TraceFacts, TraceProfile]:
    """Repair the trace, read the copy as any trace, and put it where it was asked for.

    Raises:
        TraceError: faults that are left; nothing is written.
    """
    from mocker_replay.log.compression import open_encoder
    from mocker_replay.outputs import open_output, refuse_overwriting
    from mocker_replay.trace.check import profile_trace
    from mocker_replay.trace.mooncake import MooncakeTrace

    out = given["fix"]
    refuse_overwriting(_FIX_FLAG, out, {"the trace": traces[0]})
    with open_by_flags(traces, given) as source:
        if not isinstance(source, MooncakeTrace):
            raise UsageError(f"{_FIX_FLAG} repairs Mooncake rows only; convert the trace, then check the copy")
        repaired = source.repaired(drop=given["fix_drop"])
    text = repaired.text()
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as scratch:
        scratch.write(text)
        scratch.flush()
        with open_by_flags(scratch.name, {**given, **_STATED_NO_MORE}) as copy:
            facts, profile = copy.scan(), profile_trace(copy, pool)
    with open_output(out) as sink:
        encoder = open_encoder(sink, out)
        encoder.write(text)
        encoder.close()
    name = "<stdout>" if out == "-" else os.path.basename(out)
    return repaired, structs.replace(facts, path=out, name=name), profile


# The copy says itself what had to be stated of the trace.
_STATED_NO_MORE: Final = {
    "timestamp_unit": "ms",
    "missing_timestamps": "refuse",
    "surplus_hash_ids": "refuse",
    "missing_hash_ids": "refuse",
}


def tell_fixes(traces: list[str], out: str, repaired: Repaired) -> None:
    """The repairs on standard error, the first ones line by line."""
    fixes = repaired.fixes
    shown = "<stdin>" if traces == ["-"] else plain(traces[0])
    for fix in fixes[:_MAX_TOLD]:
        print(f"fixed: {shown}:{plain(str(fix))}", file=sys.stderr)
    if len(fixes) > _MAX_TOLD:
        print(f"hint: {len(fixes) - _MAX_TOLD:,} further repairs are not listed; --json lists all", file=sys.stderr)
    place = "standard output" if out == "-" else plain(out)
    repairs = "nothing to repair" if not fixes else f"{len(fixes):,} repair{'s' if len(fixes) > 1 else ''}"
    print(f"wrote {place}: {repairs}", file=sys.stderr, flush=True)


def listed(fixes: Sequence[Fix]) -> list[dict[str, object]]:
    """The repairs for JSON."""
    return [structs.asdict(fix) for fix in fixes]
