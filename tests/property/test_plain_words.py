"""Words read plainly are the words as Typer reads them, for every verb; what is not plain is left to Typer."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay.cli.app import VERBS
from mocker_replay.cli.command import command_of, subverb
from mocker_replay.cli.plain_words import read_plainly

VALUES = ("0", "7", "007", "1.5", "1e3", "-1", "+3", "1_000", " 5", "5.", ".5", "inf", "auto", "", "-", "--", "a=b",
          "é", "9" * 18, "9" * 19, "123456789.123456789", "true", "\u0663", "a\nb", "none", "--quiet")  # fmt: skip


def functions() -> dict[str, Callable[..., Any]]:
    """Every verb and every verb's verb by name."""
    found = {}
    for verb in VERBS:
        module = importlib.import_module(f"mocker_replay.cli.{verb}")
        if hasattr(module, "SUBVERBS"):
            found |= {f"{verb} {name}": subverb(module, name) for name in module.SUBVERBS}
        else:
            found[verb] = getattr(module, verb)
    return found


FUNCTIONS = functions()


def read_by_typer(function: Callable[..., Any], words: list[str]) -> dict[str, Any] | None:
    """What Typer would call the function with; None when it refuses the words."""
    caught: list[dict[str, Any]] = []

    def catch(**values: Any) -> int:
        caught.append(values)
        return 0

    signature = inspect.signature(function, eval_str=True)
    catch.__signature__ = signature  # type: ignore[attr-defined]
    catch.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    try:
        command_of(catch, "verb").main(list(words), prog_name="verb", standalone_mode=False)
    except Exception as exc:
        if not hasattr(exc, "format_message"):
            raise
        return None
    return caught[0] if caught else None


def require_equal(plain: dict[str, Any], typed: dict[str, Any] | None) -> None:
    assert typed is not None
    assert plain.keys() == typed.keys()
    for name, value in plain.items():
        if name == "ctx":
            assert value.params == typed[name].params
        else:
            assert (type(value), value) == (type(typed[name]), typed[name]), name


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[str]]:
    verb = draw(st.sampled_from(sorted(FUNCTIONS)))
    options = [word for p in command_of(FUNCTIONS[verb], verb).params for word in (*p.opts, *p.secondary_opts)
               if word.startswith("-")]  # fmt: skip
    words: list[str] = []
    for _ in range(draw(st.integers(0, 5))):
        option = draw(st.sampled_from([*options, "--quiett", "-q", "-h", "--"]))
        value = draw(st.sampled_from(VALUES))
        words += draw(
            st.sampled_from(([option], [option, value], [f"{option}={value}"], [option, "7"], ["trace.jsonl"]))
        )
    return verb, words + draw(st.sampled_from(([], ["trace.jsonl"], ["a", "b"])))


@settings(max_examples=300)
@given(calls())
def test_read_plainly_is_read_by_typer(call: tuple[str, list[str]]) -> None:
    verb, words = call
    plain = read_plainly(FUNCTIONS[verb], words)
    if plain is not None:
        require_equal(plain, read_by_typer(FUNCTIONS[verb], words))


@pytest.mark.parametrize("words", [
    ["trace.jsonl"],
    ["trace.jsonl", "--quiet"],
    ["a.jsonl", "b.jsonl", "--json", "-q"],
    ["--num-workers=4", "trace.jsonl", "--arrival-speedup-ratio", "2.5", "--no-enable-prefix-caching"],
    ["trace.jsonl", "--events", "-", "--event-level", "kv", "--max-sim-time-ms", "100", "--max-sim-time-ms", "7"],
    ["trace.jsonl", "--transform", "limit:rows=5", "--transform=window:from=0"],
])  # fmt: skip
def test_what_most_calls_say_is_plain(words: list[str]) -> None:
    plain = read_plainly(FUNCTIONS["run"], words)
    assert plain is not None
    require_equal(plain, read_by_typer(FUNCTIONS["run"], words))


@pytest.mark.parametrize("words", [
    [], ["trace.jsonl", "--help"], ["trace.jsonl", "--quiett"], ["trace.jsonl", "--num-workers"], ["--", "trace.jsonl"],
    ["trace.jsonl", "--num-workers", "four"], ["trace.jsonl", "--quiet=yes"], ["trace.jsonl", "--num-workers", "-1"],
    ["trace.jsonl", "--events", "--quiet"], ["trace.jsonl", "-q=1"], ["trace.jsonl", "--num-workers", "9" * 19],
])  # fmt: skip
def test_what_is_not_plain_is_left_to_typer(words: list[str]) -> None:
    assert read_plainly(FUNCTIONS["run"], words) is None
