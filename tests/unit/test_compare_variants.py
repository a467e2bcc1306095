"""Variants: what a document may hold, what wins over what, and that every fault is told at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.compare.variants import Shared, Variant, read_variants
from mocker_replay.config import ReplayOptions
from mocker_replay.config.loading import overridden, read_document
from mocker_replay.errors import UsageError

PLAIN = '{"name": "plain"}'


def shared(base: str | None = None, options: ReplayOptions | None = None, **flags: Any) -> Shared:
    document, origin = overridden(*read_document(base), flags, {name: f"--{name}" for name in flags})
    return Shared(options or ReplayOptions(), document, origin, lambda name: f"--{name}")


def read(*texts: str, **given: Any) -> tuple[Variant, ...]:
    return read_variants(texts, shared(**given))


def test_a_file_of_the_reference_is_a_variant(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text('dp_size = 2\n[engine]\nnum_gpu_blocks = 77\n[dynamo]\nrouter_queue_policy = "fcfs"\n')
    variant, plain = read(str(path), PLAIN)
    assert (variant.name, variant.config.num_gpu_blocks, variant.config.dp_size) == ("small", 77, 2)
    assert (plain.name, plain.options) == ("plain", ReplayOptions())


def test_keys_beside_the_engine_s(tmp_path: Path) -> None:
    path = tmp_path / "many.toml"
    path.write_text('name = "many workers"\n[options]\nnum_workers = 4\nrouter_mode = "kv_router"\n')
    other = tmp_path / "other.json"
    other.write_text('{"engine": {"max_num_seqs": 3}}')
    many, renamed, inline, third = read(str(path), f"again={path}", f"json={other}", '{"dp_size": 3}')
    assert (many.name, many.options.num_workers, many.options.router_mode) == ("many workers", 4, "kv_router")
    assert (renamed.name, renamed.options) == ("again", many.options)
    assert (inline.name, inline.config.max_num_seqs) == ("json", 3)
    assert (third.name, third.config.dp_size) == ("variant-4", 3)


def test_a_file_with_an_equals_sign_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.json").write_text("{}")
    assert [variant.name for variant in read("a=b.json", "c=a=b.json")] == ["a=b", "c"]


def test_a_variant_wins_over_what_is_shared() -> None:
    base = json.dumps({"engine": {"max_num_seqs": 5, "num_gpu_blocks": 50, "block_size": 16}, "dp_size": 2})
    own = json.dumps({"name": "own", "engine": {"max_num_seqs": 7}, "options": {"num_workers": 3}})
    found = read(own, PLAIN, base=base, options=ReplayOptions(num_workers=2, sla_ttft_ms=9.0), num_gpu_blocks=60)
    config, options = found[0].config, found[0].options
    assert (config.max_num_seqs, config.num_gpu_blocks, config.block_size, config.dp_size) == (7, 60, 16, 2)
    assert (options.num_workers, options.sla_ttft_ms) == (3, 9.0)
    assert (found[1].config.max_num_seqs, found[1].options.num_workers) == (5, 2)


def test_settings_that_go_together_only_in_a_variant() -> None:
    options = ReplayOptions(kv_event_lag_ms=5.0)
    routed = '{"name": "%s", "options": {"router_mode": "kv_router"}}'
    assert len(read(routed % "a", routed % "b", options=options)) == 2
    with pytest.raises(UsageError, match="--kv_event_lag_ms: is only of use with router_mode kv_router"):
        read(routed % "a", PLAIN, options=options)


def faults(*texts: str, **given: Any) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(*texts, **given)
    assert caught.value.faults
    return [str(fault) for fault in caught.value.faults]


def test_all_faults_of_all_variants(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(
        '{\n "name": 3,\n "engine": {\n  "max_num_seqs": 0,\n  "block_sise": 16\n },\n'
        ' "options": {\n  "num_workers": 0,\n  "workers": 2,\n  "mode": "realtime"\n }\n}\n'
    )
    found = faults(str(broken), "nowhere.toml", '{"options": []}', '{"engine": 3')
    text = "\n".join(found)
    for part in (
        f"{broken}:2: name: must be a text (got 3)",
        f"{broken}:5: engine.block_sise: unknown key; did you mean block_size?",
        f"{broken}:8: options.num_workers: must be from 1 to 2^31-1 (got 0)",
        f"{broken}:9: options.workers: unknown setting; did you mean num_workers?",
        f"{broken}:10: options.mode: unknown setting",
        "nowhere.toml: no such file",
        "--variant 3: options: must be a table of settings of the run (got [])",
        "--variant 4:1: not valid JSON",
    ):
        assert part in text
    assert f"{broken}:4: engine.max_num_seqs" in text


def test_what_is_wrong_with_all_of_them() -> None:
    assert faults(PLAIN) == ["--variant: must be given for two variants or more, the baseline first (1)"]
    assert faults(PLAIN, PLAIN) == ["--variant: name: is given twice; NAME=FILE gives another one (got plain)"]
    goals = '{"name": "goals", "options": {"sla_ttft_ms": 5}}'
    assert faults(PLAIN, goals) == [
        "goals: options.sla_ttft_ms: must be the same in all variants, plain has None (got 5)"
    ]


def test_a_fault_of_what_is_shared_is_told_once_and_where_it_was_given(tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    base.write_text('{\n "engine": {\n  "max_num_seqs": 0\n }\n}\n')
    found = faults('{"name": "a"}', '{"name": "b"}', base=str(base), block_size=0)
    assert len(found) == 2
    assert found[0].startswith("--block_size: ")
    assert found[1].startswith(f"{base}:3: engine.max_num_seqs: ")


def test_a_policy_is_a_setting_of_the_run() -> None:
    flags = ReplayOptions(policy="tests.support.policies:OddJobs")
    sjf, own, plain = read('{"name": "sjf", "policy": "sjf"}', '{"options": {"policy": "lpm"}}', PLAIN, options=flags)
    assert (sjf.options.policy, own.options.policy) == ("sjf", "lpm")
    assert plain.options == flags
    # Options of a policy that no variant uses are nobody's.
    for_another = ReplayOptions(policy="tests.support.policies:OddJobs", policy_options={"x": 1})
    assert read('{"policy": "sjf"}', '{"policy": "lpm"}', options=for_another)[0].options.policy_options == {}
    assert "given twice" in faults('{"policy": "sjf", "options": {"policy": "fcfs"}}', PLAIN)[0]


def test_a_policy_that_cannot_be_had() -> None:
    found = faults('{"name": "a", "policy": "sjff"}', '{"name": "b", "policy": "fcfs", "policy_options": {"x": 1}}')
    assert found[0].startswith("--variant 1: policy: ")
    assert "did you mean sjf?" in found[0]
    assert found[1].startswith("--variant 2: policy_options: fcfs takes no options")
    assert faults(PLAIN, '{"name": "b"}', options=ReplayOptions(policy="nowhere:None"))[0].startswith("--policy: ")
