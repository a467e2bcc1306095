"""What goes into a live engine and what comes out of it: requests, signals, admissions.

Decides how a prompt becomes block identities. Never decides when anything happens. Source: boundary specification,
sections 2, 3 and 5.
"""

from __future__ import annotations

import math
import operator
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from mocker_replay.identity import deterministic_output_tokens
from mocker_replay.live.errors import LiveError

MAX_TOKENS = 2**31 - 1


class GenerateRequest(Struct, frozen=True):
    """One request to a live engine.

    Either `prompt` (token ids), or `input_tokens` with `hash_ids`: identities of its blocks of `trace_block_size`
    tokens, a partial last one included, as in a Mooncake trace.
    """

    prompt: Sequence[int] | None = None
    input_tokens: int | None = None  # [tokens]
    hash_ids: Sequence[int] = ()
    max_output_tokens: int = 1  # [tokens]
    output_ids: Sequence[int] | None = None  # planned output tokens; their number is the output length
    client_id: uuid.UUID | None = None  # the caller's name for it; a fresh one where none is given
    priority: int = 0  # for the policy; lower goes first
    deadline_ms: float = math.inf  # for the policy: when the answer is wanted, from now on

    @property
    def effective_output_tokens(self) -> int:
        """Output tokens this request will get, unless the model's length ends it before [tokens]."""
        return self.max_output_tokens if self.output_ids is None else len(self.output_ids)

    def planned_tokens(self) -> tuple[int, ...] | None:
        """The planned output, as it is now: the caller's list may change later.

        Raises:
            LiveError: a token id that is none.
        """
        return None if self.output_ids is None else _token_ids(self.output_ids, "output_ids")


