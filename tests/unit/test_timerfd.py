"""The timer descriptor and the blocking sleep alone: no event loop. Never early is all that a test may ask of time."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import select
import shlex
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
from pathlib import Path

import pytest

from mocker_replay._core.timerfd import TimerFd, available, create_descriptor, sleep_until_ns
from tests.support.descriptors import Creator, num_descriptors

ROOT = Path(__file__).resolve().parents[2]
HOUR_NS = 3_600 * 10**9
PATIENCE_S = 60.0

needs_timerfd = pytest.mark.skipif(not available, reason="no timerfd on this system")


def soon_ns(duration_ms: float) -> int:
    return time.monotonic_ns() + round(duration_ms * 1e6)


def readable(timer: TimerFd, patience_s: float = 0.0) -> bool:
    return bool(select.select([timer], [], [], patience_s)[0])


@pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")
def test_linux_has_it() -> None:
    assert available


@needs_timerfd
def test_the_descriptor_comes_with_the_first_arm_and_stays() -> None:
    creator = Creator()
    before = num_descriptors()
    timer = TimerFd(creator)
    assert (timer.fileno(), timer.drain(), timer.num_attempts) == (-1, 0, 0)
    timer.disarm()
    assert num_descriptors() == before
    for _ in range(3):
        deadline_ns = soon_ns(1.7)
        timer.arm(deadline_ns)
        assert readable(timer, PATIENCE_S)
        assert time.monotonic_ns() >= deadline_ns
        assert (timer.drain(), timer.drain()) == (1, 0)
        assert not readable(timer)
    assert creator.num_attempts == timer.num_attempts == 1
    assert num_descriptors() == before + 1
    timer.close()
    timer.close()
    assert timer.closed
    assert num_descriptors() == before
    with pytest.raises(ValueError, match="closed"):
        timer.arm(1)


@needs_timerfd
@pytest.mark.parametrize("deadline_ns", [0, 1, -1, -(2**63)])
def test_what_is_reached_expires_at_once(deadline_ns: int) -> None:
    timer = TimerFd()
    timer.arm(deadline_ns)
    assert readable(timer, PATIENCE_S)
    assert timer.drain() == 1
    timer.close()


@needs_timerfd
@pytest.mark.parametrize("deadline_ns", [2**63 - 1, 2**62])
def test_the_farthest_deadlines_are_taken(deadline_ns: int) -> None:
    timer = TimerFd()
    timer.arm(deadline_ns)
    assert not readable(timer)
    with pytest.raises(OverflowError):
        timer.arm(2**63)
    timer.close()


@needs_timerfd
def test_arming_anew_forgets_an_expiry_that_was_not_drained() -> None:
    timer = TimerFd()
    timer.arm(1)
    assert readable(timer, PATIENCE_S)
    timer.arm(time.monotonic_ns() + HOUR_NS)
    assert not readable(timer)
    assert timer.drain() == 0
    timer.arm(1)
    assert readable(timer, PATIENCE_S)
    timer.disarm()
    assert not readable(timer)
    timer.close()


@needs_timerfd
def test_the_descriptor_does_not_block_and_ends_with_exec() -> None:
    fd = create_descriptor()
    try:
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    finally:
        os.close(fd)


@needs_timerfd
def test_forgotten_timers_leave_no_descriptor() -> None:
    before = num_descriptors()
    for _ in range(20):
        TimerFd().arm(time.monotonic_ns() + HOUR_NS)
    gc.collect()
    assert num_descriptors() == before


def test_failures_are_errors_of_the_system() -> None:
    creator = Creator(fails=True)
    timer = TimerFd(creator)
    with pytest.raises(OSError, match="says the test") as caught:
        timer.arm(1)
    assert caught.value.errno == errno.EMFILE
    assert (timer.fileno(), timer.num_attempts) == (-1, 1)

    # The null device is no timer: it cannot be set, and reads as an end of file.
    other = TimerFd(lambda: os.open(os.devnull, os.O_RDONLY))
    with pytest.raises(OSError, match="timerfd_settime"):
        other.arm(1)
    with pytest.raises(OSError, match="read of a timer descriptor"):
        other.drain()
    other.close()


@needs_timerfd
def test_no_descriptor_left_is_told() -> None:
    script = """
        import os, resource
        from mocker_replay._core.timerfd import TimerFd
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        try:
            TimerFd().arm(1)
        except OSError as error:
            os.write(1, str(error).encode())
    """
    assert "timerfd_create: Too many open files" in run_python(script)


def test_the_blocking_sleep_is_never_early() -> None:
    for duration_ms in (-5.0, 0.0, 0.05, 1.3, 4.9):
        deadline_ns = soon_ns(duration_ms)
        sleep_until_ns(deadline_ns)
        assert time.monotonic_ns() >= deadline_ns
    sleep_until_ns(0)
    sleep_until_ns(-(2**63))
    with pytest.raises(OverflowError):
        sleep_until_ns(2**63)


def test_a_signal_that_is_handled_does_not_end_the_sleep() -> None:
    seen: list[int] = []
    earlier = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        deadline_ns = soon_ns(200)
        sleep_until_ns(deadline_ns)
        assert time.monotonic_ns() >= deadline_ns
        assert seen == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def test_a_handler_that_raises_ends_the_sleep() -> None:
    def interrupt(number: int, frame: object) -> None:
        raise InterruptedError("by the handler")

    earlier = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(InterruptedError, match="by the handler"):
            sleep_until_ns(time.monotonic_ns() + HOUR_NS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def test_other_threads_run_during_the_sleep() -> None:
    script = f"""
        import os, threading, time
        from mocker_replay._core.timerfd import sleep_until_ns
        threading.Thread(target=sleep_until_ns, args=[time.monotonic_ns() + {HOUR_NS}], daemon=True).start()
        for _ in range(20):
            time.sleep(0.001)
        os.write(1, b"ran")
        os._exit(0)
    """
    assert run_python(script) == "ran"


def run_python(script: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.packaging
def test_where_timerfd_is_missing_it_compiles_and_says_so(tmp_path: Path) -> None:
    """Built with the switch that hides timerfd and clock_nanosleep, as on a system that has neither."""
    pytest.importorskip("Cython")
    code, module = tmp_path / "timerfd.c", tmp_path / "timerfd.so"
    source = ROOT / "mocker_replay" / "_core" / "timerfd.pyx"
    subprocess.run([sys.executable, "-m", "cython", "-3", source, "-o", code], check=True)
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    flags = ["-shared", "-fPIC", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", "-DMR_NO_TIMERFD"]
    folders = [f"-I{ROOT / '_core'}", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([*compiler, *flags, *folders, code, "-o", module], check=True)
    script = f"""
        import errno, importlib.util, os, time
        spec = importlib.util.spec_from_file_location("mocker_replay._core.timerfd", {str(module)!r})
        lonely = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(lonely)
        assert not lonely.available
        try:
            lonely.TimerFd().arm(1)
        except OSError as error:
            assert error.errno == errno.ENOSYS
        else:
            raise AssertionError("armed without timerfd")
        deadline_ns = time.monotonic_ns() + 1_300_000
        lonely.sleep_until_ns(deadline_ns)
        assert time.monotonic_ns() >= deadline_ns
        os.write(1, b"lonely")
    """
    assert run_python(script) == "lonely"
