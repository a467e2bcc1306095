"""Names that follow from a seed and a request's name, the same on every machine.

Decides request UUIDs and synthetic output tokens. Never draws a random number.
"""

from __future__ import annotations

import uuid
from typing import Final

from blake3 import blake3

FIRST_TOKEN_ID: Final = 1000
NUM_TOKEN_IDS: Final = 31_000


def stable_request_uuid(seed: int, request_id: str) -> uuid.UUID:
    """UUID of a request: 16 bytes of BLAKE3(seed as 8 bytes little-endian, then the name in UTF-8), marked version 4.

    Raises:
        ValueError: the seed is not in 0..2**64-1.
    """
    return uuid.UUID(stable_request_uuid_text(seed, request_id))


def stable_request_uuid_text(seed: int, request_id: str) -> str:
    """The same UUID as text, without the cost of a UUID object: one is written into every per-request record."""
    digest = blake3(_seed_bytes(seed) + request_id.encode()).hexdigest(16)
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:]}"


def uuid_text_of_number(number: int) -> str:
    """A number below 2^128 written as a UUID."""
    return str(uuid.UUID(int=number))


def deterministic_output_tokens(seed: int, request_id: str, count: int, *, first: int = 0) -> list[int]:
    """Output token ids of a request from position `first` on, in [1000, 31999]; each follows from its position.

    Token p comes from BLAKE3(seed, name, p as 8 bytes little-endian): its first four bytes, read little-endian.

    Raises:
        ValueError: the seed is not in 0..2**64-1.
    """
    prefix = blake3(_seed_bytes(seed) + request_id.encode())
    tokens = []
    for position in range(first, first + count):
        hasher = prefix.copy()
        hasher.update(position.to_bytes(8, "little"))
        tokens.append(FIRST_TOKEN_ID + int.from_bytes(hasher.digest(4), "little") % NUM_TOKEN_IDS)
    return tokens


def _seed_bytes(seed: int) -> bytes:
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed lies in 0..2**64-1, got {seed}")
    return seed.to_bytes(8, "little")
