"""`mocker-replay explain`: why one request took its time.

It decides what is printed; the parts are found by `mocker_replay.log.explain`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mocker_replay.cli.console import plain
from mocker_replay.errors import ExitCode

if TYPE_CHECKING:
    from mocker_replay.log.explanation import Explanation, Stretch

_LABEL_WIDTH: Final = 16
_LISTED: Final = 8  # passes and sharers shown as text; --json has all of them


def explain(
    log: Annotated[str, typer.Argument(help="Event log, best of level passes or above; - is standard input.")],
    request: Annotated[str, typer.Option(help="Name of the request in the log: its request_id, or r and its row.")],
    json: Annotated[bool, typer.Option("--json", help="The explanation as one JSON object.")] = False,
) -> int:
    """Say why one request of LOG took its time, in parts that add up to its latency exactly.

    The explanation goes to standard output. Exit codes: 0 explained, 2 no event log, truncated or damaged, no such
    request, or bad usage.
    """
    from mocker_replay.log.explain import explain as explain_request

    told = explain_request(log, request)
    if json:
        import orjson

        sys.stdout.write(orjson.dumps(told.to_mapping(), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write("".join(f"{label:<{_LABEL_WIDTH}}{plain(text)}\n" for label, text in _text(told)))
    return int(ExitCode.OK)


def _text(told: Explanation) -> Iterator[tuple[str, str]]:
    from mocker_replay.log.explanation import PARTS

    reason = f" ({told.reason})" if told.reason else ""
    yield "request", f"{told.request}: {told.input_tokens:,} prompt tokens, worker {told.worker} rank {told.rank}"
    yield "end", f"{told.end}{reason} with {told.output_tokens:,} of {told.asked_tokens:,} tokens"
    yield "arrival ms", _exact(told.arrival_ms)
    yield "end ms", _exact(told.end_ms)
    yield "latency ms", _exact(float(told.exact_ms))
    meanwhile: dict[str, int] = {}
    for stretch in told.stretches:
        meanwhile[stretch.part] = meanwhile.get(stretch.part, 0) + (stretch.passes_meanwhile or 0)
    total = Fraction(0)
    for part, exact_ms, count in told.parts():
        total += exact_ms
        share = f"{float(exact_ms / told.exact_ms):7.1%}" if told.exact_ms else " " * 7
        passes = f"; {meanwhile[part]:,} passes of its rank meanwhile" if meanwhile[part] else ""
        yield part, f"{_exact(float(exact_ms)):>22} {share}  {count:>5} x  {PARTS[part]}{passes}"
    verdict = "is the latency exactly" if total == told.exact_ms else "is not the latency"
    yield "sum", f"{_exact(float(total)):>22}  {verdict}"
    yield from _passes(told)
    for text, count in told.decisions.items():
        yield "policy", f"{text}, {count:,} x"
    for text in told.untold:
        yield "untold", text


def _passes(told: Explanation) -> Iterator[tuple[str, str]]:
    """The passes that computed its prompt, and with whom it shared them."""
    computing = [stretch for stretch in told.stretches if stretch.own_tokens is not None]
    for stretch in computing[:_LISTED]:
        yield f"pass {stretch.pass_number}", f"{stretch.part}, {_sharing(stretch)}"
    if len(computing) > _LISTED:
        yield "...", f"{len(computing) - _LISTED} further passes"


def _sharing(stretch: Stretch) -> str:
    others = ", ".join(f"{name} {tokens}" for name, tokens in stretch.shared_with[:_LISTED])
    if len(stretch.shared_with) > _LISTED:
        others += ", ..."
    decoding = (stretch.num_scheduled or 0) - len(stretch.shared_with) - 1
    return (
        f"{stretch.own_tokens:,} of its prompt tokens"
        + (f", beside prompt tokens of {others}" if others else "")
        + (f", {decoding} requests without prompt work" if decoding > 0 else "")
    )


def _exact(value: float) -> str:
    return repr(value)
