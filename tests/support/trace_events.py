"""A checker of trace files, after the published description of the Trace Event Format (JSON object form).

It knows the phases a timeline uses (X, b, e, C, M) and holds each event to the fields and types the description
demands of it, and slices to nest: complete events of a thread by time, asynchronous ones of an id by order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import orjson

METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
TOP_KEYS = {"traceEvents", "displayTimeUnit", "otherData", "systemTraceEvents", "stackFrames", "samples"}
KEYS = {"name", "cat", "ph", "ts", "tts", "pid", "tid", "dur", "tdur", "id", "id2", "scope", "args", "cname", "bp"}


@dataclass
class Checked:
    """What a trace file holds."""

    slices: Counter[tuple[str, str]] = field(default_factory=Counter)  # (category, name)
    counters: Counter[str] = field(default_factory=Counter)  # name
    names: dict[tuple[Any, ...], str] = field(default_factory=dict)  # (pid,) or (pid, tid)
    tracks: dict[Any, list[tuple[str, int, int]]] = field(default_factory=dict)  # id -> (name, begin, end) [ns]
    args: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))  # category of X -> args


def to_ns(us: float) -> int:
    ns = round(us * 1000)
    assert abs(ns - us * 1000) < 1e-2 * max(1.0, abs(us) * 1e-9), f"finer than a nanosecond: {us}"
    return ns


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_trace(data: bytes) -> Checked:
    """AssertionError: the first thing that the format does not allow."""
    trace = orjson.loads(data)
    assert isinstance(trace, dict)
    assert set(trace) <= TOP_KEYS
    assert trace.get("displayTimeUnit", "ms") in ("ms", "ns")
    checked = Checked()
    complete: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    stacks: dict[tuple[str, Any], list[tuple[str, int, int]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        assert set(event) <= KEYS, event
        assert isinstance(event["name"], str), event
        assert isinstance(event["pid"], int), event
        assert isinstance(event.get("args", {}), dict), event
        if event["ph"] == "M":
            check_metadata(event, checked)
            continue
        assert is_number(event["ts"]), event
        assert isinstance(event["cat"], str), event
        assert event["cat"], event
        if event["ph"] == "X":
            check_complete(event, checked, complete)
        elif event["ph"] in ("b", "e"):
            check_async(event, checked, stacks)
        else:
            assert event["ph"] == "C", f"phase {event['ph']} is none this program writes"
            assert event["args"], event
            assert all(is_number(value) for value in event["args"].values()), event
            checked.counters[event["name"]] += 1
    assert not any(stacks.values()), "asynchronous slices that never end"
    for (pid, tid), spans in complete.items():
        assert (pid,) in checked.names, "a process without a name"
        assert (pid, tid) in checked.names, "a thread without a name"
        check_nesting(spans)
    return checked


def check_metadata(event: dict[str, Any], checked: Checked) -> None:
    key, kind = METADATA[event["name"]]
    assert list(event["args"]) == [key], event
    assert isinstance(event["args"][key], kind), event
    if event["name"] == "process_name":
        checked.names[event["pid"],] = event["args"]["name"]
    elif event["name"] == "thread_name":
        checked.names[event["pid"], event["tid"]] = event["args"]["name"]


def check_complete(
    event: dict[str, Any], checked: Checked, complete: dict[tuple[int, int], list[tuple[int, int]]]
) -> None:
    assert is_number(event["dur"]), event
    assert event["dur"] >= 0, event
    assert isinstance(event["tid"], int), event
    begin_ns = to_ns(event["ts"])
    complete[event["pid"], event["tid"]].append((begin_ns, begin_ns + to_ns(event["dur"])))
    checked.slices[event["cat"], event["name"]] += 1
    checked.args[event["cat"]].append(event["args"])


def check_async(
    event: dict[str, Any], checked: Checked, stacks: dict[tuple[str, Any], list[tuple[str, int, int]]]
) -> None:
    """Ends match the last begin of their id; time of an id never falls, so that sorting by time changes nothing."""
    assert ("id" in event) != ("id2" in event), event
    assert isinstance(event["id"], int | str), event
    stack, ns = stacks[event["cat"], event["id"]], to_ns(event["ts"])
    track = checked.tracks.setdefault(event["id"], [])
    if event["ph"] == "b":
        assert not stack or ns >= stack[-1][1], event
        stack.append((event["name"], ns, event["pid"]))
        checked.slices[event["cat"], event["name"]] += 1
        return
    assert stack, f"an end without a begin: {event}"
    name, begin_ns, pid = stack.pop()
    assert (name, pid) == (event["name"], event["pid"]), event
    assert ns >= begin_ns, event
    track.append((name, begin_ns, ns))


def check_nesting(spans: list[tuple[int, int]]) -> None:
    """Complete events of a thread lie one in another or one after another."""
    open_ends: list[int] = []
    for begin_ns, end_ns in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= begin_ns:
            open_ends.pop()
        assert not open_ends or end_ns <= open_ends[-1], "slices of a thread overlap"
        open_ends.append(end_ns)
