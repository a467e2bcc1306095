"""Files a run writes: whole or not at all.

Decides: where bytes go, and that a target appears or changes only when its writer was closed in good order.
A regular file is written under a temporary name beside the target and renamed at the end; `-` is standard
output; a device or a pipe is written straight. Never decides what is written, and never waits for the disk (no fsync).
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn

from mocker_replay.errors import ClosedPipe, Fault, OutputError, UsageError

BUFFER_BYTES = 1 << 18
STDOUT = "-"
_NAME_LENGTH_MAX = 200  # bytes of the target's name kept in the temporary one; file systems end at 255


class Output:
    """One open output, a binary sink and a context manager: leaving it with an exception discards it.

    Errors of the system are raised as OutputError, with the target's name; what was written until then is gone.
    """

    def __init__(self, name: str, sink: IO[bytes]) -> None:
        self.name = name  # as the user wrote it
        self.closed = False
        self._sink = sink

    def write(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._sink.write(data)
        except OSError as exc:
            self._fail(exc)
        except ValueError as exc:  # the stream was closed below us
            self._fail(OSError(errno.EBADF, str(exc)))

    def flush(self) -> None:
        try:
            self._sink.flush()
        except OSError as exc:
            self._fail(exc)

    def close(self) -> None:
        """Make the output whole; from here on it is what the user sees."""
        if self.closed:
            return
        try:
            self._finish()
        except OSError as exc:
            self._fail(exc)
        self.closed = True

    def abort(self) -> None:
        """Drop what was written; a target that existed stays as it was."""
        if not self.closed:
            self.closed = True
            self._discard()

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _finish(self) -> None:
        self._sink.close()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._sink.close()

    def _fail(self, exc: OSError) -> NoReturn:
        self.abort()
        raise _output_error(self.name, exc) from exc


class _StdoutOutput(Output):
    """Standard output: never closed by us; a reader that has gone ends the run quietly."""

    def _finish(self) -> None:
        self._sink.flush()

    def _discard(self) -> None:
        pass  # what a pipe has taken cannot be taken back

    def _fail(self, exc: OSError) -> NoReturn:
        self.abort()
        if exc.errno in (errno.EPIPE, errno.EBADF):
            _point_stdout_to_nothing()
            raise ClosedPipe("standard output was closed") from exc
        raise _output_error("standard output", exc) from exc


class _RenamedOutput(Output):
    """A regular file under a temporary name until it is whole."""

    def __init__(self, name: str, sink: IO[bytes], temporary: Path, target: Path, new_parents: list[Path]) -> None:
        super().__init__(name, sink)
        self._temporary = temporary
        self._target = target
        self._new_parents = new_parents  # made for this output, outermost first

    def _finish(self) -> None:
        self._sink.close()
        os.replace(self._temporary, self._target)

    def _discard(self) -> None:
        super()._discard()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)
        _remove_empty(self._new_parents)


def open_output(path: str | os.PathLike[str]) -> Output:
    """Open an output for writing; missing parent directories are made.

    Raises:
        OutputError: the target is a directory, or cannot be created.
        ClosedPipe: the target is standard output and there is none.
    """
    name = os.fspath(path)
    if name == STDOUT:
        return _open_stdout()
    try:
        mode = _mode_of(Path(name))
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if mode is not None and not stat.S_ISREG(mode):
            # By its own name: what /dev/stdout leads to may have none.
            return Output(name, open(name, "wb", buffering=BUFFER_BYTES))
        target = Path(os.path.realpath(name))  # through links, so that the link stays one
        return _open_renamed(name, target)
    except (OSError, ValueError) as exc:  # ValueError: a name with a null byte
        raise _output_error(name, exc) from exc


def refuse_overwriting(flag: str, output: str, inputs: Mapping[str, str]) -> None:
    """An output must not take the place of what is read.

    Args:
        inputs: what is read, by what it is called.

    Raises:
        UsageError: it would.
    """
    for what, path in inputs.items():
        if STDOUT not in (output, path) and os.path.isfile(path) and os.path.realpath(output) == os.path.realpath(path):
            raise UsageError.of([Fault(flag, 0, "", "", f"{output} is already taken by {what}")])


def _open_stdout() -> Output:
    if sys.stdout is None or sys.stdout.closed:
        raise ClosedPipe("standard output is closed")
    return _StdoutOutput("standard output", sys.stdout.buffer)


def _open_renamed(name: str, target: Path) -> Output:
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # a rename would walk past the rights
    new_parents = [parent for parent in target.parents if not parent.exists()][::-1]
    stem = os.fsdecode(os.fsencode(target.name)[:_NAME_LENGTH_MAX])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _mode_of(target)  # a name too long for the file system is refused now, not by the rename after the run
        for attempt in itertools.count():
            temporary = target.with_name(f".{stem}.{os.getpid()}-{attempt}.partial")
            with contextlib.suppress(FileExistsError):
                sink = open(temporary, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115 - owned by the output
                return _RenamedOutput(name, sink, temporary, target, new_parents)
    except BaseException:
        _remove_empty(new_parents)
        raise
    raise AssertionError("unreachable")


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _remove_empty(directories: list[Path]) -> None:
    with contextlib.suppress(OSError):
        for directory in reversed(directories):
            directory.rmdir()


def _output_error(name: str, exc: OSError | ValueError) -> OutputError:
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return OutputError(f"cannot write {name}: {reason}")


def _point_stdout_to_nothing() -> None:
    """The interpreter flushes standard output when it exits; it must not find the broken pipe again."""
    with contextlib.suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, sys.stdout.fileno())
        finally:
            os.close(nothing)
