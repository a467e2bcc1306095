"""A realtime run on the screen: the panel of a terminal, lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from mocker_replay.cli.live_view import clock_text, panel_of, shown_view
from mocker_replay.replay.realtime_view import RealtimeView, Views
from mocker_replay.report.realtime import Punctuality

VIEW = RealtimeView(
    wall_ms=3_725_999.0,
    rows_arrived=1_234,
    rows_total=12_031,
    in_flight=57,
    running=48,
    waiting=9,
    active_blocks=6_553,
    total_blocks=16_384,
    arrivals_per_s=3.389,
    max_lateness_ms=12.3456,
    recent_lateness_ms=0.071,
)
PANEL = """\
╭─ real time ─────────────────────────────────────────────────╮
│      time  1:02:05                arrived  1,234 of 12,031  │
│      rate  3.4 requests/s       in flight  57               │
│   running  48                     waiting  9                │
│ KV blocks  ━━━━━━                          40% of 16,384    │
│  late now  0.07 ms           late at most  12.35 ms         │
╰─────────────────────────────────────────────────────────────╯
"""
EMPTY_PANEL = """\
╭─ real time ─────────────────────────────────────────────────╮
│      time  0:00:00                arrived  0 of 0           │
│      rate  0.0 requests/s       in flight  0                │
│   running  0                      waiting  0                │
│ KV blocks                                  0% of 0          │
│  late now  0.00 ms           late at most  0.00 ms          │
╰─────────────────────────────────────────────────────────────╯
"""


@pytest.mark.parametrize(
    ("view", "text"), [(VIEW, PANEL), (RealtimeView(0.0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0), EMPTY_PANEL)]
)
def test_the_panel(view: RealtimeView, text: str) -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(panel_of(view))
    assert out.getvalue() == text


@pytest.mark.parametrize(
    ("wall_ms", "text"),
    [
        (0.0, "0:00:00"),
        (999.999, "0:00:00"),
        (61_000.0, "0:01:01"),
        (3_599_999.0, "0:59:59"),
        (90_000_000.0, "25:00:00"),
    ],
)
def test_the_clock(wall_ms: float, text: str) -> None:
    assert clock_text(wall_ms) == text


def test_plain_lines_come_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_view(quiet=False) as watch:
        assert watch is not None
        for wall_ms in (250.0, 9_999.0, 10_000.0, 10_250.0, 19_999.0, 20_500.0, 30_250.0):
            watch(VIEW._replace(wall_ms=wall_ms))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "0:00:10: 1,234 of 12,031 arrived, 48 running, 9 waiting, at most 12.35 ms late",
        "0:00:20: 1,234 of 12,031 arrived, 48 running, 9 waiting, at most 12.35 ms late",
    ]


def test_quiet_shows_nothing() -> None:
    with shown_view(quiet=True) as watch:
        assert watch is None


def test_a_panel_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    with shown_view(quiet=False) as watch:
        assert watch is not None
        watch(VIEW._replace(rows_arrived=7))
        watch(VIEW)
    out, err = capsys.readouterr()
    assert out == ""
    assert "7 of 12,031" in err
    assert "1,234 of 12,031" in err
    assert "late at most" in err


def test_a_look_tells_of_the_time_since_the_last_one() -> None:
    punctuality, wall_ms = Punctuality(), [-3.0]
    views = Views(9, 100, punctuality, lambda: np.array([[1, 5, 2, 3], [10, 50, 20, 30]]), lambda: wall_ms[0])
    assert views.look()[:8] == (0.0, 0, 9, 0, 22, 33, 11, 100)
    wall_ms[0] = 250.0
    for late_ms in (4.0, 1.0):
        punctuality.arrived(100.0, 100.0 + late_ms)
    view = views.look()
    assert (view.rows_arrived, view.in_flight, view.arrivals_per_s) == (2, 2, 8.0)
    assert (view.recent_lateness_ms, view.max_lateness_ms) == (4.0, 4.0)
    wall_ms[0] = 500.0
    punctuality.arrived(300.0, 302.0)
    view = views.look()
    assert (view.rows_arrived, view.arrivals_per_s, view.recent_lateness_ms, view.max_lateness_ms) == (3, 4.0, 2.0, 4.0)
    wall_ms[0] = 750.0
    assert views.look().recent_lateness_ms == 0.0
