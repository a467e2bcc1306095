"""The plug-in of pytest, in processes of its own: goldens as tests, and nothing at all where nobody asks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mocker_replay import pytest_plugin
from mocker_replay.config import ReplayOptions, load_engine_config
from mocker_replay.errors import ReplayInterrupted
from mocker_replay.golden import check as check_module
from mocker_replay.golden.folder import GoldenFolder
from mocker_replay.golden.record import record_golden
from mocker_replay.pytest_plugin import ReplayGolden

ROOT = Path(__file__).resolve().parent.parent.parent
PLUGIN = "mocker_replay.pytest_plugin"
A_TEST = "def test_runs_are_as_blessed(replay_golden):\n    replay_golden.check()\n"


def run_pytest(folder: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without the plug-ins of this environment, but with ours; every warning is an error."""
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-W", "error", *argv]
    env = {
        "PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    return subprocess.run(command, capture_output=True, check=False, text=True, cwd=folder, env=env | environment)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a trace, three goldens of it, and settings for pytest."""
    folder = tmp_path_factory.mktemp("repository")
    trace = shutil.copy(ROOT / "traces" / "tiny.jsonl", folder / "tiny.jsonl")
    goldens = GoldenFolder(folder / "goldens")
    config = load_engine_config({"engine": {"num_gpu_blocks": 64}})
    for name in ("chat-a", "chat-b", "other"):
        record_golden(goldens, name, trace, config, ReplayOptions(), with_log=name == "chat-a")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-config --strict-markers -ra\n")
    return folder


@pytest.fixture
def repository(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "repository"))


def write_test(repository: Path, text: str = A_TEST, name: str = "test_goldens.py") -> None:
    (repository / "tests").mkdir(exist_ok=True)
    (repository / "tests" / name).write_text(text)


def edit_manifest(repository: Path, name: str, change: Callable[[Any], object]) -> None:
    path = repository / "goldens" / name / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def other_engine(repository: Path, name: str) -> None:
    """Give a golden other settings than it was recorded with, as if the engine had changed."""
    edit_manifest(repository, name, lambda document: document["config"]["engine"].update(max_num_seqs=3))


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- the fixture -------------------------------------------------------------------------------------


def test_one_test_a_golden(repository: Path) -> None:
    write_test(repository)
    before = files(repository / "goldens")
    done = run_pytest(repository, "-v", CI="true")
    assert done.returncode == 0, done.stdout
    for name in ("chat-a", "chat-b", "other"):
        assert f"tests/test_goldens.py::test_runs_are_as_blessed[{name}] PASSED" in done.stdout
    assert "3 passed" in done.stdout
    assert files(repository / "goldens") == before


def test_a_changed_run_fails_with_the_text_of_the_command(repository: Path) -> None:
    write_test(repository)
    for name in ("chat-a", "chat-b"):
        other_engine(repository, name)
    done = run_pytest(repository)
    assert done.returncode == 1
    assert "2 failed, 1 passed" in done.stdout
    for name in ("chat-a", "chat-b"):
        command = [sys.executable, "-m", "mocker_replay", "golden", "check", name]
        told = subprocess.run(
            command, capture_output=True, text=True, cwd=repository, env={"PYTHONPATH": str(ROOT)}, check=False
        )
        assert told.returncode == 1
        assert told.stdout.rstrip("\n") in done.stdout
    assert "first difference at seq 18" in done.stdout
    assert "events 0 to 94 differ first" in done.stdout
    short = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    assert "[chat-a] - " in short[0]
    assert "chat-a: first difference at seq 18" in short[0]
    assert "pytest_plugin.py" not in done.stdout  # no frames of ours
    assert "Error" not in done.stdout


