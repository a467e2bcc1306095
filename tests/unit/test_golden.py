"""Goldens: what is kept, what is compared, what is told apart, what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import orjson
import pytest
from msgspec import structs

from mocker_replay.config import EngineConfig, ReplayOptions, load_engine_config
from mocker_replay.errors import ExitCode, InvariantError, UsageError
from mocker_replay.golden import check as check_module
from mocker_replay.golden import fresh as fresh_module
from mocker_replay.golden.check import check_golden, refuse_in_ci, update_golden, update_or_tell
from mocker_replay.golden.folder import BLOCKS, EVENTS, MANIFEST, SUMMARY, GoldenFolder
from mocker_replay.golden.fresh import require_sound
from mocker_replay.golden.manifest import GoldenError, check_tolerances
from mocker_replay.golden.record import record_golden
from mocker_replay.golden.result import GoldenResult, Status, exit_code_of
from mocker_replay.log.reader import EventLogReader
from mocker_replay.replay import replay
from tests.conftest import make_row

CONFIG = load_engine_config({"engine": {"num_gpu_blocks": 40, "max_num_seqs": 4}})


@pytest.fixture(autouse=True)
def at_a_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [make_row(10.0 * i, 100 + 20 * i, 3 + i % 5, hash_ids=[i % 3]) for i in range(20)]
    path = tmp_path / "repository" / "traces" / "some.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def goldens(trace: Path) -> GoldenFolder:
    return GoldenFolder(trace.parent.parent / "goldens")


def record(goldens: GoldenFolder, trace: Path, name: str = "some", **changes: Any) -> None:
    settings: dict[str, Any] = {"config": CONFIG, "options": ReplayOptions()} | changes
    record_golden(goldens, name, trace, settings.pop("config"), settings.pop("options"), **settings)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file of a golden."""
    document = orjson.loads(path.read_bytes())
    change(document)
    path.write_bytes(orjson.dumps(document))


@pytest.fixture
def changed_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let fresh runs have other settings than recorded, as another version of the engine would."""
    real = check_module.settings_of

    def change(**fields: Any) -> None:
        def settings(*args: Any, **named: Any) -> tuple[EngineConfig, ReplayOptions]:
            config, options = real(*args, **named)
            return structs.replace(config, **fields), options

        monkeypatch.setattr(check_module, "settings_of", settings)

    return change


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- what is kept ------------------------------------------------------------------------------------


def test_a_golden_says_which_run_it_is(goldens: GoldenFolder, trace: Path, tmp_path: Path) -> None:
    options = ReplayOptions(num_workers=2, sla_ttft_ms=100.0)
    record(goldens, trace, options=options, with_log=True)
    place = goldens.place("some")
    assert sorted(path.name for path in place.iterdir()) == sorted((MANIFEST, SUMMARY, BLOCKS, EVENTS))
    manifest = goldens.read_manifest("some")
    assert manifest.trace["path"] == "../traces/some.jsonl"
    assert manifest.trace["rows"] == 20
    assert EngineConfig.from_mapping(manifest.config) == CONFIG
    assert ReplayOptions(**manifest.options) == options
    assert str(tmp_path) not in (place / MANIFEST).read_text()
    result = replay(trace, CONFIG, options, events=tmp_path / "log.jsonl")
    with EventLogReader(tmp_path / "log.jsonl") as log, EventLogReader(place / EVENTS) as stored:
        footer, header = log.verify(), log.header
        assert stored.verify() == footer
        assert stored.header == header
    assert {name: manifest.log[name] for name in footer if name != "event"} == {
        name: value for name, value in footer.items() if name != "event"
    }
    summary = orjson.loads((place / SUMMARY).read_bytes())
    assert "wall_time_ms" not in summary
    assert summary == {name: result.summary[name] for name in summary}
    assert len(summary) == len(result.summary) - len(result.summary["wall_clock_fields"])


def test_the_same_run_gives_the_same_files(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace, with_log=True)
    before = files(goldens.path)
    shutil.rmtree(goldens.path)
    record(goldens, trace, with_log=True)
    assert files(goldens.path) == before


def test_a_repository_can_be_elsewhere(goldens: GoldenFolder, trace: Path, tmp_path: Path) -> None:
    record(goldens, trace)
    shutil.move(tmp_path / "repository", tmp_path / "clone")
    moved = GoldenFolder(tmp_path / "clone" / "goldens")
    assert check_golden(moved, "some").status == Status.SAME


def test_nothing_is_overwritten_and_names_are_names(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace)
    before = files(goldens.path)
    with pytest.raises(GoldenError, match="is recorded already; mocker-replay golden update some"):
        record(goldens, trace)
    assert files(goldens.path) == before
    (goldens.path / "empty").mkdir()
    record(goldens, trace, "empty")
    (goldens.path / "file").touch()
    with pytest.raises(GoldenError, match="is recorded already"):
        record(goldens, trace, "file")
    with pytest.raises(GoldenError, match="--dir names the folder it is in"):
        record(goldens, trace, "goldens/some")
    for name in ("", "..", "a/b", ".hidden", "-x", "a b", "x" * 101):
        with pytest.raises(GoldenError, match="named by letters"):
            record(goldens, trace, name)
    with pytest.raises(UsageError, match="standard input"):
        record(goldens, Path("-"), "other")
    with pytest.raises(UsageError, match="accelerated"):
        record(goldens, trace, "other", options=ReplayOptions(mode="realtime"))
    assert goldens.names() == ["empty", "some"]


# -- what is refused ---------------------------------------------------------------------------------


class Stuck:
    """A timing model that fails in the middle."""

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        return 1.0

    def decode(self, batch_size: int, active: int, mean_length: int, total: int) -> float:
        raise RuntimeError("no such batch")


def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run end with one request fewer than arrived, unnoticed by the replay itself."""
    real = fresh_module._Taker.write

    def write(self: Any, data: bytes) -> int:
        if data.startswith(b'{"event":"footer"'):
            data = data.replace(b'"finished":20', b'"finished":19')
        return real(self, data)

    monkeypatch.setattr(fresh_module._Taker, "write", write)


