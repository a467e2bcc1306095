"""Two logs compared: what counts as the same, what is told of the first difference, which exit code follows."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from mocker_replay.errors import ExitCode, UsageError
from mocker_replay.log import diff_side
from mocker_replay.log.diff import diff_logs
from mocker_replay.log.diff_fields import KNOWN_FIELDS
from mocker_replay.log.diff_result import LogDiff
from mocker_replay.log.field_differences import FieldDifference
from mocker_replay.log.reader import LogError
from mocker_replay.log.wall import bare_line
from tests.support.logs import LogText, random_run, read_log, record, with_footer, write_log

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "tests" / "golden" / "event_log" / "sample.jsonl"
REALTIME = ROOT / "tests" / "golden" / "realtime" / "complete-kv.jsonl"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a log under a name."""

    def written(log: LogText, name: str) -> Path:
        return write_log(tmp_path / name, log)

    return written


def sample() -> LogText:
    return read_log(SAMPLE)


def changed(log: LogText, seq: int, **fields: Any) -> LogText:
    """The log with other values in one line, and a footer that is true of it."""
    lines = list(log.lines)
    lines[seq] = orjson.dumps(orjson.loads(lines[seq]) | fields)
    return with_footer(log.header, lines, orjson.loads(log.footer)["end"])


def seq_of(log: LogText, **fields: Any) -> int:
    """The first line with these values."""
    for seq, line in enumerate(log.lines):
        event = orjson.loads(line)
        if all(event.get(name) == value for name, value in fields.items()):
            return seq
    raise LookupError(fields)


# -- the same ----------------------------------------------------------------------------------------


