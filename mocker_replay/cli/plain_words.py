"""Words of a command line that can be read in one way only, read without the machinery of the option parser.

Most calls say plain words: known options, decimal numbers, no help. Typer reads these as well as all others, but
building its readers costs a short run a quarter of its time. Decides nothing on its own: whatever is not plain is left
to Typer, and what is read here is what Typer reads (tests/property/test_plain_words.py).
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import typer
from msgspec import Struct
from typer.models import ArgumentInfo, ParameterInfo

# What may be said of an option or argument here; one that says more is read by Typer.
_KNOWN_ATTRIBUTES = frozenset({"default", "param_decls", "metavar", "help", "rich_help_panel", "show_default"})
_READERS: Mapping[object, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    str: (re.compile(r"[^-].*|-|", re.DOTALL), str),
    int: (re.compile(r"(0|[1-9][0-9]{0,17})", re.ASCII), int),
    float: (re.compile(r"(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?", re.ASCII), float),
}


class PlainContext:
    """What a verb sees of its context: the value of every option and argument by its name."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params


class _Parameter(Struct):
    name: str
    kind: object  # the type of one value
    repeats: bool
    info: ParameterInfo
    default: Any

    @property
    def is_argument(self) -> bool:
        return isinstance(self.info, ArgumentInfo)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is said of it that this module does not know."""
        said, usual = vars(self.info), vars(type(self.info)(default=None))
        return all(said[name] == usual[name] for name in usual if name not in _KNOWN_ATTRIBUTES)

    def words(self) -> dict[str, bool]:
        """Each word that names it, and the value of a flag that is so named."""
        said = (self.info.default, *(self.info.param_decls or ()))  # within Annotated the first word stands as default
        declared = [word for word in said if isinstance(word, str)]
        if not declared:
            word = "--" + self.name.replace("_", "-")
            declared = [word if self.kind is not bool else f"{word}/--no-{word[2:]}"]
        named: dict[str, bool] = {}
        for word in declared:
            on, _, off = word.partition("/")
            named[on] = True
            if off:
                named[off] = False
        return named


class _NotPlain(Exception):
    """Typer has to read these words."""


def read_plainly(function: Callable[..., Any], argv: list[str]) -> dict[str, Any] | None:
    """Arguments for `function` from words, its context included; None when Typer has to read them."""
    try:
        return _read(function, argv)
    except _NotPlain:
        return None


def _read(function: Callable[..., Any], argv: list[str]) -> dict[str, Any]:
    parameters, context_name = _parameters_of(function)
    given = _values(parameters, argv)
    values = {p.name: given.get(p.name, p.default) for p in parameters}
    if any(value is inspect.Parameter.empty for value in values.values()):
        raise _NotPlain  # something is missing, which Typer says in its own words
    if context_name is None:
        return values
    # A context says () where a parameter that repeats was not given, and the function is told None.
    seen = {p.name: () if p.repeats and values[p.name] is None else values[p.name] for p in parameters}
    return values | {context_name: PlainContext(seen)}


def _values(parameters: list[_Parameter], argv: list[str]) -> dict[str, Any]:
    """Value of every parameter that the words name."""
    named = {word: (p, on) for p in parameters if not p.is_argument for word, on in p.words().items()}
    given: dict[str, Any] = {}
    places: list[str] = []
    words = iter(argv)
    for word in words:
        if not word.startswith("-") or word == "-":
            places.append(word)
            continue
        name, has_value, text = word.partition("=")
        if name not in named or (has_value and not name.startswith("--")):
            raise _NotPlain
        parameter, on = named[name]
        if parameter.kind is bool:
            if has_value:
                raise _NotPlain
            given[parameter.name] = on
            continue
        value = _value(parameter, text if has_value else next(words, "--"))
        given[parameter.name] = [*given.get(parameter.name, ()), value] if parameter.repeats else value
    return given | _places([p for p in parameters if p.is_argument], places)


def _value(parameter: _Parameter, text: str) -> Any:
    if parameter.kind not in _READERS or not parameter.is_plain:
        raise _NotPlain
    pattern, read = _READERS[parameter.kind]
    if not pattern.fullmatch(text):
        raise _NotPlain
    return read(text)


def _places(arguments: list[_Parameter], words: list[str]) -> dict[str, Any]:
    """Value of the arguments: one word each, or all words for the only one that repeats."""
    if len(arguments) == 1 and arguments[0].repeats and words:
        return {arguments[0].name: [_value(arguments[0], word) for word in words]}
    if len(words) > len(arguments) or any(argument.repeats for argument in arguments):
        raise _NotPlain
    return {argument.name: _value(argument, word) for argument, word in zip(arguments, words, strict=False)}


def _parameters_of(function: Callable[..., Any]) -> tuple[list[_Parameter], str | None]:
    """Options and arguments of a function in their order, and the name of its context."""
    parameters, context_name = [], None
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.annotation is typer.Context:
            context_name = parameter.name
            continue
        parameters.append(_parameter(parameter))
    return parameters, context_name


def _parameter(parameter: inspect.Parameter) -> _Parameter:
    if typing.get_origin(parameter.annotation) is not typing.Annotated:
        raise _NotPlain
    kind, info = typing.get_args(parameter.annotation)
    if isinstance(kind, types.UnionType):
        kind = next(option for option in kind.__args__ if option is not types.NoneType)
    repeats = typing.get_origin(kind) is list
    if repeats:
        (kind,) = typing.get_args(kind)
    return _Parameter(parameter.name, kind, repeats, info, parameter.default)