def test_a_run_that_loses_a_request_is_not_blessed(
    goldens: GoldenFolder, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(goldens, trace)
    before = files(goldens.path)
    losing(monkeypatch)
    with pytest.raises(InvariantError, match="20 requests arrived, but 19 went anywhere"):
        record(goldens, trace, "other", with_log=True)
    assert not goldens.exists("other")
    with pytest.raises(InvariantError):
        update_golden(goldens, "some", with_log=True)
    assert files(goldens.path) == before
    result = check_golden(goldens, "some")
    assert (result.status, result.exit_code) == (Status.BROKEN, ExitCode.INVARIANT)
    told = update_or_tell(goldens, "some")
    assert (told.is_failed, told.exit_code) == (True, ExitCode.INVARIANT)


def test_a_run_that_cannot_go_on_is_not_blessed(goldens: GoldenFolder, trace: Path) -> None:
    config = load_engine_config({"engine": {"timing_model": Stuck()}})
    with pytest.raises(InvariantError, match="no such batch"):
        record(goldens, trace, config=config, with_log=True)
    assert not goldens.path.exists()


def test_what_must_hold_of_every_run() -> None:
    header = {"trace": {"rows": 3}}
    footer = {"arrived": 3, "finished": 1, "failed": 1, "rejected": 1, "cancelled": 0, "cut": 0, "end": "complete"}
    summary = {
        "num_requests": 3, "completed_requests": 1, "failed_requests": 1, "rejected_requests": 1,
        "cancelled_requests": 0, "cut_requests": 0,
    }  # fmt: skip
    require_sound(header, footer, summary)
    require_sound({"trace": {"rows": 5}}, footer | {"end": "time_limit"}, summary)
    for wrong in ({"finished": 2}, {"arrived": 2, "finished": 0}, {"failed": 0, "cut": 1}, {"end": "stopped"}):
        with pytest.raises(InvariantError):
            require_sound(header, footer | wrong, summary)
    with pytest.raises(InvariantError, match="the summary counts 2 failed_requests, the log 1"):
        require_sound(header, footer, summary | {"failed_requests": 2})


def test_update_is_refused_in_ci(goldens: GoldenFolder, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(goldens, trace)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(UsageError, match="refused where CI is set"):
        update_golden(goldens, "some")
    for unset in ({}, {"CI": ""}, {"CI": "false"}, {"CI": "0"}):
        refuse_in_ci(unset)
    assert check_golden(goldens, "some").status == Status.SAME


# -- what is compared --------------------------------------------------------------------------------


def test_another_run_is_placed_by_its_block(
    goldens: GoldenFolder, trace: Path, changed_engine: Callable[..., None]
) -> None:
    record(goldens, trace)
    changed_engine(max_num_seqs=3)
    result = check_golden(goldens, "some")
    assert (result.status, result.exit_code, result.diff) == (Status.DIFFERS, ExitCode.DIFFERS, None)
    assert result.block is not None
    assert (result.block.index, result.block.seq, result.block.worker, result.block.pass_id) == (0, 0, 0, 0)
    assert not result.has_log
    assert any(found.field == "mean_ttft_ms" for found in result.summary)


def test_with_the_log_the_first_event_is_shown(
    goldens: GoldenFolder, trace: Path, changed_engine: Callable[..., None], tmp_path: Path
) -> None:
    record(goldens, trace, with_log=True)
    changed_engine(max_num_seqs=3)
    result = check_golden(goldens, "some")
    assert result.diff is not None
    assert result.diff.first is not None
    with EventLogReader(goldens.events("some")) as log:
        lines = list(log.lines())
    replay(trace, structs.replace(CONFIG, max_num_seqs=3), events=tmp_path / "other.jsonl")
    with EventLogReader(tmp_path / "other.jsonl") as log:
        first = next(seq for seq, pair in enumerate(zip(lines, log.lines(), strict=False)) if pair[0] != pair[1])
    assert result.diff.first.seq == first


def test_other_inputs_are_told_apart(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace)
    trace.write_text(trace.read_text() + trace.read_text().splitlines()[-1] + "\n")
    result = check_golden(goldens, "some")
    assert (result.status, result.exit_code) == (Status.OTHER_INPUT, ExitCode.USAGE)
    assert result.reason.startswith("the trace ../traces/some.jsonl has changed (20 rows then, 21 now)")
    trace.write_text(trace.read_text() + "{\n")
    assert check_golden(goldens, "some").status == Status.UNREADABLE
    trace.unlink()
    result = check_golden(goldens, "some")
    assert result.status == Status.UNREADABLE
    assert "trace: ../traces/some.jsonl: no such file" in result.reason


def test_another_schema_or_version_is_told_apart(
    goldens: GoldenFolder, trace: Path, changed_engine: Callable[..., None]
) -> None:
    record(goldens, trace)
    edit(goldens.place("some") / MANIFEST, lambda document: document.update(program="0.0.7"))
    result = check_golden(goldens, "some")
    assert (result.status, len(result.notes)) == (Status.SAME, 1)
    assert result.notes[0].startswith("recorded by 0.0.7, this is ")
    edit(goldens.place("some") / MANIFEST, lambda document: document.update(event_schema="mocker-replay.events/0"))
    result = check_golden(goldens, "some")
    assert (result.status, result.exit_code) == (Status.OTHER_SCHEMA, ExitCode.USAGE)
    assert update_golden(goldens, "some").written
    assert check_golden(goldens, "some") == GoldenResult(
        "some", Status.SAME, f"{result_events(goldens)} events", result_events(goldens)
    )


def result_events(goldens: GoldenFolder) -> int:
    return int(goldens.read_manifest("some").log["events"])


def test_only_derived_figures_may_have_a_tolerance(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace, tolerances={"std_ttft_ms": 1e-9})
    place = goldens.place("some")
    edit(place / SUMMARY, lambda document: document.update(std_ttft_ms=document["std_ttft_ms"] * (1 + 1e-12)))
    assert check_golden(goldens, "some").status == Status.SAME
    edit(place / SUMMARY, lambda document: document.update(std_ttft_ms=document["std_ttft_ms"] * (1 + 1e-8)))
    assert check_golden(goldens, "some").status == Status.DIFFERS
    edit(place / SUMMARY, lambda document: document.update(mean_ttft_ms=document["mean_ttft_ms"] * (1 + 1e-15)))
    result = check_golden(goldens, "some")
    assert [found.field for found in result.summary] == ["mean_ttft_ms", "std_ttft_ms"]
    assert result.reason == "the same events, but another summary: mean_ttft_ms, std_ttft_ms"
    edit(place / MANIFEST, lambda document: document["tolerances"].update(p99_ttft_ms=1e-9))
    result = check_golden(goldens, "some")
    assert result.status == Status.UNREADABLE
    assert "tolerance p99_ttft_ms: only means" in result.reason


def test_tolerances_are_for_sums_and_quotients_of_the_summary(tmp_path: Path, trace: Path) -> None:
    summary = replay(trace, CONFIG, ReplayOptions(sla_ttft_ms=1.0)).summary
    allowed = []
    for name, value in summary.items():
        if isinstance(value, float):
            try:
                check_tolerances({name: 1e-9}, "here")
                allowed.append(name)
            except GoldenError:
                pass
    assert {"mean_itl_ms", "request_throughput_rps", "gpu_hours", "prefix_cache_reused_ratio"} <= set(allowed)
    exact = ("min_", "max_", "median_", "p75_", "p90_", "p95_", "p99_", "duration_ms", "end_ms")
    assert not [name for name in allowed if name.startswith(exact)]
    for value in (0.0, -1.0, 1e-3, True, "1e-9", float("nan")):
        with pytest.raises(GoldenError, match="must be a share"):
            check_tolerances({"mean_itl_ms": value}, "here")


def test_another_end_is_a_difference(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace)
    edit(goldens.place("some") / MANIFEST, lambda document: document["log"].update(end="time_limit"))
    result = check_golden(goldens, "some")
    assert (result.status, result.reason) == (
        Status.DIFFERS, "the same events, but end was time_limit and is complete"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text", "rule"),
    [
        (MANIFEST, "{", "not valid JSON"),
        (MANIFEST, "[]", "must be a JSON object"),
        (MANIFEST, '{"schema":"mocker-replay.golden/9"}', "this version reads mocker-replay.golden/1"),
        (MANIFEST, '{"schema":"mocker-replay.golden/1"}', "a manifest has the keys"),
        (SUMMARY, None, "cannot be read"),
        (BLOCKS, None, "cannot be read"),
        (BLOCKS, '{"blocks":[{"seq":0}]}', "must hold blocks"),
        (EVENTS, None, "the log of this golden is missing"),
        (MANIFEST, None, "cannot be read"),
    ],
)
def test_a_golden_that_is_not_whole(goldens: GoldenFolder, trace: Path, file: str, text: str | None, rule: str) -> None:
    record(goldens, trace, with_log=True)
    path = goldens.place("some") / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert goldens.names() == ["some"]
    result = check_golden(goldens, "some")
    assert (result.status, result.exit_code) == (Status.UNREADABLE, ExitCode.USAGE)
    assert rule in result.reason


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("", "program", 3), ("", "event_schema", None), ("", "level", ["kv"]), ("", "level", "most"),
        ("", "trace", []), ("", "config", None), ("", "options", "x"), ("", "log", 1), ("", "tolerances", []),
        ("", "profile", "profile.npz"), ("trace", "path", None), ("trace", "path", 3), ("trace", "path", "."),
        ("log", "events", "85"), ("log", "events", -1), ("log", "events", None), ("log", "block_events", 0),
        ("log", "block_events", "x"), ("log", "block_events", 2**63), ("log", "stored", "yes"),
        ("config", "engine", []), ("config", "dp_size", "two"), ("options", "num_workers", "two"),
        ("options", "num_workers", 2**40), ("options", "mode", "realtime"), ("options", "colour", "red"),
        ("options", "arrival_speedup_ratio", None), ("options", "router_mode", []), ("options", "trace_format", {}),
        ("tolerances", "mean_ttft_ms", "1e-9"),
    ],
)  # fmt: skip
def test_a_manifest_that_was_edited_is_unreadable(
    goldens: GoldenFolder, trace: Path, section: str, key: str, value: object
) -> None:
    record(goldens, trace)
    edit(
        goldens.place("some") / MANIFEST,
        lambda document: (document[section] if section else document).update({key: value}),
    )
    result = check_golden(goldens, "some")
    assert (result.status, result.exit_code) == (Status.UNREADABLE, ExitCode.USAGE), result
    assert update_or_tell(goldens, "some", dry_run=True).exit_code in (ExitCode.USAGE, ExitCode.OK)