class Prompt(NamedTuple):
    """A prompt as the engine knows it."""

    input_tokens: int
    hash_ids: tuple[int, ...]
    tokens: bytes | None = None  # little-endian 32-bit words, where the caller gave tokens

    def packed(self, first: int, stop: int, trace_block_size: int) -> bytes:
        """Tokens first..stop as little-endian 32-bit words; in a block that is known by its id all are that id."""
        if self.tokens is not None:
            return self.tokens[4 * first : 4 * stop]
        ids = [self.hash_ids[at // trace_block_size] % 2**32 for at in range(first, stop)]
        return struct.pack(f"<{len(ids)}I", *ids)


class Terms(NamedTuple):
    """What a policy may know of a request besides its lengths."""

    priority: int
    arrival_ms: float  # since the engine's start
    deadline_ms: float  # the same; inf if nobody said


class Asked(NamedTuple):
    """What a submission brings to the scheduler."""

    prompt: Prompt
    output_tokens: int
    terms: Terms


def terms_of(request: GenerateRequest, arrival_ms: float, deadline_ms: float | None) -> Terms:
    """Terms of a request that arrives at `arrival_ms`.

    Args:
        deadline_ms: when the answer is wanted, since the engine's start; None: as the request says.

    Raises:
        LiveError: a priority or a deadline that is none.
    """
    try:
        priority = operator.index(request.priority)
    except TypeError:
        raise LiveError(f"priority must be an integer (got {request.priority!r})") from None
    if not -(2**63) <= priority < 2**63:
        raise LiveError(f"priority must be a signed 64-bit integer (got {priority})")
    if deadline_ms is None:
        if not isinstance(request.deadline_ms, int | float) or not request.deadline_ms >= 0.0:
            raise LiveError(f"deadline_ms must be a number of at least 0 (got {request.deadline_ms!r})")
        deadline_ms = arrival_ms + request.deadline_ms
    return Terms(priority, arrival_ms, deadline_ms)


def prompt_of(request: GenerateRequest, trace_block_size: int) -> Prompt:
    """Length and block identities of a request's prompt.

    Raises:
        LiveError: both or none of the two forms are given, or they do not fit each other.
    """
    if (request.prompt is None) == (request.input_tokens is None):
        raise LiveError("a request needs either prompt or input_tokens with hash_ids")
    if request.prompt is not None:
        if len(request.hash_ids):
            raise LiveError("hash_ids go with input_tokens; the blocks of a prompt of token ids are named by content")
        if not len(request.prompt):
            raise LiveError("a prompt has at least one token")
        tokens = _token_ids(request.prompt, "prompt")
        packed = struct.pack(f"<{len(tokens)}I", *tokens)
        return Prompt(len(tokens), _content_ids(packed, 4 * trace_block_size), packed)
    assert request.input_tokens is not None
    input_tokens = checked_count(request.input_tokens, "input_tokens", 1)
    needed = -(-input_tokens // trace_block_size)
    if len(request.hash_ids) < needed:
        raise LiveError(
            f"hash_ids must name {needed} blocks of {trace_block_size} tokens for {input_tokens} input tokens "
            f"(got {len(request.hash_ids)})"
        )
    return Prompt(input_tokens, _words(request.hash_ids[:needed], "hash_ids", 64))


def checked_count(value: int, name: str, least: int) -> int:
    """A number of tokens that the engine can hold [tokens].

    Raises:
        LiveError: it is no integer, or out of range.
    """
    try:
        count = operator.index(value)
    except TypeError:
        raise LiveError(f"{name} must be an integer (got {value!r})") from None
    if not least <= count <= MAX_TOKENS:
        raise LiveError(f"{name} must lie in {least}..{MAX_TOKENS} (got {count})")
    return count


def _token_ids(tokens: Sequence[int], name: str) -> tuple[int, ...]:
    return _words(tokens, name, 32)


def _words(values: Sequence[int], name: str, num_bits: int) -> tuple[int, ...]:
    """Raises LiveError: a value that is no unsigned integer of so many bits; the engine would stop over it."""
    try:
        words = tuple(map(operator.index, values))
    except TypeError:
        raise LiveError(f"{name} must be integers") from None
    if words and not (min(words) >= 0 and max(words) < 2**num_bits):
        raise LiveError(f"{name} must lie in 0..2**{num_bits}-1")
    return words


def _content_ids(packed: bytes, step: int) -> tuple[int, ...]:
    """One identity a block, from its tokens alone: equal blocks after equal blocks are the same prefix."""
    from xxhash import xxh3_64_intdigest

    return tuple(xxh3_64_intdigest(packed[at : at + step]) for at in range(0, len(packed), step))


class TokenPlan:
    """Output token ids of one request by position: those it planned, else ones that follow from its name."""

    __slots__ = ("_name", "_planned")

    def __init__(self, planned: Sequence[int] | None, name: object) -> None:
        self._planned = planned
        self._name = name

    def token_id(self, position: int) -> int:
        """Token id at a position from 0."""
        if self._planned is not None:
            return self._planned[position]
        return deterministic_output_tokens(0, str(self._name), 1, first=position)[0]

    def packed(self, first: int, stop: int) -> bytes:
        """Tokens first..stop as little-endian 32-bit words, for the hashes of generated blocks."""
        if self._planned is not None:
            tokens = list(self._planned[first:stop])
        else:
            tokens = deterministic_output_tokens(0, str(self._name), stop - first, first=first)
        return struct.pack(f"<{len(tokens)}I", *tokens)


class TokenPlans:
    """Tokens of the requests that a scheduler may ask about, by scheduler id; nothing where nobody asks.

    Args:
        trace_block_size: tokens that an identity of a prompt stands for.
    """

    def __init__(self, trace_block_size: int) -> None:
        self.wanted = False
        self._trace_block_size = trace_block_size
        self._plans: dict[int, tuple[TokenPlan, Prompt]] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, scheduler_id: int, plan: TokenPlan, prompt: Prompt) -> None:
        """The request is on its way to the scheduler."""
        if self.wanted:
            self._plans[scheduler_id] = plan, prompt

    def forget(self, scheduler_id: int) -> None:
        """The scheduler holds it no more, or never will."""
        self._plans.pop(scheduler_id, None)

    def packed(self, scheduler_id: int, first: int, stop: int) -> bytes:
        """Tokens first..stop of a request as little-endian 32-bit words; those of its prompt lie below 0."""
        plan, prompt = self._plans[scheduler_id]
        length = prompt.input_tokens
        data = prompt.packed(length + first, length + min(stop, 0), self._trace_block_size) if first < 0 else b""
        return data + plan.packed(max(first, 0), stop) if stop > 0 else data


class OutputSignal(NamedTuple):
    """One output as the scheduler knows it: by its own id of the request."""

    scheduler_id: int
    position: int | None  # of the token, from 0; None for an end without a token
    completed: bool  # the last signal of its request
    reason: str | None  # why it ended: output_length, model_len, prompt_over_pool, ...
    t_ms: float  # modelled time


class Signal(NamedTuple):
    """One output as the caller sees it."""

    client_id: uuid.UUID
    position: int | None  # of the token, from 0; None for an end without a token (rejected, failed, zero output)
    completed: bool  # the last signal of its request
    reason: str | None  # with `completed`: output_length, model_len, prompt_over_pool, ...
    t_ms: float  # modelled time
    observed_ms: float  # measured time since the engine's start
    plan: Callable[[int], int]  # token id at a position; most readers never ask
    handoff_delay_ms: float | None = None  # with `completed`, of a prefill worker: of the transfer of its whole prompt

    @property
    def token_id(self) -> int | None:
        """The output token; None for an end without one."""
        return None if self.position is None else self.plan(self.position)

    def __repr__(self) -> str:
        return (
            f"Signal(client_id={self.client_id}, position={self.position}, token_id={self.token_id}, "
            f"completed={self.completed}, reason={self.reason!r}, t_ms={self.t_ms}, observed_ms={self.observed_ms}, "
            f"handoff_delay_ms={self.handoff_delay_ms})"
        )


class Admission(NamedTuple):
    """A request entered the running set."""

    client_id: uuid.UUID
    reused_tokens: int  # found in the prefix cache [tokens]
    t_ms: float  # modelled time
    observed_ms: float  # measured time since the engine's start
