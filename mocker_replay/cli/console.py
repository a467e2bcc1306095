"""Words for people: errors, warnings, and the console of the summary. Decides form, never content."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mocker_replay.errors import MockerReplayError

if TYPE_CHECKING:
    from rich.console import Console

SUMMARY_WIDTH = 100  # columns where the output is not a terminal
# Control characters, separators of lines, marks that turn text round, bytes of a path that are no text.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_RED = "31"
_YELLOW = "33"


def plain(text: str) -> str:
    """Text that somebody else has chosen, a name or a path: one line, and nothing in it that a terminal would obey."""
    return _UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def complain(exc: MockerReplayError) -> None:
    """Print an error; each of several faults is a line of its own that says `error:`."""
    faults = getattr(exc, "faults", ())
    lines = [str(fault) for fault in faults] or str(exc).splitlines() or [type(exc).__name__]
    for at, line in enumerate(lines):
        _say(f"{_label('error', _RED)} {plain(line)}" if faults or at == 0 else plain(line))
    omitted = getattr(exc, "omitted", 0)
    if omitted:
        _say(f"hint: {omitted} further faults are not listed")
    hint = getattr(exc, "hint", "")
    if hint:
        _say(f"hint: {plain(hint)}")


def warn(warnings: Iterable[str]) -> None:
    """Print warnings, one a line."""
    for text in warnings:
        _say(f"{_label('warning', _YELLOW)} {text}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _label(word: str, colour: str) -> str:
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return f"\x1b[1;{colour}m{word}:\x1b[0m" if coloured else f"{word}:"


def summary_console(*, on_stderr: bool) -> Console:
    """A Rich console for the summary: colours in a terminal, plain text of fixed width elsewhere."""
    from rich.console import Console

    stream = sys.stderr if on_stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else SUMMARY_WIDTH, highlight=False)