def test_a_golden_that_is_not_there(goldens: GoldenFolder, trace: Path) -> None:
    with pytest.raises(GoldenError, match="no such folder"):
        goldens.names()
    record(goldens, trace)
    result = check_golden(goldens, "same")
    assert (result.status, result.reason) == (
        Status.UNREADABLE, f"{goldens.path / 'same'}: no such golden; there are some"
    )  # fmt: skip


def test_goldens_are_chosen_by_name_or_pattern(goldens: GoldenFolder, trace: Path) -> None:
    with pytest.raises(GoldenError, match="no such folder"):
        goldens.matching(())
    goldens.path.mkdir()
    with pytest.raises(GoldenError, match="holds no golden"):
        goldens.matching(["*"])
    for name in ("chat-b", "chat-a", "code"):
        record(goldens, trace, name)
    assert goldens.matching(()) == ["chat-a", "chat-b", "code"]
    assert goldens.matching(["code", "chat-?", "*"]) == ["code", "chat-a", "chat-b"]
    assert goldens.matching(["none", "[!x]ode"]) == ["none", "code"]
    with pytest.raises(GoldenError, match=r"no golden fits chat\*a\*b; there are chat-a, chat-b, code"):
        goldens.matching(["chat*a*b"])


def test_a_stored_log_that_was_changed_is_no_witness(
    goldens: GoldenFolder, trace: Path, changed_engine: Callable[..., None]
) -> None:
    record(goldens, trace, with_log=True)
    replay(trace, structs.replace(CONFIG, max_num_seqs=2), events=goldens.events("some"))
    changed_engine(max_num_seqs=2)
    result = check_golden(goldens, "some")
    assert result.status == Status.UNREADABLE
    assert "is not the log that some recorded" in result.reason
    replay(trace, structs.replace(CONFIG, max_num_seqs=1), events=goldens.events("some"), event_level="kv")
    assert check_golden(goldens, "some") == result


