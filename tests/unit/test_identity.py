"""Stable names: published vectors."""

from __future__ import annotations

import uuid

import pytest

from mocker_replay.identity import deterministic_output_tokens, stable_request_uuid, stable_request_uuid_text

VECTORS = [
    (0, "", "71e0a991-7356-4931-80b8-acc52d2685a8", [4509, 5354, 30991, 18755]),
    (0, "request", "04d097ca-251d-4e84-8118-fee7334a1a5e", [11519, 17612, 18701, 19281]),
    (42, "chatcmpl-1", "2d846617-08d7-48b8-841a-ae9dd82eddb5", [22280, 23508, 2791, 18754]),
    (42, "chatcmpl-2", "a37983db-1ce7-49fd-8590-0e0c7839246d", [9040, 27335, 3838, 7646]),
    (7, "req-0001", "2d04d9e6-a62d-49a0-9092-8e8cbb702db2", [29391, 15111, 28727, 8357]),
    (2**64 - 1, "max", "bdfd8899-7bdc-400c-bd21-39179e70086c", [2332, 6210, 1914, 26339]),
    (1, "日本語", "e6e006c3-949b-4ad6-b3fe-6a4532bf4ed8", [12963, 29563, 17969, 8696]),
    (0, "\0", "9d15372b-1830-435a-8a2d-05214669e327", [7789, 31035, 18926, 4377]),
    (256, "a", "e4201a05-b7c4-4b1b-a075-18038acf66c7", [7364, 25715, 19913, 2289]),
    (1, "\0a", "14064bb1-c811-48a6-8979-f79379894b9c", [14975, 5874, 30370, 26754]),
]


@pytest.mark.parametrize(("seed", "name", "expected", "tokens"), VECTORS)
def test_vectors(seed: int, name: str, expected: str, tokens: list[int]) -> None:
    identity = stable_request_uuid(seed, name)
    assert str(identity) == stable_request_uuid_text(seed, name) == expected
    assert identity.version == 4
    assert identity.variant == uuid.RFC_4122
    assert deterministic_output_tokens(seed, name, 4) == tokens
    assert deterministic_output_tokens(seed, name, 2) == tokens[:2]
    assert deterministic_output_tokens(seed, name, 0) == []


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        stable_request_uuid(seed, "a")
    with pytest.raises(ValueError, match="seed"):
        deterministic_output_tokens(seed, "a", 1)
