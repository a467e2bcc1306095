"""The manifest of a golden: which run it is, and what came of it.

Decides: form and schema of the file, and for which figures of a summary a tolerance may be set. Everything modelled is
exact; only figures computed from modelled ones by rounding sums may differ in their last bits, and only where the
manifest says so by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct, structs

from mocker_replay.errors import UsageError

GOLDEN_SCHEMA = "mocker-replay.golden/1"
# Means, deviations, rates and shares: sums and quotients, in which a last bit may depend on a library.
_DERIVED = re.compile(
    r"(mean|std)_\w+|\w+_throughput_(rps|tok_s)|\w+_ratio|gpu_hours|\w+_worker_seconds|avg_accept_length", re.ASCII
)
_TEXTS = ("name", "program", "event_schema", "level")
_SECTIONS = ("trace", "config", "options", "log", "tolerances")
# Only goldens with two pools have these; one without has the bytes it always had.
_OF_POOLS = ("prefill_config", "prefill_profile")


class GoldenError(UsageError):
    """A golden that cannot be read, or is none; the message says which and why."""


class Manifest(Struct, frozen=True):
    """What `manifest.json` holds."""

    name: str
    program: str  # version that recorded it
    event_schema: str
    level: str
    trace: Mapping[str, Any]  # path relative to the goldens' folder, and the header's section: digest, rows, ...
    config: Mapping[str, Any]  # the whole effective engine configuration; of decode workers where there are two pools
    options: Mapping[str, Any]  # of the replay
    profile: Mapping[str, Any] | None  # path and digest of the timing profile, where one was used
    log: Mapping[str, Any]  # the footer's counts and digest, `block_events`, and whether the log is stored
    tolerances: Mapping[str, float]  # figure of the summary -> relative
    prefill_config: Mapping[str, Any] | None = None  # of prefill workers
    prefill_profile: Mapping[str, Any] | None = None  # as `profile`, of prefill workers

    def to_json(self) -> bytes:
        mapping = {"schema": GOLDEN_SCHEMA, **structs.asdict(self)}
        if self.prefill_config is None:
            mapping = {key: value for key, value in mapping.items() if key not in _OF_POOLS}
        return orjson.dumps(mapping, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """The inverse of `to_json`.

        Raises:
            GoldenError: no manifest, one of another schema, or a tolerance that may not be.
        """
        mapping = read_json(text, where)
        schema = mapping.pop("schema", None)
        if schema != GOLDEN_SCHEMA:
            raise GoldenError(f"{where}: schema: this version reads {GOLDEN_SCHEMA} (got {schema})")
        fields = set(cls.__struct_fields__)
        if "prefill_config" not in mapping:
            fields -= set(_OF_POOLS)
        if mapping.keys() != fields:
            odd = sorted(mapping.keys() ^ fields)
            raise GoldenError(f"{where}: a manifest has the keys {', '.join(sorted(fields))} (check {', '.join(odd)})")
        for key in _TEXTS:
            if not isinstance(mapping[key], str):
                raise GoldenError(f"{where}: {key}: must be a text (got {mapping[key]!r})")
        for section in (*_SECTIONS, *(fields & {"prefill_config"})):
            if not isinstance(mapping[section], dict):
                raise GoldenError(f"{where}: {section}: must be an object (got {mapping[section]!r})")
        for key in ("profile", "prefill_profile"):
            if not isinstance(mapping.get(key), dict | None):
                raise GoldenError(f"{where}: {key}: must be an object or null (got {mapping[key]!r})")
        num_events = mapping["log"].get("events")
        if not isinstance(num_events, int) or isinstance(num_events, bool) or num_events < 0:
            raise GoldenError(f"{where}: log.events: must be a whole number from 0 on (got {num_events!r})")
        check_tolerances(mapping["tolerances"], where)
        return cls(**mapping)


def check_tolerances(tolerances: Mapping[str, Any], where: str) -> None:
    """Refuse a tolerance for a modelled figure, or one that is no small share.

    Raises:
        GoldenError: the first that may not be.
    """
    for name, value in tolerances.items():
        if not _DERIVED.fullmatch(name):
            raise GoldenError(
                f"{where}: tolerance {name}: only means, deviations, rates and shares of the summary may have one; "
                "everything modelled is exact"
            )
        if not isinstance(value, int | float) or isinstance(value, bool) or not (0 < value <= 1e-6):
            raise GoldenError(f"{where}: tolerance {name}: must be a share above 0 and up to 1e-6 (got {value})")


def is_close(a: object, b: object, tolerance: float | None) -> bool:
    """Whether two figures are the same, within a relative tolerance if there is one."""
    if type(a) is type(b) and repr(a) == repr(b):
        return True
    if tolerance is None or not isinstance(a, float) or not isinstance(b, float):
        return False
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=0.0)


def read_json(text: bytes, where: str) -> dict[str, Any]:
    """A file of a golden: one JSON object.

    Raises:
        GoldenError: it is none.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise GoldenError(f"{where}: not valid JSON: {exc}") from None
    if not isinstance(value, dict):
        raise GoldenError(f"{where}: must be a JSON object")
    return value
