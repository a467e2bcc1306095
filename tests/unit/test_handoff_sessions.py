"""Sessions of handoffs: who is let in, who waits how long, who is listened to first, how both ends come clean."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from mocker_replay.live import (
    AlreadyActive,
    HandoffResult,
    HandoffSessions,
    LiveEngine,
    LiveError,
    NotRunning,
    SourceHandoff,
    SourceHeld,
)  # fmt: skip
from mocker_replay.live.handoff.facts import HandoffSettings
from mocker_replay.live.handoff.inbox import Inbox
from mocker_replay.live.handoff.result import CLEANUP_MS
from mocker_replay.live.handoff.sessions import RENDEZVOUS_MS, RETIRED_MS, SCAN_MS
from mocker_replay.live.handoff.transport import (
    Aborted,
    Answer,
    Ask,
    Completed,
    Message,
    QueueEndpoint,
    Refused,
    Reserved,
)
from mocker_replay.live.operations import Operation
from tests.support.handoffs import OWN, drain_and_stop, owned, start_destination, start_source
from tests.support.live import SLOW, ask, rank_of, read_all, tokens_of
from tests.support.virtual_loop import VirtualClock, run_virtual

OTHER = uuid.UUID(int=78)
DESTINATION = {"reserve_destination": "accepted", "activate_destination": "applied", "cancel_destination": "applied"}


async def finish(clock: VirtualClock, sessions: HandoffSessions, *engines: LiveEngine) -> None:
    await clock.until_done(sessions.shutdown())
    assert sessions.num_sessions == 0
    await drain_and_stop(clock, *engines)


class Peer:
    """A destination as a test plays it: what it is asked, and answers by hand."""

    def __init__(self, clock: VirtualClock, endpoint: QueueEndpoint) -> None:
        self.clock = clock
        self.endpoint = endpoint

    async def next(self) -> Message | None:
        return await self.clock.until_done(self.endpoint.receive())

    async def asked(self, kind: str) -> Ask:
        message = await self.next()
        assert isinstance(message, Ask)
        assert message.kind == kind
        return message

    async def answer(self, kind: str, outcome: str | None = None, text: str = "") -> None:
        ask = await self.asked(kind)
        self.endpoint.post(Answer(ask.action_id, outcome or DESTINATION[kind], text))

    async def until_transfer(self, missing_tokens: int = 8) -> None:
        await self.answer("reserve_destination")
        self.endpoint.post(Reserved(missing_tokens))


def session(
    clock: VirtualClock, *, timeout_ms: float = 1000.0, **config: Any
) -> tuple[LiveEngine, HandoffSessions, SourceHandoff, Peer]:
    """A source of 8 tokens that is paired with a peer of the test's: prefill 10 ms, transfer 8 ms."""
    engine = start_source(clock, **{"speedup_ratio": SLOW} | config)
    sessions = engine.handoff_sessions(session_timeout_ms=timeout_ms)
    source = sessions.offer(OWN, ask(prompt_tokens=8))
    return engine, sessions, source, Peer(clock, sessions.connect(OWN))


async def refused(clock: VirtualClock, endpoint: QueueEndpoint) -> str:
    message = await clock.until_done(endpoint.receive())
    assert isinstance(message, Refused)
    assert await clock.until_done(endpoint.receive()) is None
    return message.text


# -- the whole way --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["source", "destination"])
def test_a_handoff_from_end_to_end(first: str) -> None:
    async def main(clock: VirtualClock) -> None:
        source_engine = start_source(clock, speedup_ratio=SLOW)
        engine = start_destination(clock, speedup_ratio=SLOW)
        sessions = source_engine.handoff_sessions()
        request = ask(3, prompt_tokens=12, output_ids=[70, 71, 72])
        if first == "source":
            source = sessions.offer(OWN, request)
            await clock.advance_ms(50)
            destination, stream = engine.join_handoff(OWN, request, sessions.connect(OWN))
        else:
            destination, stream = engine.join_handoff(OWN, request, sessions.connect(OWN))
            await clock.advance_ms(50)
            source = sessions.offer(OWN, request)
        signals = await clock.until_done(read_all(stream))
        assert tokens_of(signals) == [70, 71, 72]
        # Prefill 10 ms, transfer 12 ms, one pass of 1 ms a token.
        assert [signal.t_ms for signal in signals] == [73.0, 74.0, 75.0]
        assert await clock.until_done(source.completed()) == HandoffResult(OWN, True, None, 12.0)
        assert await clock.until_done(destination.completed()) == HandoffResult(OWN, True, None)
        await finish(clock, sessions, source_engine, engine)

    run_virtual(main)