class Drifting:
    """A timing model with a memory: no two runs are the same."""

    calls = 0

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        return 5.0

    def decode(self, batch_size: int, active: int, mean_length: int, total: int) -> float:
        type(self).calls += 1
        return 1.0 + self.calls / 1024.0


def test_a_run_that_is_not_deterministic_is_said_to_be(
    goldens: GoldenFolder, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("drifting_model_of_a_test")
    monkeypatch.setattr(Drifting, "__module__", module.__name__)
    module.Drifting = Drifting  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    record(goldens, trace, config=load_engine_config({"engine": {"timing_model": Drifting()}}), with_log=True)
    result = check_golden(goldens, "some")
    assert (result.status, result.diff) == (Status.DIFFERS, None)
    assert result.notes == ("two fresh runs differ from each other: something in them is not deterministic",)


# -- update ------------------------------------------------------------------------------------------


def test_an_update_shows_what_changes_and_keeps_it(
    goldens: GoldenFolder, trace: Path, changed_engine: Callable[..., None]
) -> None:
    record(goldens, trace, with_log=True, tolerances={"std_ttft_ms": 1e-9})
    before = files(goldens.path)
    assert not update_golden(goldens, "some").written
    assert files(goldens.path) == before
    changed_engine(max_num_seqs=2)
    tried = update_golden(goldens, "some", dry_run=True)
    assert (tried.is_new, tried.written, tried.result.status) == (True, False, Status.DIFFERS)
    assert files(goldens.path) == before
    done = update_golden(goldens, "some")
    assert done.written
    assert done.result.diff is not None
    assert done.result.diff.first is not None
    assert check_golden(goldens, "some").status == Status.SAME
    assert goldens.read_manifest("some").tolerances == {"std_ttft_ms": 1e-9}
    assert sorted(path.name for path in goldens.path.iterdir()) == ["some"]


def test_an_update_blesses_another_trace(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace)
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:-1]))
    done = update_golden(goldens, "some")
    assert done.written
    assert done.result.notes == ("the trace ../traces/some.jsonl has changed (20 rows then, 19 now)",)
    assert check_golden(goldens, "some").status == Status.SAME


