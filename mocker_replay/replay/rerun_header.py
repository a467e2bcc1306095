"""What the header of a realtime log says about the machines that made it.

Decides whether there is anything to run again. Never builds a machine.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mocker_replay.config import TimingCallable
from mocker_replay.errors import UsageError
from mocker_replay.events import EventLevel
from mocker_replay.log.reader import EventLogReader, LogError
from mocker_replay.policies import FCFS, LoadedPolicy, load_policy
from mocker_replay.replay.pools import Pools
from mocker_replay.replay.recorded_config import recorded_config

_MAX_RANKS = 65_536  # far beyond any run; each rank costs memory before the first request
_MAX_ROWS = 2**31 - 1


class RecordedRun(Struct, frozen=True):
    """The header of a realtime log, checked."""

    pools: Pools
    level: str
    clock: str  # measured or nominal
    num_rows: int  # of the trace
    trace_block_size: int  # tokens a hash id stands for
    policy: LoadedPolicy
    routed: bool  # requests were not placed in turn


def read_header(log: EventLogReader, timing_model: TimingCallable | None = None) -> RecordedRun:
    """Read what machines are to be built.

    Args:
        timing_model: the user's own model, where the header only names it; else it is imported by its name.

    Raises:
        LogError: a header that lacks something.
        UsageError: a log without readings, or a timing model or policy that cannot be had.
        ConfigError: a configuration that this version does not run.
    """
    wall = log.header.get("wall")
    if not isinstance(wall, dict):
        raise UsageError(
            f"{log.name}: a rerun needs the readings of the clock, which only a realtime run records "
            "(mocker-replay run --mode realtime --events FILE); this log is of an accelerated one"
        )
    level = log.header.get("level")
    if level not in list(EventLevel):
        raise _refuse(log, "level", level, f"must be one of {', '.join(EventLevel)}")
    return RecordedRun(
        pools=_pools(log, timing_model),
        level=str(level),
        clock=str(wall.get("clock")),
        num_rows=_whole(log, "trace", "rows", _MAX_ROWS),
        trace_block_size=_whole(log, "trace", "trace_block_size", _MAX_ROWS),
        policy=_policy(log),
        routed=_options(log).get("router_mode") == "kv_router",
    )


def _pools(log: EventLogReader, timing_model: TimingCallable | None) -> Pools:
    if "prefill_config" not in log.header:
        config = recorded_config(log.header.get("config"), log.name, timing_model)
        return Pools(config, _whole(log, "options", "num_workers", _MAX_RANKS // config.dp_size))
    prefill, decode = (
        recorded_config(log.header.get(key), log.name, timing_model, role=role, key=key)
        for key, role in (("prefill_config", "prefill"), ("config", "decode"))
    )
    most = _MAX_RANKS // 2 // max(prefill.dp_size, decode.dp_size)
    num_prefill = _whole(log, "options", "num_prefill_workers", most)
    num_workers = num_prefill + _whole(log, "options", "num_decode_workers", most)
    return Pools(decode, num_workers, prefill, num_prefill)


def _options(log: EventLogReader) -> dict[str, Any]:
    options = log.header.get("options")
    return options if isinstance(options, dict) else {}


def _policy(log: EventLogReader) -> LoadedPolicy:
    """The policy of the run; logs of before there were any name none."""
    named = _options(log)
    name, given = named.get("policy", FCFS), named.get("policy_options", {})
    if not isinstance(name, str) or not isinstance(given, dict):
        raise _refuse(log, "options.policy", name, "must be the name of a policy with its options")
    place = f"{log.name}:1: options"
    return load_policy(name, given, where=f"{place}.policy", where_options=f"{place}.policy_options")


def _whole(log: EventLogReader, group: str, field: str, largest: int) -> int:
    section = log.header.get(group)
    value = section.get(field) if isinstance(section, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise _refuse(log, f"{group}.{field}", value, f"must be a whole number from 1 to {largest}")
    return value


def _refuse(log: EventLogReader, field: str, value: object, rule: str) -> LogError:
    return LogError(f"{log.name}:1: {field}: {rule} (got {value})")