def test_what_is_no_change_of_the_run_is_told_apart(repository: Path) -> None:
    write_test(repository)
    edit_manifest(repository, "chat-a", lambda document: document.update(event_schema="mocker-replay.events/0"))
    (repository / "goldens" / "chat-b" / "blocks.json").unlink()
    done = run_pytest(repository)
    assert done.returncode == 1
    assert "other schema    chat-a: recorded under mocker-replay.events/0" in done.stdout
    assert "unreadable      chat-b: " in done.stdout
    assert "2 failed, 1 passed" in done.stdout
    with (repository / "tiny.jsonl").open("a") as trace:
        trace.write('{"timestamp": 900, "input_length": 16, "output_length": 2, "hash_ids": [7]}\n')
    done = run_pytest(repository, "-k", "other")
    assert "other input     other: the trace ../tiny.jsonl has changed (12 rows then, 13 now)" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_marker_chooses_by_name_or_pattern(repository: Path) -> None:
    write_test(
        repository,
        "import pytest\n"
        "@pytest.mark.replay_goldens('chat-*')\n"
        "def test_chats(replay_golden):\n    replay_golden.check()\n"
        "@pytest.mark.replay_goldens('other', 'chat-b', 'chat-?')\n"
        "def test_in_order(replay_golden):\n    assert replay_golden.folder.name == 'goldens'\n"
        "@pytest.mark.replay_goldens('other')\n"
        "class TestOther:\n"
        "    @pytest.fixture\n"
        "    def own(self, replay_golden):\n        return replay_golden\n"
        "    def test_through_a_fixture(self, own):\n        assert own.name == 'other'\n",
    )
    done = run_pytest(repository, "--collect-only", "-q")
    assert done.returncode == 0, done.stdout
    assert [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line] == [
        "test_chats[chat-a]", "test_chats[chat-b]",
        "test_in_order[other]", "test_in_order[chat-b]", "test_in_order[chat-a]",
        "TestOther::test_through_a_fixture[other]",
    ]  # fmt: skip
    assert (
        run_pytest(repository, "--collect-only", "-q", PYTHONHASHSEED="7").stdout.split(" in ")[0]
        == (done.stdout.split(" in ")[0])
    )
    done = run_pytest(repository)
    assert done.returncode == 0, done.stdout


def test_goldens_that_are_not_there_are_errors_of_the_tests_that_ask(repository: Path) -> None:
    write_test(
        repository,
        "import pytest\n"
        "@pytest.mark.replay_goldens('speech-*')\n"
        "def test_pattern(replay_golden):\n    replay_golden.check()\n"
        "@pytest.mark.replay_goldens('speech')\n"
        "def test_name(replay_golden):\n    replay_golden.check()\n"
        "@pytest.mark.replay_goldens(3)\n"
        "def test_number(replay_golden):\n    replay_golden.check()\n"
        "def test_too_late(request):\n    request.getfixturevalue('replay_golden')\n"
        "def test_of_something_else():\n    pass\n",
    )
    done = run_pytest(repository)
    assert done.returncode == 1
    assert "no golden fits speech-*; there are chat-a, chat-b, other" in done.stdout
    assert "no such golden; there are chat-a, chat-b, other" in done.stdout
    assert "the marker replay_goldens takes names or patterns of goldens" in done.stdout
    assert "replay_golden has to be an argument of the test" in done.stdout
    assert "2 failed, 1 passed, 2 errors" in done.stdout
    assert "pytest_plugin.py" not in done.stdout


def test_an_absent_folder(repository: Path) -> None:
    shutil.rmtree(repository / "goldens")
    write_test(repository, A_TEST + "def test_of_something_else():\n    pass\n")
    done = run_pytest(repository)
    assert done.returncode == 1
    assert "goldens: no such folder of goldens" in done.stdout
    assert "--replay-goldens DIR, or replay_goldens in the ini-file" in done.stdout
    assert "1 passed, 1 error" in done.stdout
    assert run_pytest(repository, "--collect-only").returncode == 0
    (repository / "goldens").mkdir()
    assert "holds no golden; mocker-replay golden record" in run_pytest(repository).stdout


# -- where the folder is -----------------------------------------------------------------------------


