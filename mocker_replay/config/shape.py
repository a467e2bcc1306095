"""First look at a configuration: are its keys known and its values of the right type?

Walks the document in its own order and lists every fault; missing keys get their defaults. What a value of the
right type must fulfil is not decided here but in `rules`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping

from msgspec import Struct, field

from mocker_replay.config import schema
from mocker_replay.config.decimals import U64_MAX, read_json_number
from mocker_replay.config.origin import ABSENT, Origin, nearest
from mocker_replay.config.schema import INTEGER_LIMITS, Key, Kind
from mocker_replay.config.timing import TimingModel, read_timing_model
from mocker_replay.errors import Fault

_CHILDREN: Mapping[str, Mapping[str, Key]] = {
    "engine": schema.ENGINE,
    "engine.sglang": schema.SGLANG,
    "engine.trtllm": schema.TRTLLM,
    "engine.native_host_offload": schema.HOST_OFFLOAD,
    "dynamo": schema.DYNAMO,
    "dynamo.reasoning": schema.REASONING,
}


class Shaped(Struct):
    """A document after the first look. `values` has a value of the right type at every known path."""

    origin: Origin
    values: dict[str, object] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    faulty: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def refuse(self, path: str, value: object, rule: str) -> None:
        """Note a fault; rules that need `path` are then left out."""
        self.faults.append(self.origin.fault(path, value, rule))
        self.faulty.add(path)


def shape(document: object, origin: Origin) -> Shaped:
    """Look at the whole document: the options of the serving frontend first, then the keys in their order."""
    shaped = Shaped(origin)
    if not isinstance(document, Mapping):
        shaped.refuse("", document, 'the configuration must be a mapping {"engine": {...}, ...}')
        return shaped
    _section(shaped, "dynamo", document.get("dynamo", {}))
    for key, value in document.items():
        if key == "engine":
            _section(shaped, "engine", value)
        elif key in schema.SIBLINGS:
            _value(shaped, str(key), schema.SIBLINGS[key], value)
        elif key != "dynamo":
            shaped.refuse(str(key), value, _unknown(str(key), schema.TOP_LEVEL, schema.ENGINE, "belongs under engine"))
    if "engine" not in document:
        _section(shaped, "engine", {})
    for key, spec in schema.SIBLINGS.items():
        shaped.values.setdefault(key, spec.default)
    return shaped


def _section(shaped: Shaped, path: str, value: object) -> None:
    """A mapping of known keys. An empty list counts as an empty mapping, as in the reference."""
    table = _CHILDREN[path]
    if isinstance(value, list | tuple) and not value:
        value = {}
    if not isinstance(value, Mapping):
        shaped.refuse(path, value, "must be a mapping")
        value = {}
    for key, item in value.items():
        known = schema.ENGINE_ALIASES.get(key, key) if path == "engine" else key
        if known in table:
            _known(shaped, path, str(key), str(known), item)
        elif path == "engine":
            rule = _unknown(str(key), table, schema.SIBLINGS, "belongs beside engine, not in it")
            shaped.refuse(f"{path}.{key}", item, rule)
        elif path != "dynamo.reasoning":  # there the reference passes over what it does not know
            shaped.refuse(f"{path}.{key}", item, _unknown(str(key), table, {}, ""))
    _defaults(shaped, path, table, value)


def _known(shaped: Shaped, path: str, spelled: str, key: str, item: object) -> None:
    if f"{path}.{key}" in shaped.given:
        shaped.refuse(f"{path}.{spelled}", item, f"given twice, also as {key}")
        return
    _value(shaped, f"{path}.{key}", _CHILDREN[path][key], item, spelled_path=f"{path}.{spelled}")


def _defaults(shaped: Shaped, path: str, table: Mapping[str, Key], value: Mapping[object, object]) -> None:
    for key, spec in table.items():
        full = f"{path}.{key}"
        if full in shaped.given:
            continue
        if spec.required:
            shaped.refuse(full, ABSENT, "is missing")
        elif full in _CHILDREN and not spec.nullable:
            _section(shaped, full, {})
        elif spec.kind is Kind.TIMING:
            shaped.values[full] = TimingModel()
        else:
            shaped.values.setdefault(full, spec.default)


def _value(shaped: Shaped, path: str, spec: Key, value: object, spelled_path: str = "") -> None:
    """Take one value of a known key; a value of the wrong type leaves the default in place."""
    shaped.given.add(path)
    shaped.values[path] = spec.default
    if value is None and spec.nullable:
        shaped.values[path] = None
    elif spec.kind is Kind.TIMING:
        _timing(shaped, path, value)
    elif path in _CHILDREN:
        shaped.values[path] = value
        _section(shaped, path, value)
    else:
        taken = _take(spec, value)
        if taken is ABSENT:
            shaped.refuse(spelled_path or path, value, _type_rule(spec, value))
            shaped.faulty.add(path)
        else:
            shaped.values[path] = taken


def _timing(shaped: Shaped, path: str, value: object) -> None:
    model = read_timing_model(value)
    if isinstance(model, TimingModel):
        shaped.values[path] = model
        return
    shaped.values[path] = TimingModel()
    shaped.faulty.add(path)
    for key, item, rule in model:
        shaped.refuse(f"{path}.{key}" if key else path, item, rule)


def _take(spec: Key, value: object) -> object:
    """The value in our type, or ABSENT where its type is wrong."""
    kind = spec.kind
    if kind in INTEGER_LIMITS:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            return ABSENT
        whole = int(value)
        return whole if 0 <= whole <= INTEGER_LIMITS[kind] else ABSENT
    if kind is Kind.NUMBER:
        return _take_number(value)
    if kind is Kind.CHOICE:
        return value if isinstance(value, str) and value in spec.choices else ABSENT
    wanted: tuple[type, ...] = {
        Kind.FLAG: (bool,),
        Kind.TEXT: (str,),
        Kind.LIST: (list, tuple),
        Kind.SECTION: (Mapping,),
    }[kind]
    return value if isinstance(value, wanted) else ABSENT


def _take_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return ABSENT
    if not isinstance(value, numbers.Integral):
        return float(value) if math.isfinite(value) else ABSENT
    whole = int(value)
    if abs(whole) > U64_MAX**17:  # beyond any double; its digits need not be read
        return ABSENT
    number = read_json_number(str(whole))
    return number if math.isfinite(number) else ABSENT


def _type_rule(spec: Key, value: object) -> str:
    if spec.kind is not Kind.CHOICE:
        return f"must be {spec.kind.value}{' or null' if spec.nullable else ''}"
    near = nearest(value, spec.choices) if isinstance(value, str) else None
    return f"must be one of {', '.join(spec.choices)}" + (f"; did you mean {near}?" if near else "")


def _unknown(key: str, table: Mapping[str, Key] | tuple[str, ...], elsewhere: Mapping[str, Key], place: str) -> str:
    """Why a key is refused, with the name that was probably meant."""
    if key in elsewhere:
        return f"unknown key here; it {place}"
    near = schema.FOREIGN_NAMES.get(key) or nearest(key, table) or nearest(key, elsewhere)
    if near is None:
        return f"unknown key; known are {', '.join(table)}"
    where = f" (it {place})" if near not in table and near in elsewhere else ""
    return f"unknown key; did you mean {near}?{where}"