def test_many_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = start_source(clock), start_destination(clock)
        sessions = engines[0].handoff_sessions()
        results: list[HandoffResult] = []

        async def hand_off(number: int) -> None:
            request = ask(2, prompt_tokens=4 + number, name=number)
            source = sessions.offer(uuid.UUID(int=number), request)
            destination, stream = engines[1].join_handoff(
                source.handoff_id, request, sessions.connect(source.handoff_id)
            )
            assert len(await read_all(stream)) == 2
            results.extend([await source.completed(), await destination.completed()])

        await clock.until_done(asyncio.gather(*(hand_off(number) for number in range(1, 21))))
        assert len(results) == 40
        assert all(result.succeeded for result in results)
        await finish(clock, sessions, *engines)

    run_virtual(main)


# -- who is let in --------------------------------------------------------------------------------------


def test_there_are_so_many_sessions_and_no_more() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        sessions = engine.handoff_sessions(max_sessions=2)
        waiting = sessions.offer(OWN, ask())
        lone = sessions.connect(OTHER)
        with pytest.raises(LiveError, match="overloaded"):
            sessions.offer(uuid.UUID(int=3), ask())
        assert await refused(clock, sessions.connect(uuid.UUID(int=4))) == "overloaded"
        # Partners of those that wait find a place.
        peer = Peer(clock, sessions.connect(OWN))
        sessions.offer(OTHER, ask())
        assert sessions.num_sessions == 2
        assert await refused(clock, sessions.connect(uuid.UUID(int=4))) == "overloaded"
        waiting.cancel()
        peer.endpoint.close()
        lone.close()
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_ids_are_used_once_at_a_time_and_not_soon_again() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        with pytest.raises(AlreadyActive, match="is active"):
            sessions.offer(OWN, ask())
        assert await refused(clock, sessions.connect(OWN)) == "a session of this id is active"
        peer.endpoint.close()
        assert not (await clock.until_done(source.completed())).succeeded
        await clock.settle()
        with pytest.raises(AlreadyActive, match="short while ago"):
            sessions.offer(OWN, ask())
        assert await refused(clock, sessions.connect(OWN)) == "a session of this id has ended a short while ago"
        await clock.advance_ms(RETIRED_MS)
        sessions.offer(OWN, ask())
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_duplicates_that_wait() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        sessions = engine.handoff_sessions()
        sessions.offer(OWN, ask())
        with pytest.raises(AlreadyActive, match="offered already"):
            sessions.offer(OWN, ask())
        first = sessions.connect(OTHER)
        assert await refused(clock, sessions.connect(OTHER)) == "another destination waits under this id"
        assert sessions.num_sessions == 2
        first.close()
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_an_offer_that_fails_leaves_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        sessions = engine.handoff_sessions()
        with pytest.raises(LiveError, match="at least one output token"):
            sessions.offer(OWN, ask(0))
        control, events = engine.register_handoff(OWN)
        with pytest.raises(AlreadyActive, match="already registered"):
            sessions.offer(OWN, ask())
        events.drop()
        source = sessions.offer(OWN, ask())
        assert sessions.num_sessions == 1
        del control, source
        await finish(clock, sessions, engine)
        with pytest.raises(NotRunning, match="have ended"):
            sessions.offer(OWN, ask())
        assert await refused(clock, sessions.connect(OWN)) == "shut down"

    run_virtual(main)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"max_sessions": 0}, "max_sessions must be at least 1"),
        ({"session_timeout_ms": -1.0}, "session_timeout_ms must be positive"),
        ({"session_timeout_ms": float("inf")}, "session_timeout_ms must be positive"),
        ({"session_timeout_ms": float("nan")}, "session_timeout_ms must be positive"),
    ],
)
def test_arguments_that_are_none(arguments: dict[str, Any], why: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        with pytest.raises(LiveError, match=why):
            engine.handoff_sessions(**arguments)
        await clock.until_done(engine.shutdown())
        with pytest.raises(NotRunning):
            engine.handoff_sessions()

    run_virtual(main)


# -- waiting for the other ------------------------------------------------------------------------------


def test_a_rendezvous_takes_thirty_seconds_and_no_longer() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        sessions = engine.handoff_sessions()
        source = sessions.offer(OWN, ask())
        endpoint = sessions.connect(OTHER)
        await clock.advance_ms(RENDEZVOUS_MS)
        assert sessions.num_sessions == 2  # not longer than 30 s yet
        await clock.advance_ms(SCAN_MS)
        assert sessions.num_sessions == 0
        assert await source.completed() == HandoffResult(OWN, False, "nobody came within 30 s")
        assert await refused(clock, endpoint) == "nobody came within 30 s"
        assert await refused(clock, sessions.connect(OWN)) == "a session of this id has ended a short while ago"
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_those_that_wait_are_looked_at_ten_times_a_second() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        sessions = engine.handoff_sessions()
        await clock.advance_ms(1234)
        source = sessions.offer(OWN, ask())
        endpoint = sessions.connect(OTHER)
        await clock.advance_ms(130)
        source.cancel()
        endpoint.close()
        await clock.advance_ms(69)
        assert sessions.num_sessions == 2
        await clock.advance_ms(1)
        assert sessions.num_sessions == 0
        assert (await source.completed()).error == "cancelled"
        await clock.settle()
        assert clock.loop.next_deadline_ns() is None  # nobody waits, nobody looks
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_a_destination_that_was_refused_owns_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = start_source(clock), start_destination(clock)
        sessions = engines[0].handoff_sessions()
        destination, stream = engines[1].join_handoff(OWN, ask(), sessions.connect(OWN))
        await clock.until_done(sessions.shutdown())
        assert await clock.until_done(destination.completed()) == HandoffResult(OWN, False, "refused: shut down")
        assert await read_all(stream) == []
        await finish(clock, sessions, *engines)

    run_virtual(main)


# -- time -----------------------------------------------------------------------------------------------


def test_a_session_times_out_and_a_modelled_transfer_does_not_count() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock, timeout_ms=50.0, kv_transfer_bandwidth=0.01)
        await peer.until_transfer()  # of 800 ms
        began_ms = clock.now_ms()
        await peer.answer("activate_destination")
        assert clock.now_ms() == began_ms + 800.0
        assert (await clock.until_done(source.completed())).succeeded
        assert isinstance(await peer.next(), Completed)
        await finish(clock, sessions, engine)

    run_virtual(main)