def test_the_folder_is_named_by_ini_file_or_option(repository: Path) -> None:
    write_test(repository)
    (repository / "goldens").rename(repository / "tests" / "blessed")
    for golden in (repository / "tests" / "blessed").iterdir():
        text = (golden / "manifest.json").read_text()
        assert text.count("../tiny.jsonl") == 1
        (golden / "manifest.json").write_text(text.replace("../tiny.jsonl", "../../tiny.jsonl"))
    assert "1 error" in run_pytest(repository).stdout
    assert "3 passed" in run_pytest(repository, "--replay-goldens", "tests/blessed").stdout
    assert "3 passed" in run_pytest(repository / "tests", "--replay-goldens", "blessed").stdout
    with (repository / "pytest.ini").open("a") as file:
        file.write("replay_goldens = tests/blessed\n")
    assert "3 passed" in run_pytest(repository).stdout
    assert "3 passed" in run_pytest(repository / "tests").stdout


def test_objects_of_the_user_are_found_beside_the_ini_file(repository: Path) -> None:
    """Timing models and policies that a manifest only names."""
    (repository / "models.py").write_text(
        "from mocker_replay.policies import Policy\n"
        "class Mine:\n"
        "    def prefill(self, *args):\n        return 1.0\n"
        "    def decode(self, *args):\n        return 2.0\n"
        "class Shortest(Policy):\n"
        "    def order_key(self, request, rank):\n        return float(request.output_tokens)\n"
    )
    for name, flag, value in (("mine", "--timing-model", "models:Mine"), ("short", "--policy", "models:Shortest")):
        command = [sys.executable, "-m", "mocker_replay", "golden", "record", name, "tiny.jsonl", flag, value]
        subprocess.run([*command, "--max-num-seqs", "2"], cwd=repository, env={"PYTHONPATH": str(ROOT)}, check=True)
    write_test(
        repository,
        "import sys, pytest\n"
        "@pytest.mark.replay_goldens('mine', 'short')\n"
        "def test_mine(replay_golden):\n"
        "    before = list(sys.path)\n"
        "    replay_golden.check()\n"
        "    assert sys.path == before\n"
        "    assert 'models' in sys.modules\n",
    )
    # From another folder, since `python -m pytest` puts the working directory on the path by itself.
    done = run_pytest(repository / "tests", "--import-mode=importlib")
    assert done.returncode == 0, done.stdout
    (repository / "models.py").unlink()
    done = run_pytest(repository / "tests", "--import-mode=importlib")
    assert done.returncode == 1
    assert "unreadable      mine: " in done.stdout
    assert "unreadable      short: " in done.stdout
    assert "No module named 'models'" in done.stdout
    assert "pytest_plugin.py" not in done.stdout


# -- without a test ----------------------------------------------------------------------------------


def test_a_folder_that_is_named_needs_no_test(repository: Path) -> None:
    done = run_pytest(repository, "goldens", "-v")
    assert done.returncode == 0, done.stdout
    for name in ("chat-a", "chat-b", "other"):
        assert f"goldens/{name}/manifest.json::{name} PASSED" in done.stdout
    assert "3 passed" in done.stdout
    for named in ("goldens/chat-b", "goldens/chat-b/manifest.json", "goldens/chat-b/manifest.json::chat-b"):
        assert "1 passed" in run_pytest(repository, named).stdout
    assert "2 passed, 1 deselected" in run_pytest(repository, "goldens", "-k", "chat").stdout
    assert "<GoldenItem chat-a>" in run_pytest(repository, "goldens", "--collect-only").stdout
    other_engine(repository, "chat-a")
    done = run_pytest(repository, "goldens")
    assert done.returncode == 1
    assert "golden chat-a" in done.stdout
    assert "differs         chat-a: first difference at seq 18" in done.stdout
    assert "FAILED goldens/chat-a/manifest.json::chat-a - " in done.stdout
    assert "pytest_items.py" not in done.stdout


