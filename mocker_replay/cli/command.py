"""How a verb becomes a command: its options are read by Typer, its help is plain text under headings."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import typer

from mocker_replay.cli.app import PROGRAM
from mocker_replay.cli.plain_words import read_plainly
from mocker_replay.errors import ClosedPipe, ExitCode, UsageError

_CONTEXT = {"help_option_names": ["-h", "--help"]}


class GroupedCommand(typer.core.TyperCommand):
    """A command whose help lists the options under the headings of their `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """One section for each heading, in the order in which they first appear."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                heading = getattr(param, "rich_help_panel", None) or default
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def run_verb(verb: str, argv: list[str]) -> int:
    """Run the function `verb` of the module `mocker_replay.cli.<verb>`; it returns its exit code, or None for 0.

    A module with SUBVERBS has a function for each of these instead.

    Raises:
        UsageError: what the option parser refuses.
        MockerReplayError: whatever the verb raises.
    """
    module = importlib.import_module(f"mocker_replay.cli.{verb}")
    subverbs: Mapping[str, str] | None = getattr(module, "SUBVERBS", None)
    if subverbs is None:
        return run_function(getattr(module, verb), verb, argv)
    if not argv or argv[0] in ("-h", "--help"):
        (sys.stdout if argv else sys.stderr).write(_group_overview(verb, subverbs))
        return int(ExitCode.OK if argv else ExitCode.USAGE)
    if argv[0] not in subverbs:
        near = difflib.get_close_matches(argv[0], subverbs, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{verb} has no verb {argv[0]}{meant}\nhint: {PROGRAM} {verb} --help")
    return run_function(subverb(module, argv[0]), f"{verb} {argv[0]}", argv[1:])


def subverb(module: ModuleType, name: str) -> Callable[..., Any]:
    """The function of a verb's verb; one that is called like a built-in function has an underscore behind its name."""
    function: Callable[..., Any] = getattr(module, f"{name}_", None) or getattr(module, name)
    return function


def _group_overview(verb: str, subverbs: Mapping[str, str]) -> str:
    lines = "".join(f"  {name:<8}{line}\n" for name, line in subverbs.items())
    return (
        f"Usage: {PROGRAM} {verb} VERB ...\n\nVerbs:\n{lines}\n  {PROGRAM} {verb} VERB --help tells more about each.\n"
    )


def command_of(function: Callable[..., Any], verb: str) -> Any:
    """The command that reads its words by the signature of `function`."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(verb, cls=GroupedCommand, context_settings=_CONTEXT)(function)
    return typer.main.get_command(single)


def run_function(function: Callable[..., Any], verb: str, argv: list[str]) -> int:
    """Read `argv` by the signature of `function` and call it."""
    plain = read_plainly(function, argv)
    try:
        if plain is not None:
            return int(function(**plain) or 0)
        command = command_of(function, verb)
        return int(command.main(argv, prog_name=f"{PROGRAM} {verb}", standalone_mode=False) or 0)
    except SystemExit:  # the answer of Rich and Typer to a pipe closed by its reader
        raise ClosedPipe from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as exc:
        # The parser's errors have no base class of their own that all versions of Typer export.
        if not hasattr(exc, "format_message"):
            raise
        raise UsageError(f"{exc.format_message()}\nhint: {PROGRAM} {verb} --help") from None