@pytest.mark.parametrize(
    ("mode", "delay_ms", "timed_out_at_ms"),
    [("full_prompt", None, 58.0), ("destination_missing", None, 50.0), ("destination_missing", 4.0, 54.0)],
)
def test_the_deadline_counts_a_delay_as_soon_as_it_is_known(
    mode: str, delay_ms: float | None, timed_out_at_ms: float
) -> None:
    """In full-prompt mode with the held source, in destination-missing mode with both ends."""

    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock, timeout_ms=50.0, kv_transfer_timing_mode=mode)
        if delay_ms is None:
            await peer.answer("reserve_destination")
        else:
            await peer.until_transfer(int(delay_ms))
            await peer.asked("activate_destination")
        await peer.answer("cancel_destination")
        assert clock.now_ms() == timed_out_at_ms
        result = await clock.until_done(source.completed())
        assert (result.succeeded, result.error) == (False, "timed out")
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_the_timeout_is_that_of_the_configuration() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        assert rank_of(engine).group.handoff_settings.session_timeout_ms == 300_000
        sessions = engine.handoff_sessions()
        source = sessions.offer(OWN, ask())
        peer = Peer(clock, sessions.connect(OWN))
        await peer.asked("reserve_destination")
        await peer.answer("cancel_destination")
        assert 300_000 <= clock.now_ms() < 300_020
        assert (await clock.until_done(source.completed())).error == "timed out"
        await finish(clock, sessions, engine)

    run_virtual(main)


