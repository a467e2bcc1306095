"""Which files a Weka trace consists of, and how each is called.

Decides what is no source at all (symbolic links, other suffixes, nothing) and the order of the files. Reads none.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from msgspec import Struct

from mocker_replay.trace.faults import whole_file_error

_SUFFIXES: Final = (".json", ".jsonl")


class WekaFile(Struct, frozen=True):
    """One file of a trace."""

    path: str
    name: str  # within the trace: the identities of its requests depend on it

    @property
    def is_stream(self) -> bool:
        """It may hold several objects."""
        return self.name.lower().endswith(".jsonl")


def weka_files(path: str) -> list[WekaFile]:
    """The files of a trace in their order.

    Raises:
        TraceError: the path is no such file, and no directory with some.
    """
    if path == "-":
        raise whole_file_error("<stdin>", "must be a file or a directory: the names of requests depend on its name")
    try:
        mode = os.lstat(path.rstrip("/") or "/").st_mode
    except (OSError, ValueError) as exc:
        raise whole_file_error(path, f"cannot be opened: {getattr(exc, 'strerror', None) or exc}") from exc
    if stat.S_ISLNK(mode):
        raise whole_file_error(path, "must not be a symbolic link")
    if stat.S_ISDIR(mode):
        return _in_directory(path)
    if not path.lower().endswith(_SUFFIXES):
        raise whole_file_error(path, "must end in .json (one object) or .jsonl (one or more)")
    return [WekaFile(path, os.path.basename(path))]


def _in_directory(root: str) -> list[WekaFile]:
    found: list[WekaFile] = []
    left = [""]
    while left:
        folder = left.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError as exc:
            raise whole_file_error(os.path.join(root, folder), f"cannot be read: {exc.strerror}") from exc
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_symlink():
                raise whole_file_error(os.path.join(root, name), "must not be a symbolic link")
            if entry.is_dir(follow_symlinks=False):
                left.append(name)
            elif name.lower().endswith(_SUFFIXES):
                if not entry.is_file(follow_symlinks=False):
                    raise whole_file_error(os.path.join(root, name), "must be a regular file")
                found.append(WekaFile(os.path.join(root, name), name))
    if not found:
        raise whole_file_error(root, "must hold at least one file that ends in .json or .jsonl")
    return sorted(found, key=lambda file: os.fsencode(file.name))
