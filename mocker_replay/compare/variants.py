"""What a variant is: an engine configuration, and settings of its run.

Decides how a variant is put together: what its document says wins over the settings that all variants share (flags of
the command, `--engine-config`), and these win over the defaults. Finds every fault of every variant; runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field, structs

from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.config.loading import engine_config_of, overlaid, read_document
from mocker_replay.config.origin import Origin, nearest, show
from mocker_replay.errors import ConfigError, Fault, UsageError
from mocker_replay.policies import load_policy

FLAG: Final = "--variant"
# Keys of a variant's document besides those of an engine configuration.
_POLICY: Final = ("policy", "policy_options")
_KEYS: Final = ("name", *_POLICY, "options")
# Settings of a run that are no matter of a variant: a comparison is of accelerated runs, which take no samples, on the
# same rows.
_NOT_OF_A_VARIANT: Final = ("mode", "telemetry_sample_interval_ms", "transforms")
_GOALS: Final = ("sla_ttft_ms", "sla_itl_ms", "sla_e2e_ms")
_NAMED = re.compile(r"([\w.+-]+)=(.+)", re.DOTALL)


class Variant(Struct, frozen=True):
    """One thing to compare."""

    name: str
    config: EngineConfig
    options: ReplayOptions


class Shared(Struct, frozen=True):
    """What all variants have in common, where they do not say otherwise."""

    options: ReplayOptions = field(default_factory=ReplayOptions)
    document: object = field(default_factory=dict)  # engine configuration, not yet looked at
    origin: Origin = field(default_factory=lambda: Origin("engine config"))
    name_of: Callable[[str], str] = str  # how a setting of the run is called where it is shared; the flag


def read_variants(texts: Sequence[str], shared: Shared) -> tuple[Variant, ...]:
    """Variants as a user gives them: FILE, NAME=FILE, or JSON text.

    Raises:
        UsageError: every fault of every variant, and of all of them together.
    """
    faults: list[Fault] = []
    variants = []
    for number, text in enumerate(texts, 1):
        try:
            variants.append(_read(text, number, shared))
        except UsageError as exc:
            faults += exc.faults or (Fault(FLAG, 0, "", text, str(exc)),)
    if len(texts) < 2:
        faults.append(
            Fault(FLAG, 0, "", "", f"must be given for two variants or more, the baseline first ({len(texts)})")
        )
    faults += _faults_together(variants)
    if faults:
        raise UsageError.of(list(dict.fromkeys(faults)))  # what all share is told once
    return tuple(variants)


def _faults_together(variants: Sequence[Variant]) -> list[Fault]:
    faults = []
    for number, variant in enumerate(variants):
        if any(earlier.name == variant.name for earlier in variants[:number]):
            faults.append(Fault(FLAG, 0, "name", variant.name, "is given twice; NAME=FILE gives another one"))
        for goal in _GOALS:
            if getattr(variant.options, goal) != getattr(variants[0].options, goal):
                rule = f"must be the same in all variants, {variants[0].name} has {getattr(variants[0].options, goal)}"
                faults.append(Fault(variant.name, 0, f"options.{goal}", show(getattr(variant.options, goal)), rule))
    return faults


def _read(text: str, number: int, shared: Shared) -> Variant:
    name, source = _name_and_source(text)
    document, origin = _document(source, number)
    own: dict[str, Any] = {}
    if isinstance(document, Mapping):
        own = {key: document[key] for key in _KEYS if key in document}
        document = {key: value for key, value in document.items() if key not in _KEYS}
    faults: list[Fault] = []
    if name is None:
        name = _own_name(own, source, number, origin, faults)
    options = _options(own, shared, origin, faults)
    config = EngineConfig()
    try:
        config = engine_config_of(*overlaid(shared.document, shared.origin, document, origin))
        config.require_supported()
    except ConfigError as exc:
        faults += exc.faults or (Fault(origin.name, 0, "", "", str(exc)),)
    if faults:
        raise UsageError.of(faults)
    return Variant(name, config, options)


def _document(source: str, number: int) -> tuple[object, Origin]:
    """What the source holds; JSON text on the command line is called by its place there."""
    if not _is_text(source):
        return read_document(source)
    place = f"{FLAG} {number}"
    try:
        document, origin = read_document(source)
    except ConfigError as exc:
        raise UsageError.of([structs.replace(fault, file=place) for fault in exc.faults]) from None
    return document, structs.replace(origin, name=place)


def _is_text(source: str) -> bool:
    return source.lstrip()[:1] in ("{", "[")


def _name_and_source(text: str) -> tuple[str | None, str]:
    """A name given before the source; a file whose own name has a = in it is taken as it is."""
    match = _NAMED.fullmatch(text)
    if match is None or _is_text(text) or os.path.exists(text):
        return None, text
    return match[1], match[2]


def _own_name(own: Mapping[str, Any], source: str, number: int, origin: Origin, faults: list[Fault]) -> str:
    if "name" in own:
        if isinstance(own["name"], str) and own["name"].strip() and own["name"].isprintable():
            return own["name"]
        faults.append(origin.fault("name", own["name"], "must be a text"))
    return f"variant-{number}" if _is_text(source) else Path(source).stem


def _options(own: Mapping[str, Any], shared: Shared, origin: Origin, faults: list[Fault]) -> ReplayOptions:
    """Settings of the run: the variant's own over the shared ones."""
    known = [name for name in ReplayOptions.__struct_fields__ if name not in _NOT_OF_A_VARIANT]
    given = own.get("options", {})
    if not isinstance(given, Mapping):
        faults.append(origin.fault("options", given, "must be a table of settings of the run"))
        given = {}
    places = {name: f"options.{name}" for name in given}
    values = dict(given)
    for name in _POLICY:
        if name in own:
            if name in values:
                faults.append(origin.fault(name, own[name], f"given twice, also as options.{name}"))
            values[name], places[name] = own[name], name
    for name in [name for name in values if name not in known]:
        near = nearest(name, known)
        meant = f"; did you mean {near}?" if near else f"; known are {', '.join(known)}"
        faults.append(origin.fault(places[name], values.pop(name), f"unknown setting{meant}"))
    if "policy" in values:
        values.setdefault("policy_options", {})  # those of another policy are not for this one
    options = structs.replace(shared.options, **values)
    try:
        options.validate()
        where = [f"{origin.name}: {places[name]}" if name in places else shared.name_of(name) for name in _POLICY]
        load_policy(options.policy, options.policy_options, where=where[0], where_options=where[1])
    except UsageError as exc:
        for fault in exc.faults:
            if fault.file not in ReplayOptions.__struct_fields__:
                faults.append(fault)  # of the policy, which knows where it was named
            elif fault.file in places:
                place = places[fault.file]
                faults.append(Fault(origin.name, origin.lines.get(place, 0), place, fault.value, fault.rule))
            else:
                faults.append(Fault(shared.name_of(fault.file), 0, "", fault.value, fault.rule))
    return options
