"""Outputs under faults: a target is whole, or as it was before."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mocker_replay.errors import ExitCode, OutputError, UsageError
from mocker_replay.outputs import ClosedPipe, open_output, refuse_overwriting

NEEDS_DEV_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


def files_under(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_target_appears_only_when_closed(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    with open_output(target) as out:
        out.write(b"one\n")
        out.flush()
        assert not target.exists()
    assert target.read_bytes() == b"one\n"
    assert files_under(tmp_path) == ["out.jsonl"]


def test_a_failed_run_leaves_no_file(tmp_path: Path) -> None:
    def run() -> None:
        with open_output(tmp_path / "new" / "deep" / "out") as out:
            out.write(b"half")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        run()
    assert files_under(tmp_path) == []


def test_a_failed_run_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    out = open_output(target)
    out.write(b"new")
    out.abort()
    out.abort()
    assert target.read_bytes() == b"old"
    assert files_under(tmp_path) == ["out"]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"a longer old text")
    with open_output(target) as out:
        out.write(b"new")
    assert target.read_bytes() == b"new"


def test_parents_are_made_and_kept_when_used(tmp_path: Path) -> None:
    with open_output(tmp_path / "a" / "b" / "out") as out:
        out.write(b"x")
    assert files_under(tmp_path) == ["a", "a/b", "a/b/out"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with open_output(tmp_path / "link") as out:
        out.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_rights_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        open_output(tmp_path / "out").close()
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_two_outputs_of_one_target_do_not_meet(tmp_path: Path) -> None:
    first, second = open_output(tmp_path / "out"), open_output(tmp_path / "out")
    first.write(b"first")
    second.write(b"second")
    second.close()
    first.close()
    assert (tmp_path / "out").read_bytes() == b"first"
    assert files_under(tmp_path) == ["out"]


def test_a_name_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    target = tmp_path / ("ä" * 127)  # 254 bytes
    with open_output(target) as out:
        out.write(b"x")
    assert target.read_bytes() == b"x"


@pytest.mark.parametrize("name", ["a" * 300, "nul\0byte"])
def test_an_impossible_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        open_output(tmp_path / "made" / name)
    assert files_under(tmp_path) == []


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=rf"cannot write {tmp_path}: {os.strerror(errno.EISDIR)}"):
        open_output(tmp_path)


def test_a_file_as_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(OutputError, match=f"cannot write .*file/out: {os.strerror(errno.ENOTDIR)}"):
        open_output(tmp_path / "file" / "out")


def test_a_file_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everything
    with pytest.raises(OutputError, match=os.strerror(errno.EACCES)):
        open_output(target)
    assert target.read_bytes() == b"old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(OutputError, match=os.strerror(errno.EACCES)):
        open_output(tmp_path / "out")


@NEEDS_DEV_FULL
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    out = open_output("/dev/full")
    out.write(b"x" * 10)
    with pytest.raises(OutputError, match=f"cannot write /dev/full: {os.strerror(errno.ENOSPC)}") as caught:
        out.close()
    assert caught.value.exit_code is ExitCode.USAGE
    with pytest.raises(OutputError, match=os.strerror(errno.ENOSPC)), open_output("/dev/full") as out:
        out.write(b"x" * 10_000_000)


@NEEDS_DEV_FULL
def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "made" / "out"
    out = open_output(target)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, out._sink.fileno())  # the temporary file's disk is full from here on
    os.close(full)
    with pytest.raises(OutputError, match=f"cannot write {target}: {os.strerror(errno.ENOSPC)}"):
        out.write(b"x" * 10_000_000)
    assert files_under(tmp_path) == []


def test_a_device_is_written_straight() -> None:
    with open_output(os.devnull) as out:
        out.write(b"x")
    assert not Path(os.devnull).is_file()


def test_a_pipe_without_a_name_of_its_own() -> None:
    """/dev/stdout before a pipe, or what a shell puts in the place of `>(gzip)`."""
    reading, writing = os.pipe()
    with open_output(f"/dev/fd/{writing}") as out:
        out.write(b"through")
    os.close(writing)
    assert os.read(reading, 100) == b"through"
    os.close(reading)


def test_an_output_does_not_take_the_place_of_an_input(tmp_path: Path) -> None:
    log, link = tmp_path / "log", tmp_path / "link"
    log.write_bytes(b"")
    link.symlink_to(log)
    for output in (log, link):
        with pytest.raises(UsageError, match=f"--output: {output} is already taken by the log"):
            refuse_overwriting("--output", str(output), {"the log": str(log)})
    refuse_overwriting("--output", str(tmp_path / "other"), {"the log": str(log)})
    refuse_overwriting("--output", "-", {"the log": "-"})
    refuse_overwriting("--output", "/dev/null", {"the log": "/dev/null"})


def test_a_pipe_whose_reader_has_gone(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    out = open_output(fifo)
    os.close(reader)
    with pytest.raises(OutputError, match=os.strerror(errno.EPIPE)):
        out.write(b"x" * 1_000_000)
    assert files_under(tmp_path) == ["fifo"]


def test_dash_is_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with open_output("-") as out:
        assert out.name == "standard output"
        out.write(b"one\n")
    assert capfdbinary.readouterr().out == b"one\n"
    assert not sys.stdout.closed


def run_script(text: str, **options: object) -> subprocess.Popen[bytes]:
    script = textwrap.dedent(text)
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]


QUIET_WRITER = """
    import sys
    from mocker_replay.outputs import ClosedPipe, open_output
    try:
        with open_output("-") as out:
            for _ in range(100_000):
                out.write(b"a line of some length, many times\\n")
    except ClosedPipe as exc:
        sys.exit(40 + exc.exit_code)
"""


def test_a_closed_standard_output_is_quiet() -> None:
    process = run_script(QUIET_WRITER, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 40


def test_no_standard_output_at_all_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ClosedPipe):
        open_output("-")


@NEEDS_DEV_FULL
def test_standard_output_on_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        process = run_script(QUIET_WRITER, stdout=full)
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert b"OutputError: cannot write standard output: No space left on device" in stderr