def test_a_folder_that_is_not_named_is_left_alone(repository: Path) -> None:
    write_test(repository, "def test_of_something_else():\n    pass\n")
    assert "1 passed" in run_pytest(repository).stdout
    assert "1 passed" in run_pytest(repository, ".").stdout
    (repository / "app" / "icons").mkdir(parents=True)
    (repository / "app" / "icons" / "manifest.json").write_text("{}")
    assert "no tests ran" in run_pytest(repository, "app").stdout
    with (repository / "pytest.ini").open("a") as file:
        file.write("testpaths = tests goldens\n")
    assert "4 passed" in run_pytest(repository).stdout


# -- what it costs -----------------------------------------------------------------------------------


LOADED = (
    "import sys\n"
    "def pytest_sessionfinish():\n"
    "    ours = sorted(name for name in sys.modules if name.startswith('mocker_replay'))\n"
    "    heavy = sorted({'numpy', 'orjson', 'rich', 'typer', 'blake3', 'zstandard'} & set(sys.modules))\n"
    "    print('loaded', ours, heavy)\n"
)


def test_nothing_is_loaded_where_nobody_asks(repository: Path) -> None:
    (repository / "conftest.py").write_text(LOADED)
    write_test(repository, "def test_of_something_else():\n    pass\n")
    for argv in ([], ["--collect-only"], ["--markers"], ["--fixtures"], ["tests"]):
        done = run_pytest(repository, "-s", *argv)
        assert done.returncode == 0, done.stdout
        if argv != ["--markers"]:
            assert f"loaded ['mocker_replay', '{PLUGIN}'] []" in done.stdout


def test_goldens_run_beside_each_other(repository: Path) -> None:
    write_test(repository)
    other_engine(repository, "chat-a")
    done = run_pytest(repository, "-p", "xdist", "-n", "2", "tests", "goldens")
    assert done.returncode == 1
    assert "2 failed, 4 passed" in done.stdout
    assert done.stdout.count("differs         chat-a: first difference at seq 18") == 4  # both, and in short


def test_what_it_adds_explains_itself(repository: Path) -> None:
    assert "@pytest.mark.replay_goldens(*names): goldens that replay_golden stands for" in (
        run_pytest(repository, "--markers").stdout
    )
    text = run_pytest(repository, "--help").stdout
    assert "--replay-goldens=DIR" in text
    assert "replay_goldens (string):" in text
    assert "A golden of the folder --replay-goldens" in run_pytest(repository, "--fixtures").stdout


def test_the_package_tells_pytest_of_it(repository: Path, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"]["pytest11"].items()
    assert entry == (PLUGIN, PLUGIN)
    metadata = tmp_path / "site" / "mocker_replay_of_a_test-0.0.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mocker-replay-of-a-test\nVersion: 0.0.0\n")
    (metadata / "entry_points.txt").write_text(f"[pytest11]\n{entry[0]} = {entry[1]}\n")
    write_test(repository)
    path = os.pathsep.join([str(ROOT), str(tmp_path / "site")])
    env = {"PYTHONPATH": path, "PATH": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    for more in ([], ["-p", PLUGIN]):
        done = subprocess.run([*command, *more], cwd=repository, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 passed" in done.stdout
    command += ["-p", f"no:{PLUGIN}"]
    done = subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, check=False)
    assert "fixture 'replay_golden' not found" in done.stdout


def test_an_interrupted_run_ends_the_session(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **named: object) -> None:
        raise ReplayInterrupted("interrupted")

    golden = ReplayGolden(repository / "goldens", "other", repository)
    golden.check()
    monkeypatch.setattr(check_module, "check_golden", interrupted)
    with pytest.raises(KeyboardInterrupt):
        golden.check()
    assert str(repository) not in sys.path


def test_a_path_that_was_there_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = list(sys.path)
    with pytest_plugin._importable(tmp_path):
        assert sys.path == before
    assert sys.path == before
    with pytest_plugin._importable(tmp_path / "other"):
        assert sys.path == [str(tmp_path / "other"), *before]
        sys.path.remove(str(tmp_path / "other"))
    assert sys.path == before
