"""From what a user gives (JSON text, a file, a mapping, single overrides) to a validated EngineConfig."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mocker_replay.config import schema
from mocker_replay.config.decimals import read_again, read_json_number
from mocker_replay.config.engine import EngineConfig, build
from mocker_replay.config.origin import Origin, json_keys, nearest
from mocker_replay.config.shape import shape
from mocker_replay.errors import ConfigError, Fault, UsageError

_TEXT_NAME = "engine config"


def load_engine_config(
    source: str | Path | Mapping[str, Any] | EngineConfig | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    override_names: Mapping[str, str] | None = None,
) -> EngineConfig:
    """Read and validate an engine configuration.

    Args:
        source: JSON text (it begins with a brace), the path of a JSON or TOML file, a mapping, or None for defaults.
        overrides: single keys of `engine` or beside it; they win over `source`.
        override_names: how each override is called in an error message, such as `--block-size`.

    Raises:
        ConfigError: every fault, the one the reference would name first.
    """
    document, origin = read_document(source)
    if overrides:
        document, origin = overridden(document, origin, overrides, override_names or {})
    return engine_config_of(document, origin)


def engine_config_of(document: object, origin: Origin) -> EngineConfig:
    """The configuration that a document says.

    Raises:
        ConfigError: every fault, the one the reference would name first.
    """
    return build(shape(document, origin))


def read_document(source: str | Path | Mapping[str, Any] | EngineConfig | None) -> tuple[object, Origin]:
    """What a source holds, not yet looked at, and where it came from; see `load_engine_config`.

    Raises:
        ConfigError: there is no such file, or it is no document.
    """
    if source is None:
        return {}, Origin(_TEXT_NAME)
    if isinstance(source, EngineConfig):
        document = source.to_mapping()
        document["engine"]["timing_model"] = source.timing_model  # type: ignore[index]
        return document, Origin(_TEXT_NAME)
    if isinstance(source, Mapping):
        return _as_read(source), Origin(_TEXT_NAME)
    if isinstance(source, str) and source.lstrip()[:1] in ("{", "["):
        return _parse_json(source, _TEXT_NAME)
    return _read_file(Path(source))


def _as_read(value: object) -> Any:
    """Numbers of a Python mapping as the reference gets them: it writes the mapping as JSON and reads that."""
    if isinstance(value, float):
        return read_again(float(value))
    if isinstance(value, Mapping):
        return {key: _as_read(item) for key, item in value.items()}
    return [_as_read(item) for item in value] if isinstance(value, list | tuple) else value


def _read_file(path: Path) -> tuple[object, Origin]:
    name = str(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as exc:
        raise _refuse(name, f"is not UTF-8 at byte {exc.start}") from None
    except FileNotFoundError:
        raise _refuse(name, "no such file (JSON text would begin with a brace)") from None
    except (OSError, ValueError) as exc:
        raise _refuse(name, f"cannot be read: {getattr(exc, 'strerror', None) or exc}") from None
    return _parse_toml(text, name) if path.suffix.lower() == ".toml" else _parse_json(text, name)


def _parse_json(text: str, name: str) -> tuple[object, Origin]:
    try:
        document = json.loads(text, parse_float=read_json_number)
    except json.JSONDecodeError as exc:
        raise _refuse(name, f"not valid JSON: {exc.msg}, column {exc.colno}", exc.lineno) from None
    except RecursionError:
        raise _refuse(name, "not valid JSON: nested too deep") from None
    except ValueError as exc:  # a whole number with thousands of digits
        raise _refuse(name, f"not valid JSON: {exc}") from None
    keys = list(json_keys(text))
    twice = [Fault(name, line, key, "", "key given twice") for key, line, again in keys if again]
    if twice:
        raise ConfigError.of(twice)
    return document, Origin(name, {key: line for key, line, _ in keys} if "\n" in text.strip() else {})


def _parse_toml(text: str, name: str) -> tuple[object, Origin]:
    import tomllib

    try:
        return tomllib.loads(text, parse_float=_toml_float), Origin(name)
    except tomllib.TOMLDecodeError as exc:
        raise _refuse(name, f"not valid TOML: {exc}") from None


def _toml_float(text: str) -> float:
    plain = text.replace("_", "").lstrip("+")
    return float(plain) if plain.lstrip("-") in ("inf", "nan") else read_json_number(plain)


def overridden(
    document: object, origin: Origin, overrides: Mapping[str, object], names: Mapping[str, str]
) -> tuple[object, Origin]:
    """A copy of the document in which the overrides stand; the paths they set are then named by their flags."""
    if not isinstance(document, Mapping) or not isinstance(document.get("engine", {}), Mapping):
        return document, origin  # its shape is refused anyway
    top = dict(document)
    engine = dict(top.get("engine", {}))
    paths = {}
    for key, given in overrides.items():
        value = _as_read(given)
        if key in schema.ENGINE:
            for spelled in [alias for alias, known in schema.ENGINE_ALIASES.items() if known == key]:
                engine.pop(spelled, None)
            engine[key] = value
            paths[f"engine.{key}"] = names.get(key, "")
        elif key in schema.SIBLINGS:
            top[key] = value
            paths[key] = names.get(key, "")
        else:
            near = nearest(key, [*schema.ENGINE, *schema.SIBLINGS])
            raise UsageError(f"override {key}: unknown key" + (f"; did you mean {near}?" if near else ""))
    top["engine"] = engine
    return top, Origin(origin.name, origin.lines, paths)


def overlaid(under: object, under_origin: Origin, over: object, over_origin: Origin) -> tuple[object, Origin]:
    """One document over another: its keys win, under `engine` and `dynamo` one by one.

    A fault in a value from below is told where that was given.
    """
    if not isinstance(under, Mapping) or not isinstance(over, Mapping):
        return over, over_origin  # what is no mapping is refused anyway
    merged = {**under, **over}
    kept = {key for key in under if key not in over}
    for section in ("engine", "dynamo"):
        below, above = under.get(section), over.get(section)
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            merged[section] = {**below, **above}
            kept |= {f"{section}.{key}" for key in below if key not in above}
        elif isinstance(below, Mapping) and section not in over:
            kept |= {f"{section}.{key}" for key in below}
    places = {}
    for path in sorted(kept, key=str):
        line = under_origin.lines.get(path, 0)
        where = f"{under_origin.name}:{line}" if line else under_origin.name
        places[str(path)] = under_origin.overrides.get(path) or f"{where}: {path}"
    return merged, Origin(over_origin.name, over_origin.lines, places)


def _refuse(name: str, rule: str, line: int = 0) -> ConfigError:
    return ConfigError.of([Fault(name, line, "", "", rule)])