@pytest.mark.parametrize("timeout_ms", [1000.0, CLEANUP_MS + 5000.0])
def test_a_cleanup_takes_no_longer_than_a_session(timeout_ms: float) -> None:
    """A peer that never answers: both bounds, the session's own where it is longer."""

    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock, timeout_ms=timeout_ms)
        await peer.asked("reserve_destination")
        source.cancel()
        began_ms = clock.now_ms()
        result = await clock.until_done(source.completed())
        assert result == HandoffResult(OWN, False, "cancelled; the cleanup did not end in time", 8.0)
        assert clock.now_ms() == began_ms + max(timeout_ms, CLEANUP_MS)
        assert owned(engine) == []  # this end was clean at once
        await peer.asked("cancel_destination")
        assert await peer.next() is None
        await finish(clock, sessions, engine)

    run_virtual(main)


@pytest.mark.parametrize("bandwidth", [1e300, None])
def test_a_transfer_of_no_length(bandwidth: float | None) -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock, kv_transfer_bandwidth=bandwidth)
        await peer.until_transfer()
        at_ms = clock.now_ms()
        await peer.answer("activate_destination")
        assert (await clock.until_done(source.completed())).succeeded
        assert clock.now_ms() == at_ms
        await finish(clock, sessions, engine)

    run_virtual(main)


# -- who is listened to first ---------------------------------------------------------------------------


Disturb = Callable[[VirtualClock, HandoffSessions, SourceHandoff, Peer], Awaitable[None]]


async def shut_down(clock: VirtualClock, sessions: HandoffSessions, source: SourceHandoff, peer: Peer) -> None:
    sessions._stop.cancel()


async def cancel(clock: VirtualClock, sessions: HandoffSessions, source: SourceHandoff, peer: Peer) -> None:
    source.cancel()


async def time_out(clock: VirtualClock, sessions: HandoffSessions, source: SourceHandoff, peer: Peer) -> None:
    clock.stall_ms(1000)


async def abort(clock: VirtualClock, sessions: HandoffSessions, source: SourceHandoff, peer: Peer) -> None:
    peer.endpoint.post(Aborted("no wish to go on"))


IN_ORDER: Sequence[tuple[Disturb, str]] = [
    (shut_down, "shut down"),
    (cancel, "cancelled"),
    (time_out, "timed out"),
    (abort, "the destination gave up: no wish to go on"),
]


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_of_what_happens_at_once_the_first_in_the_order_counts(first: int) -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        await peer.asked("reserve_destination")
        await clock.settle()
        for disturb, _ in reversed(IN_ORDER[first:]):
            await disturb(clock, sessions, source, peer)
        await peer.answer("cancel_destination")
        result = await clock.until_done(source.completed())
        assert result.error == IN_ORDER[first][1]
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_a_held_fact_waits_for_its_own_acknowledgement() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        early = SourceHeld(OWN, HandoffSettings().timing(8), 0.0)
        assert source.events._facts.try_send(early)
        await peer.until_transfer()
        assert clock.now_ms() < 10.0  # and not when the prefill is done: the fact was kept
        await peer.answer("activate_destination")
        assert (await clock.until_done(source.completed())).succeeded
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_nobody_waits_for_actions_that_a_cleanup_overtook() -> None:
    async def main(clock: VirtualClock) -> None:
        inbox = Inbox(clock, clock.now_ns())
        overtaken, other = Operation(), Operation()
        ended: list[str] = []
        inbox.follow(overtaken, lambda applied, text: ended.append("overtaken"))
        await clock.settle()
        inbox.stop_actions()
        inbox.follow(other, lambda applied, text: ended.append("other"))
        await clock.settle()
        for operation in (overtaken, other):
            operation._resolve(True)
        await clock.settle()
        while inbox.others:
            inbox.others.popleft()()
        assert ended == ["other"]
        await inbox.close()

    run_virtual(main)


