"""Results of goldens as text for people. Decides form, never content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mocker_replay.cli.console import plain
from mocker_replay.cli.diff_text import LABEL_WIDTH, field_text, render_diff
from mocker_replay.cli.diff_text import headline as diff_headline
from mocker_replay.golden.manifest import GoldenError, Manifest
from mocker_replay.golden.result import Status

if TYPE_CHECKING:
    from mocker_replay.golden.blocks import BlockDifference
    from mocker_replay.golden.check import GoldenUpdate
    from mocker_replay.golden.result import GoldenResult

_WORDS = {
    Status.SAME: "same",
    Status.DIFFERS: "differs",
    Status.OTHER_INPUT: "other input",
    Status.OTHER_SCHEMA: "other schema",
    Status.UNREADABLE: "unreadable",
    Status.BROKEN: "broken",
}
_SUMMARY_MAX = 12


def headline(result: GoldenResult) -> str:
    """The result in one line."""
    return result.reason if result.diff is None else diff_headline(result.diff)


def render_results(results: Sequence[GoldenResult], *, quiet: bool = False) -> str:
    """All goldens, those that are the same in a line each; `quiet` leaves these out."""
    shown = [result for result in results if not quiet or result.status != Status.SAME]
    text = "".join(_block(_WORDS[result.status], result) for result in shown)
    if quiet or len(results) == 1:
        return text
    counts = Counter(_WORDS[result.status] for result in results)
    return text + f"{len(results)} goldens: " + ", ".join(f"{number} {word}" for word, number in counts.items()) + "\n"


def render_updates(updates: Sequence[GoldenUpdate], *, dry_run: bool) -> str:
    """What changes, or would."""
    text = ""
    for update in updates:
        if update.written:
            word = "updated"
        elif dry_run and update.is_new:
            word = "would change"
        else:
            word = _WORDS[update.result.status] if update.is_failed else "up to date"
        text += _block(word, update.result)
    return text


def render_list(goldens: Mapping[str, Manifest | GoldenError]) -> str:
    """A golden a line."""
    width = max(LABEL_WIDTH, *(len(name) + 2 for name in goldens))
    return "".join(f"{name:<{width}}{plain(_in_short(golden))}\n" for name, golden in goldens.items())


def _in_short(golden: Manifest | GoldenError) -> str:
    if isinstance(golden, GoldenError):
        return f"unreadable: {golden}"
    log, trace = golden.log, golden.trace
    text = f"{log['events']:,} events of level {golden.level}" + (", log stored" if log.get("stored") else "")
    return f"{text}, {trace.get('path')} ({trace.get('rows')} rows)"


def _block(word: str, result: GoldenResult) -> str:
    lines = [(word, f"{result.name}: {headline(result)}"), *_details(result)]
    return "".join(f"{label:<{LABEL_WIDTH}}{plain(text)}\n" for label, text in lines)


def _details(result: GoldenResult) -> Iterator[tuple[str, str]]:
    for at, note in enumerate(result.notes):
        yield "" if at else "note", note
    if result.diff is not None:
        # Its first line has been told; the settings are those of the golden.
        for line in render_diff(result.diff).splitlines()[1:]:
            yield line[:LABEL_WIDTH].rstrip(), line[LABEL_WIDTH:]
    elif result.block is not None:
        yield from _place(result.block, result.has_log)
    if result.diff is None:
        for at, found in enumerate(result.end):
            yield "" if at else "log", field_text(found, "golden", "now")
    # Beside the figures of a diff the same ones need not be told twice.
    shown = result.summary[:_SUMMARY_MAX] if result.diff is None else ()
    for at, found in enumerate(shown):
        yield "" if at else "summary", field_text(found, "golden", "now")
    if len(result.summary) > len(shown):
        yield "" if shown else "summary", f"{len(result.summary) - len(shown)} more figures differ; --json has them"


def _place(block: BlockDifference, has_log: bool) -> Iterator[tuple[str, str]]:
    until = "the end" if block.until_ms is None else f"{block.until_ms} ms"
    yield "block", f"{block.index}, from {block.t_ms} ms to {until}"
    if block.worker is not None:
        to = "the end" if block.until_pass is None else f"pass {block.until_pass[1]} of worker {block.until_pass[0]}"
        yield "passes", f"from pass {block.pass_id} of worker {block.worker} to {to}"
    if not has_log:
        yield "", "with the log stored (record or update --with-log) the first event would be shown, field by field"
