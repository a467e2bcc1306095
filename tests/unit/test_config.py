"""Loading, validating and writing out the engine's settings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mocker_replay.config import EngineConfig, TimingModel, load_engine_config
from mocker_replay.config.origin import json_keys
from mocker_replay.errors import ConfigError, ExitCode, UsageError

FIXED = {"type": "fixed", "prefill_ms": 10, "decode_ms": 1}


class SlowPrefill:
    """A timing model of a user's."""

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        return 10.0

    def decode(self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int) -> float:
        return 1.0


def faults_of(source: object, **overrides: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_engine_config(source, overrides)  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.USAGE
    assert str(caught.value) == "\n".join(str(fault) for fault in caught.value.faults)
    return [str(fault) for fault in caught.value.faults]


def test_defaults() -> None:
    assert load_engine_config() == EngineConfig()
    assert load_engine_config({}) == load_engine_config("{}") == EngineConfig()


def test_sources_are_equal(tmp_path: Path) -> None:
    mapping = {"engine": {"block_size": 16, "num_gpu_blocks": 200, "timing_model": FIXED}, "dp_size": 2}
    json_file = tmp_path / "engine.json"
    json_file.write_text(json.dumps(mapping))
    toml_file = tmp_path / "engine.toml"
    toml_file.write_text(
        "dp_size = 2\n[engine]\nblock_size = 16\nnum_gpu_blocks = 200\n"
        '[engine.timing_model]\ntype = "fixed"\nprefill_ms = 10\ndecode_ms = 1.0\n'
    )
    config = load_engine_config(mapping)
    assert config.block_size == 16
    assert config.dp_size == 2
    assert config.timing_model == TimingModel("fixed", 10.0, 1.0)
    assert config == load_engine_config(json.dumps(mapping)) == load_engine_config(json_file)
    assert config == load_engine_config(str(toml_file)) == load_engine_config(config)


def test_overrides_win_and_are_named_by_their_flag() -> None:
    config = load_engine_config({"engine": {"block_size": 16}}, {"block_size": 32, "dp_size": 4, "num_gpu_blocks": 7})
    assert (config.block_size, config.dp_size, config.num_gpu_blocks) == (32, 4, 7)
    assert config.num_gpu_blocks_is_explicit
    with pytest.raises(ConfigError) as caught:
        load_engine_config(None, {"block_size": 0, "dp_size": 0}, override_names={"block_size": "--block-size"})
    assert str(caught.value) == "--block-size: must be positive (got 0)\noverride: dp_size: must be positive (got 0)"
    with pytest.raises(UsageError, match="override blocksize: unknown key; did you mean block_size"):
        load_engine_config(None, {"blocksize": 1})


def test_a_mapping_is_left_alone() -> None:
    mapping: dict[str, object] = {"engine": {"block_size": 16}}
    load_engine_config(mapping, {"block_size": 32})
    assert mapping == {"engine": {"block_size": 16}}


def test_all_faults_in_one_pass() -> None:
    found = faults_of(
        {"engine": {"num_gpu_blocks": 0, "block_size": "x", "spedup_ratio": 1}, "dp_size": -1, "bogus": 1}
    )
    assert found == [
        'engine config: engine.block_size: must be a whole number, not negative and at most 2^64-1 or null (got "x")',
        "engine config: engine.spedup_ratio: unknown key; did you mean speedup_ratio? (got 1)",
        "engine config: dp_size: must be a whole number, not negative and at most 2^32-1 (got -1)",
        "engine config: bogus: unknown key; known are engine, dp_size, tensor_parallel_size, startup_time, "
        "num_gpu_blocks_is_explicit, gpu_memory_utilization, mem_fraction_static, free_gpu_memory_fraction, "
        "cuda_graph_reserved_bytes, dynamo (got 1)",
        "engine config: engine.num_gpu_blocks: must be positive (got 0)",
    ]


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        ({"engine": {"dp_size": 2}}, "belongs beside engine"),
        ({"block_size": 2}, "belongs under engine"),
        ({"engine": {"page_size": 2}}, "did you mean block_size?"),
        ({"engine": {"data_parallel_size": 2}}, r"did you mean dp_size\? \(it belongs beside engine"),
        ({"engine": {"max-num-seqs": 2}}, "did you mean max_num_seqs?"),
        ({"engine": {"backend": "vlm"}}, "did you mean vllm?"),
        ({"engine": {"timing_model": {"type": "fixd"}}}, "did you mean fixed?"),
        ({"dynamo": {"bootstrap": 1}}, "did you mean bootstrap_port?"),
    ],
)
def test_hints(document: object, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        load_engine_config(document)  # type: ignore[arg-type]


def test_faults_of_a_file_have_lines(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text(
        '{\n "engine": {\n  "block_size": 0,\n'
        '  "timing_model":\n   {"type": "fixed",\n    "prefill_ms": -1, "decode_ms": 1}}}'
    )
    assert faults_of(path) == [
        f"{path}:3: engine.block_size: must be positive (got 0)",
        f"{path}:6: engine.timing_model.prefill_ms: must be finite and non-negative (got -1.0)",
    ]


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b'{"engine": {', "not valid JSON"),
        (b'{"a": 1, "a": 2}', "key given twice"),
        (b"\xff", "is not UTF-8 at byte 0"),
        (b"[" * 100_000, "not valid JSON: nested too deep"),
        (b'{"dp_size": ' + b"9" * 5000 + b"}", "not valid JSON|whole number"),
        (b"", "not valid JSON"),
        (b"[1]", "must be a mapping"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, content: bytes, rule: str) -> None:
    path = tmp_path / "engine.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rule):
        load_engine_config(path)


def test_missing_files_and_broken_toml(tmp_path: Path) -> None:
    assert faults_of(tmp_path / "no.json") == [
        f"{tmp_path / 'no.json'}: no such file (JSON text would begin with a brace)"
    ]
    with pytest.raises(ConfigError, match="cannot be read"):
        load_engine_config(tmp_path)
    path = tmp_path / "engine.toml"
    path.write_text("[engine\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_engine_config(path)
    path.write_text("[engine]\nspeedup_ratio = inf\nkv_transfer_bandwidth = 1_0.5\n")
    assert faults_of(path) == [f"{path}: engine.speedup_ratio: must be a finite number (got Infinity)"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400])
def test_numbers_must_be_finite(value: float) -> None:
    with pytest.raises(ConfigError, match="must be a finite number"):
        load_engine_config({"engine": {"speedup_ratio": value}})


def test_numbers_of_numpy_are_numbers() -> None:
    config = load_engine_config({"engine": {"block_size": np.int64(16), "speedup_ratio": np.float64(0.5)}})
    assert config.block_size == 16
    assert type(config.block_size) is int
    assert type(config.speedup_ratio) is float
    with pytest.raises(ConfigError, match="true or false"):
        load_engine_config({"engine": {"enable_prefix_caching": np.int64(1)}})


def test_settings_survive_writing_and_reading_exactly() -> None:
    config = load_engine_config(
        {"engine": {"speedup_ratio": 0.8371096563171123, "aic_nextn": 3, "timing_model": FIXED}}
    )
    assert EngineConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config
    assert load_engine_config(config) == config


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_any_figures_survive(speedup: float, prefill_ms: float) -> None:
    engine = {"speedup_ratio": speedup, "timing_model": {"type": "fixed", "prefill_ms": prefill_ms, "decode_ms": 0}}
    config = load_engine_config({"engine": engine})
    assert EngineConfig.from_mapping(config.to_mapping()) == config


def test_accept_rates() -> None:
    def rates(nextn: int | None, text: str | None) -> tuple[float, ...]:
        return load_engine_config(
            {"engine": {"aic_nextn": nextn, "aic_nextn_accept_rates": text}}
        ).aic_nextn_accept_rates

    assert rates(None, None) == ()
    assert rates(2, None) == (0.85, 0.3)
    assert rates(5, " ") == (0.85, 0.3, 0.0, 0.0, 0.0)
    assert rates(3, "0.5") == (0.5, 0.0, 0.0)
    assert rates(1, "0.5, 0.25") == (0.5,)


def test_profile_files(tmp_path: Path) -> None:
    path = tmp_path / "profile.npz"
    path.write_bytes(b"")
    model = {"type": "external", "provider": "dynamo_profile", "config": {"path": str(path)}}
    config = load_engine_config({"engine": {"timing_model": model}})
    assert config.timing_model.path == str(path)
    config.require_supported()
    assert config.to_mapping()["engine"]["timing_model"] == model  # type: ignore[index]


def test_callables() -> None:
    for model in (SlowPrefill(), TimingModel("callback", callable=SlowPrefill())):
        config = load_engine_config({"engine": {"timing_model": model}})
        assert config.timing_model.type == "callback"
        assert config.timing_model.callable is not None
        assert config.timing_model.callable.prefill(1, 2, 0) == 10.0
        assert config.timing_model.to_mapping()["callable"] == f"{__name__}:SlowPrefill"
        config.require_supported()
    with pytest.raises(ConfigError, match="methods prefill and decode"):
        load_engine_config({"engine": {"timing_model": object()}})
    with pytest.raises(ConfigError, match="must have a method prefill"):
        load_engine_config({"engine": {"timing_model": TimingModel("callback")}})


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"engine": {"worker_type": "decode"}}, "engine.worker_type"),
        ({"engine": {"kv_cache_groups": [{}]}}, "engine.kv_cache_groups"),
        ({"engine": {"state_cache": {"bytes_per_request": 4}}}, "engine.state_cache"),
        ({"engine": {"prefix_match_unit": 4}}, "engine.prefix_match_unit"),
        ({"engine": {"timing_model": {"type": "external", "provider": "ais"}}}, "engine.timing_model.provider"),
    ],
)
def test_what_is_not_built_is_refused(document: dict[str, object], field: str) -> None:
    config = load_engine_config(document)
    with pytest.raises(ConfigError, match="not built") as caught:
        config.require_supported()
    assert [fault.field for fault in caught.value.faults] == [field]


def test_settings_put_together_by_hand_are_checked_before_a_run() -> None:
    config = structs.replace(EngineConfig(), block_size=0)
    with pytest.raises(ConfigError, match=r"engine\.block_size: must be positive"):
        config.require_supported()


def test_json_keys_know_their_lines() -> None:
    text = '{"a": {"b": [1,\n {"c": "}{"}],\n "d": "x\\"y"},\n "e": null, "e": {}}'
    assert list(json_keys(text)) == [
        ("a", 1, False),
        ("a.b", 1, False),
        ("a.b.c", 2, False),
        ("a.d", 3, False),
        ("e", 4, False),
        ("e", 4, True),
    ]


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_keys_find_every_key(value: object) -> None:
    def count(item: object) -> int:
        if isinstance(item, dict):
            return len(item) + sum(count(inner) for inner in item.values())
        return sum(count(inner) for inner in item) if isinstance(item, list) else 0

    assert sum(1 for _ in json_keys(json.dumps(value, indent=1))) == count(value)
