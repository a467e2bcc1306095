"""Progress for people: lines where there is no terminal, a bar where there is one, nothing when quiet."""

from __future__ import annotations

import pytest

from mocker_replay.cli import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_come_every_ten_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown_progress(quiet=False) as show:
        assert show is not None
        for second in (1, 9, 10, 11, 19, 21):
            clock[0] = float(second)
            show(second * 100, 4_200, second * 1_000.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "replaying: 1,000 of 4,200 rows (24%), 100 rows/s, 32 s left",
        "replaying: 2,100 of 4,200 rows (50%), 100 rows/s, 21 s left",
    ]


def test_no_rows_and_nothing_done_yet(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown_progress(quiet=False) as show:
        assert show is not None
        clock[0] = 20.0
        show(0, 0, 0.0)
    assert capsys.readouterr().err == "replaying: 0 of 0 rows, 0 rows/s\n"


def test_quiet_shows_nothing() -> None:
    with progress.shown_progress(quiet=True) as show:
        assert show is None


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.shown_progress(quiet=False) as show:
        assert show is not None
        show(500, 1_000, 3_000.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert "500 of 1,000 rows" in err
    assert "50%" in err
