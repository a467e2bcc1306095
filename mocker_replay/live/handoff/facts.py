"""What an engine tells of a handoff: the source holds the prompt, the destination has room for it.

Decides which records are such facts and what a source knows of its transfer. Never decides what follows from them.
Source: handoff specification, sections 2 and 3.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mocker_replay.config import EngineConfig
from mocker_replay.config.backends import handoff_order
from mocker_replay.events import EventKind, HandoffStage
from mocker_replay.live.errors import LiveError
from mocker_replay.shells.published import EventRecord

if TYPE_CHECKING:
    from mocker_replay._core.coordinator import Timing


class SourceHeld(NamedTuple):
    """The prompt is computed, and its blocks are kept until the source is released or cancelled."""

    handoff_id: uuid.UUID
    timing: Timing  # what the source knows of the transfer
    t_ms: float  # modelled time of the source

    def transfer_delay_ms(self, missing_tokens: int, fallback_ms: float = 0.0) -> float:
        """How long the transfer takes [ms].

        Args:
            missing_tokens: what the destination lacks, in whole blocks [tokens].
            fallback_ms: the answer where the source models no transfer.

        Raises:
            LiveError: a number that is none.
        """
        from mocker_replay._core.coordinator import HandoffError, transfer_delay_ms

        try:
            return transfer_delay_ms(self.timing, missing_tokens, fallback_ms)
        except HandoffError as exc:
            raise LiveError(f"handoff {self.handoff_id}: {exc}") from None


class DestinationReserved(NamedTuple):
    """Blocks for the prompt are owned; the destination can be activated as soon as they are filled."""

    handoff_id: uuid.UUID
    missing_tokens: int  # of the prompt, in whole blocks [tokens]
    t_ms: float  # modelled time of the destination


HandoffFact = SourceHeld | DestinationReserved


class SeenFact(NamedTuple):
    """A fact as the scheduler knows it."""

    number: int  # of the handoff
    request: int  # the scheduler's number of it
    stage: HandoffStage
    num_tokens: int  # of the prompt; the missing ones at a destination
    t_ms: float


class HandoffSettings(NamedTuple):
    """What a worker's configuration says of its handoffs."""

    mode: str = "full_prompt"
    bytes_per_token: int | None = None
    bandwidth_gbps: float | None = None
    reports_delay: bool = False  # with the last output of a request: prefill workers only
    order: str = "source_first"  # who goes first in a session of this source
    session_timeout_ms: float = 300_000.0  # of a session, the transfer not counted

    @classmethod
    def of(cls, engine: EngineConfig) -> HandoffSettings:
        """Those of an engine."""
        return cls(
            engine.kv_transfer_timing_mode,
            engine.kv_transfer_bytes_per_token,
            engine.kv_transfer_bandwidth,
            engine.worker_type == "prefill",
            handoff_order(engine.backend),
            engine.dynamo.handoff_session_timeout_ms,
        )

    def timing(self, prompt_tokens: int) -> Timing:
        """What a source tells of a prompt of so many tokens."""
        from mocker_replay._core.coordinator import Timing

        return Timing(self.mode, prompt_tokens, self.bytes_per_token, self.bandwidth_gbps)

    def full_prompt_delay_ms(self, prompt_tokens: int) -> float | None:
        """How long the whole prompt takes to transfer [ms]; None where no transfer is modelled, or none reported."""
        if not self.reports_delay or not self.bytes_per_token or not self.bandwidth_gbps:
            return None
        from mocker_replay._core.coordinator import transfer_delay_ms

        return transfer_delay_ms(self._replace(mode="full_prompt").timing(prompt_tokens), prompt_tokens)


_FACTS = frozenset((HandoffStage.SOURCE_HELD, HandoffStage.DESTINATION_RESERVED))


def facts_of(records: Iterable[EventRecord]) -> list[SeenFact]:
    """Facts among the records of one rank, in order."""
    return [
        SeenFact(record.f, record.request, HandoffStage(record.a), record.b, record.t_ms)
        for record in records
        if record.kind == EventKind.HANDOFF and record.a in _FACTS
    ]
