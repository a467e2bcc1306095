"""The backends this version runs, and what of the rest of the program each goes with.

A table: `mocker_replay.engines` builds the ranks of a backend, whoever runs one refuses what is not built for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Backend(Struct, frozen=True):
    """What can be asked of the engines of one backend."""

    takes_policies: bool = False  # scheduling policies other than first come, first served
    books_outputs: bool = False  # a request enters only if all that it may generate has room as well


BACKENDS: Mapping[str, Backend] = {
    "vllm": Backend(takes_policies=True),
    "trtllm": Backend(books_outputs=True),
    "sglang": Backend(),
}
_DESTINATION_FIRST = ("sglang",)


def handoff_order(backend: str) -> str:
    """Who goes first when a prompt is handed off (`ORDER_NAMES` of the core's coordinator)."""
    return "destination_first" if backend in _DESTINATION_FIRST else "source_first"
