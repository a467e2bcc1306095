"""Plug-in of pytest: goldens as tests, by the fixture `replay_golden` or by the name of their folder.

Decides: which goldens a test stands for, and how one that does not pass looks in pytest. Never updates a golden, and
never decides what is the same: that is `golden`. The plug-in is loaded in every run of pytest where the package is
installed, so it imports nothing but pytest until a test asks for goldens.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

if TYPE_CHECKING:
    from mocker_replay.config import TimingCallable

_FIXTURE = "replay_golden"
_OPTION = "replay_goldens"  # ini option, command-line option and marker


class ReplayGolden:
    """One golden, as a test has it."""

    def __init__(self, folder: Path, name: str, modules: Path) -> None:
        self.folder = folder
        self.name = name
        self._modules = modules  # where modules of the user's are looked for, too

    def check(self, *, timing_model: TimingCallable | None = None) -> None:
        """Run the golden afresh; fail with the text of `mocker-replay golden check` unless it is the same.

        Args:
            timing_model: the object, if the golden used one of the user's that cannot be imported by its name.
        """
        __tracebackhide__ = True
        text = self._difference(timing_model)
        if text is not None:
            pytest.fail(text, pytrace=False)

    def _difference(self, timing_model: TimingCallable | None) -> str | None:
        from mocker_replay.cli.golden_text import render_results
        from mocker_replay.errors import ExitCode, MockerReplayError, ReplayInterrupted
        from mocker_replay.golden.check import check_golden
        from mocker_replay.golden.folder import GoldenFolder

        try:
            with _importable(self._modules):
                result = check_golden(GoldenFolder(self.folder), self.name, timing_model=timing_model)
        except ReplayInterrupted:
            raise KeyboardInterrupt from None
        except MockerReplayError as exc:
            return str(exc)
        return None if result.exit_code == ExitCode.OK else render_results([result], quiet=True).rstrip("\n")


class _NoGolden(Struct, frozen=True):
    """Stands for the goldens that a test asks for and that are not there: the test says so when it is run."""

    reason: str


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mocker-replay", "goldens of mocker-replay")
    group.addoption(
        "--replay-goldens", dest=_OPTION, metavar="DIR", default=None,
        help="Folder of goldens that replay_golden stands for. [default: ini option replay_goldens]",
    )  # fmt: skip
    parser.addini(_OPTION, "Folder of goldens, seen from this file. [default: goldens]", default="goldens")


def pytest_configure(config: pytest.Config) -> None:
    line = f"{_OPTION}(*names): goldens that {_FIXTURE} stands for, by name or pattern (chat-*); all of them if none."
    config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _FIXTURE in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker(_OPTION)
        found = _wanted(_goldens_folder(metafunc.config), marker)
        metafunc.parametrize(_FIXTURE, found, indirect=True, ids=[_id_of(golden) for golden in found])


@pytest.fixture
def replay_golden(request: pytest.FixtureRequest) -> ReplayGolden:
    """A golden of the folder --replay-goldens, or of the ini option replay_goldens; one test for each.

    `replay_golden.check()` runs it afresh and fails unless it is the same.
    """
    wanted = getattr(request, "param", _NoGolden(f"{_FIXTURE} has to be an argument of the test, or of its fixture"))
    if isinstance(wanted, _NoGolden):
        pytest.fail(wanted.reason, pytrace=False)
    return _golden_of(request.config, wanted)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A golden is an item of its own where it or its folder is named: `pytest goldens`."""
    if file_path.name != "manifest.json":
        return None
    folder, session = file_path.parent.parent, parent.session
    is_named = any(session.isinitpath(path) for path in (folder, file_path.parent, file_path))
    if not is_named or folder.resolve() != _goldens_folder(parent.config).resolve():
        return None
    from mocker_replay.pytest_items import GoldenFile

    return GoldenFile.from_parent(parent, path=file_path, check=_golden_of(parent.config, file_path.parent.name).check)


def _goldens_folder(config: pytest.Config) -> Path:
    """The folder of this run, there or not."""
    given: str | None = config.getoption(_OPTION)
    wanted: str = config.getini(_OPTION)
    return _base(config) / wanted if given is None else config.invocation_params.dir / given


def _golden_of(config: pytest.Config, name: str) -> ReplayGolden:
    """A golden of the folder, there or not."""
    return ReplayGolden(_goldens_folder(config), name, _base(config))


def _base(config: pytest.Config) -> Path:
    """What paths of the ini-file are relative to, as pytest's own are."""
    return config.invocation_params.dir if config.inipath is None else config.inipath.parent


def _wanted(folder: Path, marker: pytest.Mark | None) -> list[str | _NoGolden]:
    from mocker_replay.golden.folder import GoldenFolder
    from mocker_replay.golden.manifest import GoldenError

    patterns = () if marker is None else marker.args
    if (marker is not None and marker.kwargs) or not all(isinstance(pattern, str) for pattern in patterns):
        return [_NoGolden(f"the marker {_OPTION} takes names or patterns of goldens, each a text")]
    try:
        return [*GoldenFolder(folder).matching(patterns)]
    except GoldenError as exc:
        return [_NoGolden(f"{exc}\n--replay-goldens DIR, or {_OPTION} in the ini-file, names the folder of goldens")]


def _id_of(golden: str | _NoGolden) -> str:
    return golden if isinstance(golden, str) else "no golden"


@contextlib.contextmanager
def _importable(place: Path) -> Iterator[None]:
    """Let modules there be imported, as the command lets those of the working directory."""
    entry = str(place)
    if entry in sys.path:
        yield
        return
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # taken out by what was imported
            sys.path.remove(entry)