def test_an_update_adds_or_drops_the_log(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace)
    assert update_golden(goldens, "some", with_log=True).written
    assert goldens.events("some").is_file()
    assert check_golden(goldens, "some").status == Status.SAME
    with EventLogReader(goldens.events("some")) as log:
        assert log.verify()["digest"] == goldens.read_manifest("some").log["digest"]
    assert update_golden(goldens, "some", with_log=False).written
    assert not goldens.events("some").exists()
    assert check_golden(goldens, "some").status == Status.SAME


def test_an_update_repairs_a_golden_that_is_not_whole(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace)
    (goldens.place("some") / BLOCKS).unlink()
    done = update_golden(goldens, "some")
    assert (done.written, done.result.status) == (True, Status.UNREADABLE)
    assert check_golden(goldens, "some").status == Status.SAME


# -- inputs besides the trace ------------------------------------------------------------------------


def write_profile(path: Path, *, slower: float = 1.0) -> None:
    np.savez(
        path,
        prefill_isl=np.array([16.0, 64.0, 4096.0]),
        prefill_ttft_ms=slower * np.array([5.0, 9.5, 41.25]),
        decode_active_kv_tokens=np.array([32.0, 512.0]),
        decode_context_length=np.array([16.0, 2000.0]),
        decode_itl=slower * np.array([[2.0, 3.1], [7.0, 11.0]]),
    )


