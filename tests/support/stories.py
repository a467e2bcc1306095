"""What happened to each request of a log, found in a plain way: all lines in memory, one request at a time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.random_logs import Log

ENDS = ("finish", "rejection", "cancellation", "failure", "cut")


def names_of(log: Log) -> list[str]:
    """Requests whose name no other row has."""
    names = Counter(event["request"] for event in log.events if event["event"] == "arrival")
    return [name for name, count in names.items() if count == 1]


def end_of(log: Log, name: str) -> dict[str, Any]:
    return next(event for event in log.events if event["event"] in ENDS and event["request"] == name)


def arrival_of(log: Log, name: str) -> dict[str, Any]:
    return next(event for event in log.events if event["event"] == "arrival" and event["request"] == name)


def passes_of(log: Log, name: str) -> tuple[set[int], set[int]]:
    """Numbers of the passes that ended and gave it a token (level tokens), and that computed prompt tokens for it."""
    worker = arrival_of(log, name)["worker"]
    emitting: set[int] = set()
    computing: set[int] = set()
    number, computes, gone = -1, False, False
    for event in log.events:
        if event.get("worker") == worker and event["event"] == "pass_start":
            number = event["pass"]
            ranks = [rank for rank in event["ranks"] if name not in rank.get("preempted", ())]
            computes = any(request == name for rank in ranks for request, _ in rank.get("prefill", ()))
        elif event.get("worker") == worker and event["event"] == "pass_end" and computes and not gone:
            computing.add(number)
        elif event.get("request") == name and event["event"] == "tokens":
            emitting.add(number)
        gone |= event["event"] == "cancellation" and event["request"] == name
    return emitting, computing
