"""Traces: readers, checks, synthetic workloads."""

from mocker_replay.trace.base import RowBatch, TraceFacts, TraceSource, concatenate
from mocker_replay.trace.line_file import TracePath
from mocker_replay.trace.opening import FORMATS, open_trace

__all__ = ["FORMATS", "RowBatch", "TraceFacts", "TracePath", "TraceSource", "concatenate", "open_trace"]