def test_a_timing_profile_is_an_input(
    goldens: GoldenFolder, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = trace.parent / "profile.npz"
    write_profile(profile)
    model = {"type": "external", "provider": "dynamo_profile", "config": {"path": str(profile)}}
    record(goldens, trace, config=load_engine_config({"engine": {"timing_model": model}}))
    manifest = goldens.read_manifest("some")
    assert manifest.profile is not None
    assert manifest.profile["path"] == "../traces/profile.npz"
    assert str(tmp_path) not in (goldens.place("some") / MANIFEST).read_text()
    monkeypatch.chdir(tmp_path)
    assert check_golden(goldens, "some").status == Status.SAME
    assert not update_golden(goldens, "some").is_new
    write_profile(profile, slower=2.0)
    result = check_golden(goldens, "some")
    assert (result.status, result.exit_code) == (Status.OTHER_INPUT, ExitCode.USAGE)
    assert "the timing profile ../traces/profile.npz has changed" in result.reason
    assert update_golden(goldens, "some").written
    assert check_golden(goldens, "some").status == Status.SAME
    edit(goldens.place("some") / MANIFEST, lambda document: document["config"]["engine"].update(timing_model=[1]))
    result = check_golden(goldens, "some")
    assert result.status == Status.UNREADABLE
    assert "config.engine.timing_model: must be that of the profile" in result.reason


def test_the_gravest_golden_gives_the_exit_code() -> None:
    results = {status: GoldenResult("x", status, "") for status in Status}
    assert exit_code_of([]) == ExitCode.OK
    assert exit_code_of([results[Status.SAME], results[Status.DIFFERS]]) == ExitCode.DIFFERS
    assert exit_code_of([results[Status.OTHER_INPUT], results[Status.DIFFERS]]) == ExitCode.USAGE
    assert exit_code_of(results.values()) == ExitCode.INVARIANT
