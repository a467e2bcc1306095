"""Numbers with many digits: what the peer was seen to make of them, and decimals that are read alike by all."""

from __future__ import annotations

import random

import pytest

from mocker_replay.config.decimals import read_json_number
from mocker_replay.trace.decimals import is_read_alike, write_decimal

# Seen: the text in a trace, the arrival in the peer's report. float() gives another value for each.
SEEN = [
    ("4189940238.1914973", 4189940238.191498),
    ("93770.715679824416255926e-17", 9.377071567982443e-13),
    ("32802.854850595284272974e3", 32802854.85059528),
    ("103609951876500387e-18", 0.10360995187650038),
    ("9821.9847992431807295e-2", 98.2198479924318),
    ("50.6892072787503851526", 50.68920727875038),
    ("903442914732454766e-8", 9034429147.324549),
    ("425823726057916034955265274435", 4.258237260579161e29),
    ("917.3385974211765", 917.3385974211764),
    ("89725733332.33336639938122", 89725733332.33336),
    ("13.335520869913559", 13.33552086991356),
]


@pytest.mark.parametrize(("text", "value"), SEEN)
def test_numbers_are_read_as_the_peer_reads_them(text: str, value: float) -> None:
    assert read_json_number(text) == value != float(text)
    assert read_json_number("-" + text) == -value


@pytest.mark.parametrize(("text", "value"), SEEN)
def test_such_numbers_are_not_taken_for_short_ones(text: str, value: float) -> None:
    assert not is_read_alike(text.encode())


def test_short_numbers_are_read_alike() -> None:
    rng = random.Random(8)
    for _ in range(2000):
        text = f"{rng.randrange(10 ** rng.randint(1, 8))}.{rng.randrange(10**7):07d}"
        assert is_read_alike(text.encode())
        assert read_json_number(text) == float(text)


def test_written_decimals_are_read_alike_by_all() -> None:
    rng = random.Random(7)
    values = [rng.random() * 10.0 ** rng.randint(-3, 12) for _ in range(2000)] + [0.0, 5.0, 1e-9, 1e300]
    texts = [write_decimal(value) for value in values]
    assert [float(text) for text in texts] == values
    out_of_reach = sum(read_json_number(text) != value for text, value in zip(texts, values, strict=True))
    assert out_of_reach <= 10
    assert sum(len(text) <= len(repr(value)) for text, value in zip(texts, values, strict=True)) > 1500
