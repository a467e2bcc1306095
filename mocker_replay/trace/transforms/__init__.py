"""Transforms: a trace cut, sampled, scaled or renumbered on its way into a replay (docs/transforms.md)."""

from mocker_replay.trace.transforms.parse import FORMS, read_transforms
from mocker_replay.trace.transforms.pipeline import TransformedTrace, pipeline_digest, transformed
from mocker_replay.trace.transforms.step import Incoming, Step

__all__ = [
    "FORMS", "Incoming", "Step", "TransformedTrace", "pipeline_digest", "read_transforms", "transformed",
]  # fmt: skip
