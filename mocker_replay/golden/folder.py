"""The folder of goldens, and the files of one.

Decides: names and places. `NAME/manifest.json`, `summary.json` and `blocks.json` make a golden; `events.jsonl.zst` is
there if the log was to be stored. The manifest is written last: a golden without one is none.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from mocker_replay.golden.blocks import Block
from mocker_replay.golden.manifest import GoldenError, Manifest, read_json
from mocker_replay.outputs import open_output

MANIFEST = "manifest.json"
SUMMARY = "summary.json"
BLOCKS = "blocks.json"
EVENTS = "events.jsonl.zst"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", re.ASCII)
_PATTERN = re.compile(r"[*?\[]")


class Golden(Struct, frozen=True):
    """One golden, read."""

    manifest: Manifest
    summary: dict[str, Any]  # without figures of the wall clock
    blocks: tuple[Block, ...]


class GoldenFolder:
    """Goldens by name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def place(self, name: str) -> Path:
        """The directory of a golden, there or not.

        Raises:
            GoldenError: no name.
        """
        if not _NAME.fullmatch(name):
            hint = "; --dir names the folder it is in" if "/" in name else ""
            raise GoldenError(f"a golden is named by letters, digits, _ . + and - (got {name!r}){hint}")
        return self.path / name

    def names(self) -> list[str]:
        """All goldens there are, in order; also those that lost their manifest.

        Raises:
            GoldenError: there is no such folder.
        """
        if not self.path.is_dir():
            raise GoldenError(f"{self.path}: no such folder of goldens; mocker-replay golden record makes one")
        files = {MANIFEST, SUMMARY, BLOCKS, EVENTS}
        try:
            return sorted(
                entry.name
                for entry in self.path.iterdir()
                if entry.is_dir() and _NAME.fullmatch(entry.name) and files & {file.name for file in entry.iterdir()}
            )
        except OSError as exc:
            raise GoldenError(f"{exc.filename}: cannot be read: {exc.strerror}") from None

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """Goldens by name or by pattern of the shell (`chat-*`), in the order asked for; all of them if none is.

        A name is taken as it is, whether there is such a golden or not.

        Raises:
            GoldenError: there is no such folder, no golden in it, or none that a pattern fits.
        """
        found: dict[str, None] = {}
        patterns = list(patterns)
        for pattern in patterns or ["*"]:
            if not _PATTERN.search(pattern):
                found[pattern] = None
                continue
            names = self.names()
            fitting = fnmatch.filter(names, pattern)
            if not names:
                raise GoldenError(f"{self.path}: holds no golden; mocker-replay golden record NAME TRACE makes one")
            if not fitting:
                raise GoldenError(f"{self.path}: no golden fits {pattern}; there are {', '.join(names)}")
            found |= dict.fromkeys(fitting)
        return list(found)

    def exists(self, name: str) -> bool:
        """Whether the place is taken, be it by a golden that is not whole."""
        place = self.place(name)
        return place.exists() and not (place.is_dir() and not any(place.iterdir()))

    def events(self, name: str) -> Path:
        """Where the log of a golden is, if it is stored."""
        return self.place(name) / EVENTS

    def read_manifest(self, name: str) -> Manifest:
        """The manifest alone.

        Raises:
            GoldenError: there is no such golden, or no manifest that this version reads.
        """
        place = self.place(name)
        if not place.is_dir():
            known = ", ".join(self.names()) if self.path.is_dir() else ""
            raise GoldenError(f"{place}: no such golden" + (f"; there are {known}" if known else ""))
        manifest = Manifest.from_json(_read(place / MANIFEST), str(place / MANIFEST))
        if manifest.name != name:
            raise GoldenError(f"{place / MANIFEST}: name: must be that of its directory (got {manifest.name})")
        return manifest

    def manifest_or_error(self, name: str) -> Manifest | GoldenError:
        """The manifest of one of several goldens, or why it cannot be had."""
        try:
            return self.read_manifest(name)
        except GoldenError as exc:
            return exc

    def read(self, name: str) -> Golden:
        """A golden.

        Raises:
            GoldenError: there is none of this name, or it is not whole.
        """
        manifest = self.read_manifest(name)
        place = self.place(name)
        summary = read_json(_read(place / SUMMARY), str(place / SUMMARY))
        document = read_json(_read(place / BLOCKS), str(place / BLOCKS))
        try:
            blocks = tuple(Block.from_mapping(block) for block in document["blocks"])
        except (LookupError, TypeError, ValueError):
            raise GoldenError(f"{place / BLOCKS}: must hold blocks, each with seq, t_ms, pass and digest") from None
        if manifest.log.get("stored") and not self.events(name).is_file():
            raise GoldenError(f"{self.events(name)}: the log of this golden is missing")
        return Golden(manifest, summary, blocks)

    def write(self, golden: Golden) -> None:
        """Write a golden but for its log; the manifest comes last.

        Raises:
            OutputError: a file cannot be written.
        """
        place = self.place(golden.manifest.name)
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        files = {
            SUMMARY: orjson.dumps(golden.summary, option=option),
            BLOCKS: blocks_json(golden.blocks, golden.manifest.log["block_events"]),
            MANIFEST: golden.manifest.to_json(),
        }
        for name, data in files.items():
            with open_output(place / name) as output:
                output.write(data)


def blocks_json(blocks: Sequence[Block], block_events: int) -> bytes:
    """One block a line, so that a diff in a repository shows which have changed."""
    lines = ",\n".join(orjson.dumps(block.to_mapping()).decode() for block in blocks)
    return f'{{"block_events":{block_events},"blocks":[\n{lines}\n]}}\n'.encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise GoldenError(f"{path}: cannot be read: {exc.strerror}; the golden is not whole") from None
