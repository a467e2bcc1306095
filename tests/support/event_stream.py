"""Hand-made event streams for the tests of everything that reads an EventBuffer."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.events import (
    CommandFlag,
    CommandKind,
    CommandResult,
    Decision,
    EventKind,
    HandoffStage,
    HostStep,
    TerminalReason,
    TerminalStatus,
)

IDLE_FPM = (0.0,) * 14


def double_words(values: Sequence[float]) -> list[int]:
    """The bits of doubles as signed 64-bit words."""
    return list(struct.unpack(f"<{len(values)}q", struct.pack(f"<{len(values)}d", *values)))


def signed(value: int) -> int:
    """An unsigned 64-bit hash as it stands in a payload word."""
    return value - 2**64 if value >= 2**63 else value


class StreamMaker:
    """Appends well-formed groups of records to one buffer."""

    def __init__(self) -> None:
        self.buffer = EventBuffer()

    def add(self, kind: EventKind, t_ms: float, worker: int = 0, rank: int = -1, request: int = -1, **fields) -> None:
        self.buffer.append_record(kind, t_ms, worker, rank, request, **fields)

    def arrival(
        self, t_ms, request, *, input_tokens=16, output_tokens=3, session=-1, turn=0, worker=0, rank=0,
        priority=0, deadline_ms=float("nan"),
    ) -> None:  # fmt: skip
        fields = {"a": input_tokens, "b": output_tokens, "c": session, "d": turn, "e": priority, "x": deadline_ms}
        self.add(EventKind.ARRIVAL, t_ms, worker, rank, request, **fields)

    def decision(self, t_ms, request, kind, reason, *, other=-1, value=0, worker=0, rank=0) -> None:
        text = reason.encode()
        words = list(struct.unpack(f"<{-(-len(text) // 8)}q", text.ljust(-(-len(text) // 8) * 8, b"\0")))
        self.add(EventKind.DECISION, t_ms, worker, rank, request, a=kind, b=other, e=value, f=len(text), words=words)

    def gauges(self, t_ms, *, active=0, inactive=0, running=0, waiting=0, mid_pass=0, worker=0, rank=0) -> None:
        fields = {"a": active, "b": inactive, "c": running, "d": waiting, "e": mid_pass}
        self.add(EventKind.GAUGES, t_ms, worker, rank, **fields)

    def command(
        self, t_ms, request, *, kind=CommandKind.SUBMIT, result=CommandResult.SUBMITTED,
        flags=0, command_id=0, worker=0, rank=0,
    ) -> None:  # fmt: skip
        self.add(EventKind.COMMAND, t_ms, worker, rank, request, a=kind, b=result, c=flags, d=command_id)

    def terminal(
        self, t_ms, request, *, status=TerminalStatus.COMPLETED, reason=TerminalReason.OUTPUT_LENGTH,
        output_tokens=3, last_token_ms=float("nan"), figures=None, worker=0, rank=0,
    ) -> None:  # fmt: skip
        fields = {"a": status, "b": output_tokens, "c": reason, "d": -1, "x": last_token_ms, "words": figures}
        self.add(EventKind.TERMINAL, t_ms, worker, rank, request, **fields)

    def pass_start(self, t_ms, end_ms, *, pass_id=0, ranks=(), wave=0, worker=0) -> None:
        """`ranks`: dicts of rank, admitted [(request, reused, ordinal)], prefill [(request, tokens)], preempted
        [(request, generated, count, seven words)], decisions [(request, kind, reason, other, value)], requests,
        tokens."""
        self.add(EventKind.PASS_START, t_ms, worker, a=pass_id, b=len(ranks), c=wave, x=end_ms)
        for rank in ranks:
            index = rank.get("rank", 0)
            scheduled = {"a": rank.get("requests", 1), "b": rank.get("tokens", 1)}
            self.add(EventKind.RANK_START, t_ms, worker, index, **scheduled, x=rank.get("end_ms", end_ms))
            for request, kind, reason, other, value in rank.get("decisions", ()):
                self.decision(t_ms, request, kind, reason, other=other, value=value, worker=worker, rank=index)
            for request, generated, count, words in rank.get("preempted", ()):
                self.add(EventKind.PREEMPTION, t_ms, worker, index, request, a=generated, b=count, words=words)
            for request, reused, ordinal in rank.get("admitted", ()):
                self.add(EventKind.ADMISSION, t_ms, worker, index, request, a=reused, b=ordinal)
            for request, tokens in rank.get("prefill", ()):
                self.add(EventKind.PREFILL, t_ms, worker, index, request, a=tokens, c=tokens)
        self.add(EventKind.PASS_START_CLOSE, t_ms, worker)

    def pass_end_open(self, t_ms, *, pass_id=0, num_ranks=1, worker=0) -> None:
        self.add(EventKind.PASS_END, t_ms, worker, a=pass_id, b=num_ranks)

    def rank_end(self, t_ms, *, tokens=0, fpm=IDLE_FPM, worker=0, rank=0) -> None:
        self.add(EventKind.RANK_END, t_ms, worker, rank, a=tokens)
        if fpm is not None:
            self.add(EventKind.FPM, t_ms, worker, rank, words=double_words(fpm))

    def pass_end_close(self, t_ms, *, worker=0) -> None:
        self.add(EventKind.PASS_END_CLOSE, t_ms, worker)

    def tokens(self, t_ms, request, tokens, total, *, worker=0, rank=0) -> None:
        self.add(EventKind.TOKENS, t_ms, worker, rank, request, a=tokens, b=total)

    def first_token(self, t_ms, request, *, worker=0, rank=0) -> None:
        self.add(EventKind.FIRST_TOKEN, t_ms, worker, rank, request)

    def kv_stored(self, t_ms, request, *, first_block, parent, pairs, worker=0, rank=0) -> None:
        words = [signed(parent)] + [signed(hash_) for pair in pairs for hash_ in pair]
        self.add(EventKind.KV_STORED, t_ms, worker, rank, request, a=len(pairs), b=first_block, words=words)

    def kv_removed(self, t_ms, hashes, *, worker=0, rank=0) -> None:
        self.add(EventKind.KV_REMOVED, t_ms, worker, rank, a=len(hashes), words=[signed(h) for h in hashes])


def sample_stream() -> EventBuffer:
    """A short run that holds every kind of record once at least; figures are made up."""
    make = StreamMaker()
    make.arrival(0.0, 0)
    make.command(0.0, 0)
    make.gauges(0.0, waiting=1)
    make.arrival(0.0, 1, input_tokens=4096, output_tokens=1, session=0, turn=0)
    make.command(0.0, 1)
    make.gauges(0.0, waiting=2)
    make.pass_start(0.0, 10.0, ranks=[{"admitted": [(0, 0, 0)], "prefill": [(0, 6)], "tokens": 6}])
    make.arrival(5.0, 2, input_tokens=10, output_tokens=2, session=0, turn=1)
    make.gauges(5.0, active=2, running=1, waiting=2, mid_pass=1)
    make.pass_end_open(10.0)
    make.rank_end(10.0, fpm=(0.01, 1, 6, 0.0, 0, 0, 0, 0.0, 1, 4096, 2.25, 0, 0, 0.0))
    make.kv_stored(10.0, 0, first_block=0, parent=0, pairs=[(2**64 - 1, 5)])
    make.terminal(
        10.0, 1, status=TerminalStatus.REJECTED, reason=TerminalReason.PROMPT_OVER_POOL,
        output_tokens=0, figures=[1024, 8],
    )  # fmt: skip
    make.gauges(10.0, active=2, inactive=0, running=1)
    make.pass_end_close(10.0)
    make.command(10.0, 2)
    make.gauges(10.0, active=2, running=1, waiting=1)
    make.pass_start(
        10.0, 18.023974000000003, pass_id=1,
        ranks=[{"preempted": [(0, 0, 1, [1, 1, 2, 0, 2, 0, 2])], "admitted": [(2, 4, 0), (0, 4, 1)],
                "prefill": [(2, 6), (0, 12)], "requests": 2, "tokens": 18}],
    )  # fmt: skip
    t_ms = 18.023974000000003
    make.pass_end_open(t_ms, pass_id=1)
    make.rank_end(t_ms, tokens=2)
    make.kv_removed(t_ms, [2**64 - 1])
    make.kv_stored(t_ms, 2, first_block=1, parent=77, pairs=[(78, 6), (2**63, 7)])
    for request in (2, 0):
        make.first_token(t_ms, request)
        make.tokens(t_ms, request, 1, 1)
    make.gauges(t_ms, active=5, inactive=1, running=2)
    make.pass_end_close(t_ms)
    make.pass_start(t_ms, 19.0, pass_id=2, ranks=[{"requests": 2, "tokens": 2}])
    make.command(
        18.5, 2, kind=CommandKind.CANCEL, result=CommandResult.APPLIED,
        flags=CommandFlag.IN_PASS | CommandFlag.SUPPRESSED, command_id=3,
    )  # fmt: skip
    make.gauges(18.5, active=3, inactive=3, running=1)
    make.terminal(
        18.5, 2, status=TerminalStatus.CANCELLED, reason=TerminalReason.CLIENT, output_tokens=1, last_token_ms=t_ms
    )
    make.pass_end_open(19.0, pass_id=2)
    make.rank_end(19.0, tokens=1)
    make.add(EventKind.SECOND_TOKEN, 19.0, 0, 0, 0)
    make.tokens(19.0, 0, 1, 2)
    make.gauges(19.0, active=3, inactive=3, running=1)
    make.pass_end_close(19.0)
    make.pass_start(19.0, 20.0, pass_id=3, ranks=[{}])
    make.pass_end_open(20.0, pass_id=3)
    make.rank_end(20.0, tokens=1)
    make.add(EventKind.RESUMED, 20.0, 0, 0, 0, x=19.0)
    make.tokens(20.0, 0, 1, 3)
    make.terminal(20.0, 0, last_token_ms=20.0)
    make.gauges(20.0, inactive=6)
    make.pass_end_close(20.0)
    make.arrival(20.0, 3, output_tokens=1000)
    make.command(20.0, 3, result=CommandResult.REFUSED)
    make.terminal(
        21.0, 3, status=TerminalStatus.FAILED, reason=TerminalReason.GROWTH_OVER_POOL, output_tokens=0, figures=[10, 8]
    )
    _with_policy(make)
    make.add(EventKind.CUT, 25.0, 0, 0, 4, a=0)
    return make.buffer


def _with_policy(make: StreamMaker) -> None:
    """A request about which a policy decides in every way there is."""
    make.arrival(21.0, 4, priority=-1, deadline_ms=2500.0)
    make.decision(21.0, 4, Decision.PLACEMENT, "least_loaded", other=1, value=0)
    make.command(21.0, 4)
    make.gauges(21.0, waiting=1)
    make.pass_start(
        21.0, 25.0, pass_id=4,
        ranks=[{"requests": 0, "tokens": 0,
                "decisions": [(-1, Decision.BUDGET, "small_passes", -1, 512), (4, Decision.ORDER, "shortest_job", 3, 0),
                              (4, Decision.VETO, "over_quota", -1, 0), (4, Decision.VICTIM, "longest_job", 3, 0)]}],
    )  # fmt: skip


def decode_heavy_stream(num_passes: int) -> EventBuffer:
    """Passes of a busy engine: mostly decoding, every eighth admits and prefills a request."""
    make = StreamMaker()
    t_ms = 0.0
    for pass_id in range(num_passes):
        rank: dict[str, object] = {"requests": 113, "tokens": 113}
        if pass_id % 8 == 0:
            rank |= {"admitted": [(pass_id // 8, 512, 0)], "prefill": [(pass_id // 8, 1600)]}
        end_ms = t_ms + 18.023974 + (pass_id % 7) * 0.001
        make.pass_start(t_ms, end_ms, pass_id=pass_id, ranks=[rank])
        t_ms = end_ms
        make.pass_end_open(t_ms, pass_id=pass_id)
        fpm = (0.018023974, 1, 1600, 0.0, 512, 112, 1234567, 12345.678912 + pass_id, 0, 0, 0.0, 0, 0, 0.0)
        make.rank_end(t_ms, tokens=113, fpm=fpm)
        make.gauges(t_ms, active=12345, inactive=3000, running=113)
        make.pass_end_close(t_ms)
    return make.buffer


def host_stream() -> EventBuffer:
    """Every step of a host tier."""
    make = StreamMaker()
    for step in HostStep:
        whose = -1 if step in (HostStep.EVICTED, HostStep.FENCE) else 2
        number = -1 if whose < 0 or step is HostStep.LOAD_RETURNED else 3
        end_ms = math.nan if step in (HostStep.STORE_PREPARED, HostStep.EVICTED, HostStep.LOAD_RETURNED) else 203.0
        make.buffer.append_record(EventKind.HOST, 200.0, 0, 0, whose, a=step, b=number, c=3, x=end_ms)
    return make.buffer


def handoff_stream() -> EventBuffer:
    """One record of each stage of a handoff."""
    stream = StreamMaker()
    for stage in HandoffStage:
        end = {"x": 7.5} if stage is HandoffStage.TRANSFER_STARTED else {}
        stream.add(EventKind.HANDOFF, 5.0 + stage, 0, 0, 0, a=stage, b=16, f=0, **end)
    return stream.buffer