# -- what the other party does --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (("reserve_destination", "failed", "no room"), "reserve destination failed: no room"),
        (("reserve_destination", "applied", ""), "the action cannot have this outcome"),
        (("reserve_destination", "granted", ""), "the action cannot have this outcome"),
        (("activate_destination", "failed", "gone"), "activate destination failed: gone"),
        (("activate_destination", "noop", ""), "the action cannot have this outcome"),
    ],
)
def test_answers_that_end_a_session(answer: tuple[str, str, str], error: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        if answer[0] == "activate_destination":
            await peer.until_transfer()
        await peer.answer(*answer)
        await peer.answer("cancel_destination")
        assert await clock.until_done(source.completed()) == HandoffResult(OWN, False, error, 8.0)
        assert await peer.next() is None
        await finish(clock, sessions, engine)

    run_virtual(main)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Reserved(8), "the destination is reserved before the reservation is acknowledged"),
        (Completed(), "unexpected message Completed"),
        (Ask(0, "reserve_destination"), "unexpected message Ask"),
        (Answer(0, "submitted", ""), "unexpected message Answer"),  # of an action that is not its own
        (Answer(99, "applied", ""), "unexpected message Answer"),
        (Aborted("tired"), "the destination gave up: tired"),
        (None, "the destination has disconnected"),
    ],
)
def test_messages_that_end_a_session(message: Message | None, error: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        await peer.asked("reserve_destination")
        if message is None:
            peer.endpoint.close()
        else:
            peer.endpoint.post(message)
            await peer.answer("cancel_destination")
        assert await clock.until_done(source.completed()) == HandoffResult(OWN, False, error, 8.0)
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_a_reservation_that_lacks_less_than_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        await peer.until_transfer(-4)
        await peer.answer("cancel_destination")
        assert (await clock.until_done(source.completed())).error == "a number of tokens is negative"
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_a_cleanup_that_fails_is_told() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        await peer.asked("reserve_destination")
        source.cancel()
        await peer.answer("cancel_destination", "failed", "it is stuck")
        result = await clock.until_done(source.completed())
        assert result.error == "cancelled; cancel destination failed: it is stuck"
        assert clock.now_ms() < 20
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_a_destination_that_disconnects_during_the_cleanup() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        await peer.asked("reserve_destination")
        source.cancel()
        await peer.asked("cancel_destination")
        peer.endpoint.close()
        assert (await clock.until_done(source.completed())).error == "cancelled"
        assert clock.now_ms() < 20
        await finish(clock, sessions, engine)

    run_virtual(main)


def test_late_answers_do_not_disturb_a_cleanup() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock)
        await peer.until_transfer()
        activation = await peer.asked("activate_destination")
        source.cancel()
        cleanup = await peer.asked("cancel_destination")
        peer.endpoint.post(Answer(activation.action_id, "applied", ""))
        peer.endpoint.post(Answer(cleanup.action_id, "applied", ""))
        peer.endpoint.post(Answer(cleanup.action_id, "applied", ""))
        assert await clock.until_done(source.completed()) == HandoffResult(OWN, False, "cancelled", 8.0)
        await finish(clock, sessions, engine)

    run_virtual(main)


@pytest.mark.parametrize("why", ["prompt_over_pool", "cancelled"])
def test_a_prefill_that_ends_without_being_held(why: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine, sessions, source, peer = session(clock, num_gpu_blocks=1 if why == "prompt_over_pool" else 64)
        await clock.advance_ms(1)
        if why == "cancelled":
            # The pass holds it already, so that there is nothing to cancel; its stream has ended all the same.
            assert await clock.until_done(engine.cancel(source.stream.client_id)) is False
        result = await clock.until_done(source.completed())
        assert result.error == f"the prefill has ended: {why}"
        assert await peer.next() is None  # it was asked for nothing
        assert clock.now_ms() < 20
        await finish(clock, sessions, engine)

    run_virtual(main)