def test_footers_that_agree_are_believed(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = write(sample(), "a.jsonl"), write(sample(), "b.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(diff_side.EventLogReader, "blocks", None)  # reading would fail
        diff = diff_logs(a, b)
    assert (diff.same, diff.is_believed, diff.counts, diff.metrics) == (True, True, None, ())
    assert diff.num_events == (42, 42)
    diff = diff_logs(a, b, verify=True)
    assert (diff.same, diff.is_believed) == (True, False)
    assert diff.counts is not None
    assert diff.counts.total("same") == 42
    assert diff.exit_code == ExitCode.OK


def test_a_stale_footer_is_found_by_verify_alone(write: Callable[..., Path]) -> None:
    log = sample()
    lines = [log.lines[0].replace(b'"input_tokens":', b'"input_tokens":1'), *log.lines[1:]]
    a, b = write(log, "a.jsonl"), write(LogText(log.header, lines, log.footer), "b.jsonl")
    assert diff_logs(a, b).same
    diff = diff_logs(a, b, verify=True)
    assert (diff.same, diff.exit_code) == (False, ExitCode.DIFFERS)
    assert diff.damage[0] is None
    assert "digest: the footer must agree" in str(diff.damage[1])


def test_the_same_events_under_an_untrue_footer_are_no_success(write: Callable[..., Path]) -> None:
    log = sample()
    footer = log.footer.replace(b'"digest":"', b'"digest":"0')
    a, b = write(log, "a.jsonl"), write(LogText(log.header, log.lines, footer), "b.jsonl")
    diff = diff_logs(a, b)
    assert (diff.first, diff.exit_code) == (None, ExitCode.USAGE)
    assert diff.to_mapping()["same"] is False


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_logs_are_read(write: Callable[..., Path], tmp_path: Path, suffix: str) -> None:
    plain = write(sample(), "a.jsonl")
    packed = tmp_path / f"b.jsonl.{suffix}"
    compress = gzip.compress if suffix == "gz" else zstandard.ZstdCompressor().compress
    packed.write_bytes(compress(plain.read_bytes()))
    diff = diff_logs(plain, packed)
    assert (diff.same, diff.is_believed) == (True, False)
    packed.write_bytes(compress(plain.read_bytes()[:-1]))
    diff = diff_logs(plain, packed)
    assert (diff.is_cut, diff.exit_code) == (True, ExitCode.USAGE)


def test_what_the_clock_said_never_counts(write: Callable[..., Path]) -> None:
    log = read_log(REALTIME)
    bare = [bare_line(line) for line in log.lines]
    assert bare != log.lines
    header = {key: value for key, value in orjson.loads(log.header).items() if key != "wall"}
    accelerated = with_footer(orjson.dumps(header), bare)
    b = write(accelerated, "b.jsonl")
    for verify in (False, True):
        diff = diff_logs(REALTIME, b, verify=verify)
        assert (diff.same, diff.settings) == (True, ())
    other = write(changed(accelerated, 40, t_ms=0.125), "c.jsonl")
    diff = diff_logs(REALTIME, other)
    assert diff.first is not None
    assert (diff.first.seq, [found.field for found in diff.first.fields]) == (40, ["t_ms"])
    assert diff.first.history is not None
    assert all("wall" not in event for event in (diff.first.a or {}, *diff.first.history.events))


def test_another_end_of_the_same_events_is_a_difference(write: Callable[..., Path]) -> None:
    log = sample()
    ended = with_footer(log.header, log.lines, "interrupted")
    a, b = write(log, "a.jsonl"), write(ended, "b.jsonl")
    for verify in (False, True):
        diff = diff_logs(a, b, verify=verify)
        assert diff.footer == (FieldDifference("end", "complete", "interrupted"),)
        assert (diff.same, diff.exit_code) == (False, ExitCode.DIFFERS)


# -- settings ----------------------------------------------------------------------------------------


def test_settings_explain_and_do_not_count(write: Callable[..., Path]) -> None:
    log = sample()
    header = orjson.loads(log.header)
    header["options"] = {"num_workers": 2, "sla_ttft_ms": 5.0, "telemetry_sample_interval_ms": 1.0}
    header["trace"]["digest"] = "11"
    header["config"]["dynamo"] = {"bootstrap_port": 1}
    header["config"]["engine"]["sglang"] = {"schedule_policy": "lpm"}
    a, b = write(log, "a.jsonl"), write(LogText(orjson.dumps(header), log.lines, log.footer), "b.jsonl")
    diff = diff_logs(a, b)
    assert diff.exit_code == ExitCode.OK
    assert diff.settings == (
        FieldDifference("trace.digest", "00", "11"),
        FieldDifference("options.num_workers", 1, 2),
    )
    everything = {found.field for found in diff_logs(a, b, all_settings=True).settings}
    assert everything == {
        "trace.digest", "options.num_workers", "options.sla_ttft_ms", "options.telemetry_sample_interval_ms",
        "config.dynamo", "config.engine.sglang",
    }  # fmt: skip
    header["config"]["engine"]["backend"] = "sglang"
    b = write(LogText(orjson.dumps(header), log.lines, log.footer), "b.jsonl")
    assert "config.engine.sglang" in {found.field for found in diff_logs(a, b).settings}


# -- fields left out ---------------------------------------------------------------------------------


def test_ignored_fields_are_left_out(write: Callable[..., Path]) -> None:
    log = sample()
    seq = seq_of(log, event="pass_end")
    ranks = orjson.loads(log.lines[seq])["ranks"]
    ranks[0]["fpm"]["wall_time"] += 1.0
    a, b = write(log, "a.jsonl"), write(changed(log, seq, ranks=ranks), "b.jsonl")
    assert first_seq(diff_logs(a, b)) == seq
    for name in ("wall_time", "ranks.fpm.wall_time", "fpm", "ranks.fpm", "ranks"):
        diff = diff_logs(a, b, ignore=[name])
        assert diff.same, name
        assert diff.ignored == (name,)
    assert not diff_logs(a, b, ignore=["ranks.wall_time", "gauges.wall_time"]).same
    # A later difference is still found, and the earlier one is not counted.
    later = changed(changed(log, seq, ranks=ranks), 33, t_ms=99.5)
    diff = diff_logs(a, write(later, "c.jsonl"), ignore=["wall_time"])
    assert first_seq(diff) == 33
    assert diff.counts is not None
    assert (diff.counts.total("moved"), diff.counts.total("same")) == (1, 41)


def test_ignoring_seq_is_possible(write: Callable[..., Path]) -> None:
    log = sample()
    lines = [re.sub(rb'"seq":(\d+)', rb'"seq":1\1', line) for line in log.lines]
    digest = with_footer(log.header, log.lines)
    a, b = (
        write(log, "a.jsonl"),
        write(LogText(log.header, lines, digest.footer.replace(b'"events":42', b'"events":43')), "b.jsonl"),
    )
    diff = diff_logs(a, b)
    assert diff.first is not None
    assert (diff.first.seq, diff.first.verdict) == (0, "renumbered")
    assert diff.counts is not None
    assert diff.counts.total("same") == 42
    assert diff_logs(a, b, ignore=["seq"]).first is None


def test_a_field_that_no_line_has_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean gauges") as raised:
        diff_logs(SAMPLE, SAMPLE, ignore=["guages", "fpm.x", "t_ms"])
    assert [fault.value for fault in raised.value.faults] == ["guages", "fpm.x"]
    with pytest.raises(UsageError, match="at most 64"):
        diff_logs(
            SAMPLE, SAMPLE, ignore=sorted(KNOWN_FIELDS - {"seq"})[:10] + [f"ranks.fpm.{name}" for name in KNOWN_FIELDS]
        )


def test_known_fields_are_those_of_the_docs() -> None:
    text = (ROOT / "docs" / "event-log.md").read_text(encoding="utf-8")
    lines = text[text.index("## Fields of every event") : text.index("## Header and footer")]
    seen: set[str] = set()

    def names(value: Any) -> None:
        if isinstance(value, dict):
            seen.update(value)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            names(item)

    for line in re.findall(r'^\{"seq".*\}$', lines, re.MULTILINE):
        names(orjson.loads(line))
    assert len(seen) > 50
    assert seen - {"event"} <= KNOWN_FIELDS
    described = set(re.findall(r"`([a-z_]+)`", lines))
    assert described | seen >= KNOWN_FIELDS


# -- levels ------------------------------------------------------------------------------------------


def test_two_levels_are_compared_at_the_lower_one(tmp_path: Path) -> None:
    for seed in range(12):
        run = random_run(seed)
        logs = {
            level: record(run._replace(level=level), tmp_path, f"{level}.jsonl")
            for level in ("requests", "passes", "tokens", "kv")
        }
        for a, b in (("requests", "kv"), ("kv", "passes"), ("tokens", "requests")):
            diff = diff_logs(logs[a], logs[b])
            lower = min(a, b, key=list(logs).index)
            assert (diff.same, diff.level, diff.levels) == (True, lower, (a, b))
            assert diff.num_events[0] == diff.num_events[1] == len(read_log(logs[lower]).lines)


def test_the_first_difference_of_two_levels_is_told_as_it_stands(tmp_path: Path) -> None:
    run = random_run(5)
    low = record(run._replace(level="requests"), tmp_path, "low.jsonl")
    high = read_log(record(run._replace(level="kv"), tmp_path, "high.jsonl"))
    seq = seq_of(high, event="finish")
    diff = diff_logs(low, write_log(tmp_path / "high.jsonl", changed(high, seq, reason="model_len")))
    first = diff.first
    assert first is not None
    assert first.a is not None
    assert first.b is not None
    assert first.b["seq"] == seq
    assert first.b_line == seq + 2
    assert first.a["seq"] == read_log(low).lines.index(orjson.dumps(first.a))
    assert first.a_line == first.a["seq"] + 2
    assert [found.field for found in first.fields] == ["reason"]
    assert (first.verdict, first.pass_here) == ("changed", None)


# -- the first difference ----------------------------------------------------------------------------


def first_seq(diff: LogDiff) -> int | None:
    assert diff.first is not None
    return diff.first.seq


def test_the_first_difference_is_told_with_its_pass_and_its_history(write: Callable[..., Path]) -> None:
    log = sample()
    seq = seq_of(log, event="preemption")
    name = orjson.loads(log.lines[seq])["request"]
    a, b = write(log, "a.jsonl"), write(changed(log, seq, blocks_held=7), "b.jsonl")
    first = diff_logs(a, b, history_lines=3).first
    assert first is not None
    assert first.fields == (FieldDifference("blocks_held", 2, 7),)
    assert (first.a_line, first.b_line, first.verdict) == (seq + 2, seq + 2, "changed")
    assert first.pass_here is not None
    assert (first.pass_here.worker, first.pass_here.pass_id, first.pass_here.state) == (0, 1, "in flight")
    earlier = [orjson.loads(line) for line in log.lines[:seq]]
    own = [event for event in earlier if event.get("request") == name]
    assert first.history is not None
    assert (first.history.about, first.history.num_lines) == (f"request {name}", len(own))
    assert list(first.history.events) == [own[0], *own[-2:]]


def test_a_line_of_a_pass_is_about_the_request_whose_share_differs(write: Callable[..., Path]) -> None:
    log = sample()
    seq = seq_of(log, event="pass_start", **{"pass": 1})
    ranks = orjson.loads(log.lines[seq])["ranks"]
    ranks[0]["prefill"][1][1] += 1
    diff = diff_logs(write(log, "a.jsonl"), write(changed(log, seq, ranks=ranks), "b.jsonl"))
    assert diff.first is not None
    assert diff.first.history is not None
    assert diff.first.history.about == "request r0"
    assert diff.first.pass_here is not None
    assert (diff.first.pass_here.pass_id, diff.first.pass_here.state) == (1, "starts")
    ranks[0]["prefill"][1][1] -= 1
    ranks[0]["scheduled_tokens"] += 1
    diff = diff_logs(write(log, "a.jsonl"), write(changed(log, seq, ranks=ranks), "b.jsonl"))
    assert diff.first is not None
    assert diff.first.history is not None
    assert diff.first.history.about == "worker 0"
    assert {event["event"] for event in diff.first.history.events} == {"pass_start", "pass_end"}


def test_the_worker_of_a_line_that_names_none_is_that_of_its_request(tmp_path: Path) -> None:
    log = read_log(record(random_run(3, level="tokens"), tmp_path))
    seq = seq_of(log, event="tokens")
    a = write_log(tmp_path / "a.jsonl", log)
    diff = diff_logs(a, write_log(tmp_path / "b.jsonl", changed(log, seq, tokens=9)))
    assert diff.first is not None
    assert diff.first.pass_here is not None
    name = orjson.loads(log.lines[seq])["request"]
    assert diff.first.pass_here.worker == orjson.loads(log.lines[seq_of(log, event="arrival", request=name)])["worker"]
    assert diff.first.pass_here.state == "ended"


def test_one_log_may_go_on_where_the_other_has_ended(write: Callable[..., Path]) -> None:
    log = sample()
    short = with_footer(log.header, log.lines[:-3])
    a, b = write(log, "a.jsonl"), write(short, "b.jsonl")
    first = diff_logs(a, b).first
    assert first is not None
    assert (first.seq, first.b, first.b_line, first.fields, first.verdict) == (39, None, None, (), "missing")
    first = diff_logs(b, a).first
    assert first is not None
    assert (first.seq, first.a, first.verdict) == (39, None, "extra")
    nothing = write(with_footer(log.header, []), "c.jsonl")
    assert first_seq(diff_logs(nothing, a)) == 0
    assert diff_logs(nothing, nothing, verify=True).exit_code == ExitCode.OK


def test_a_truncated_log_is_compared_as_far_as_it_goes(write: Callable[..., Path], tmp_path: Path) -> None:
    a = write(sample(), "a.jsonl")
    b = tmp_path / "b.jsonl"
    b.write_bytes(a.read_bytes()[:-1])  # the LF of the footer
    diff = diff_logs(a, b)
    assert (diff.first, diff.is_cut, diff.exit_code) == (None, True, ExitCode.USAGE)
    assert diff.damage[0] is None
    assert "truncated after line 43" in str(diff.damage[1])
    b.write_bytes(b"".join(a.read_bytes().splitlines(keepends=True)[:20]) + b'{"se')
    diff = diff_logs(a, b)
    assert (first_seq(diff), diff.exit_code) == (19, ExitCode.USAGE)
    b.write_bytes(a.read_bytes()[:30])
    with pytest.raises(LogError, match="truncated"):
        diff_logs(a, b)


def test_a_line_that_is_no_json_is_named(write: Callable[..., Path]) -> None:
    log = sample()
    lines = [*log.lines[:9], b'{"seq":9,"oops"', *log.lines[10:]]
    a, b = write(log, "a.jsonl"), write(LogText(log.header, lines, log.footer), "b.jsonl")
    with pytest.raises(LogError, match=r"b\.jsonl:11: not a JSON line"):
        diff_logs(a, b, verify=True)


def test_bad_usage_is_refused(tmp_path: Path) -> None:
    for arguments in ({"window_lines": 0}, {"window_lines": 1 << 30}, {"history_lines": -1}):
        with pytest.raises(UsageError):
            diff_logs(SAMPLE, SAMPLE, **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="standard input"):
        diff_logs("-", "-")
    with pytest.raises(LogError, match="cannot read"):
        diff_logs(SAMPLE, tmp_path / "none.jsonl")
    odd = tmp_path / "odd.jsonl"
    odd.write_bytes(SAMPLE.read_bytes().replace(b'"level":"kv"', b'"level":"kw"', 1))
    with pytest.raises(LogError, match="level: must be one of"):
        diff_logs(SAMPLE, odd)


# -- counts and figures ------------------------------------------------------------------------------


def test_a_slower_engine_moves_lines_and_figures(tmp_path: Path) -> None:
    run = random_run(11, level="tokens")
    run.config["engine"]["timing_model"] = {"type": "fixed", "prefill_ms": 3.0, "decode_ms": 1.0}
    a = record(run, tmp_path, "a.jsonl")
    slower = {**run.config, "engine": {**run.config["engine"], "speedup_ratio": 0.5}}
    b = record(run, tmp_path, "b.jsonl", config=slower)
    diff = diff_logs(a, b)
    assert diff.settings == (FieldDifference("config.engine.speedup_ratio", 1.0, 0.5),)
    assert diff.counts is not None
    assert diff.counts.by_event["arrival"]["same"] == len(run.rows)
    assert diff.counts.total("moved") > 10
    assert diff.counts.later_ms > 0.0
    figures = {metric.name: metric for metric in diff.metrics}
    assert (figures["mean_ttft_ms"].change or 0.0) > 0.0
    assert (figures["mean_itl_ms"].relative or 0.0) > 0.0
    assert figures["arrived"].change == 0
    below = {metric.name for metric in diff_logs(record(run._replace(level="passes"), tmp_path, "c.jsonl"), b).metrics}
    assert "passes" in below
    assert "mean_itl_ms" not in below


def test_lines_that_wait_too_long_give_up(tmp_path: Path) -> None:
    log = read_log(record(random_run(2, level="passes"), tmp_path))
    a = write_log(tmp_path / "a.jsonl", log)
    moved = with_footer(log.header, [*log.lines[1:], log.lines[0]])  # the first arrival at the very end
    b = write_log(tmp_path / "b.jsonl", moved)
    wide = diff_logs(a, b).counts
    assert wide is not None
    assert (wide.total("reordered"), wide.given_up) == (1, (0, 0))
    narrow = diff_logs(a, b, window_lines=1).counts
    assert narrow is not None
    assert narrow.given_up != (0, 0)
    assert narrow.total("missing") == narrow.total("extra") > 0


def test_a_result_can_be_written_as_json(write: Callable[..., Path]) -> None:
    a, b = write(sample(), "a.jsonl"), write(changed(sample(), 11, end_ms=1.5), "b.jsonl")
    mapping = orjson.loads(orjson.dumps(diff_logs(a, b).to_mapping()))
    assert list(mapping) == [
        "a", "b", "same", "believed", "level", "levels", "events", "ignored", "settings", "first", "footer", "counts",
        "metrics", "damage",
    ]  # fmt: skip
    assert mapping["first"]["fields"] == [{"field": "end_ms", "a": 18.023974000000003, "b": 1.5}]
    assert mapping["first"]["class"] == "moved"
    assert mapping["counts"]["total"]["moved"] == 1
    assert mapping["counts"]["by_event"]["pass_start"]["moved"] == 1
