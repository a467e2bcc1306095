"""Traces: readers, checks, synthetic workloads."""

from mocker_replay.trace.base import RowBatch, TraceFacts, TraceSource, concatenate
from mocker_replay.trace.graph import TraceGraph
from mocker_replay.trace.graph_source import GraphSource
from mocker_replay.trace.line_file import TracePath
from mocker_replay.trace.opening import FORMATS, open_trace

__all__ = [
    "FORMATS", "GraphSource", "RowBatch", "TraceFacts", "TraceGraph", "TracePath", "TraceSource", "concatenate",
    "open_trace",
]  # fmt: skip
