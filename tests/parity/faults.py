"""Which class of error an input the reference refuses must end in here.

The reference's texts are not ours; what counts is that the same input is refused, as a fault of the same part
of the input, and at the same line of the trace where the reference names one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# The first pattern that matches the reference's message decides.
CLASSES: tuple[tuple[str, str], ...] = (
    (r"failed to parse line (?P<line>\d+)", "TraceError"),
    (r"failed to parse <PATH>:(?P<line>\d+)", "TraceError"),
    (r"Weka|depends on (later|unknown) request|unknown parent session|must be nonempty|duration must be", "TraceError"),
    (r"does not match embedded|mixed replay|cannot mix requests|missing output_tokens|no request_end", "TraceError"),
    (r"trace line (?P<line>\d+)", "TraceError"),
    (r"session request_(?P<line>\d+)\b", "TraceError"),
    (r"must have a positive input_length", "TraceError"),
    (r"did not contain any requests", "TraceError"),
    (r"source_play_ordinal|in play \S+ depends on|cannot depend on itself|cycle detected", "TraceError"),
    (r"agentic Mooncake (version|schema|source)", "TraceError"),
    (r"requires exactly one trace file", "UsageError"),
    (r"offline replay only supports aggregated workers", "UsageError"),
    (r"trace_block_size must be", "UsageError"),
    (r"engine\.|num_gpu_blocks|block_size must be", "ConfigError"),
    (r"", "UsageError"),
)


@dataclass(frozen=True)
class ExpectedFault:
    error_class: str
    line: int | None  # 1-based line of the trace, where the reference names one


def expected_fault(message: str, trace_format: str = "mooncake") -> ExpectedFault:
    """The class and the line; of events the reference often counts its own rows, not lines of the file."""
    for pattern, error_class in CLASSES:
        match = re.search(pattern, message)
        if match:
            groups = match.groupdict()
            is_line = bool(groups.get("line")) and (trace_format != "dynamo" or "<PATH>:" in message)
            return ExpectedFault(error_class, int(groups["line"]) if is_line else None)
    raise AssertionError("the last pattern matches everything")
