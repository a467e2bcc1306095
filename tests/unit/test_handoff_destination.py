"""The destination's party of a handoff session, and the connection between two parties."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from mocker_replay.live import DestinationHandoff, HandoffResult, LiveEngine, LiveError, NotRunning, RequestStream
from mocker_replay.live.handoff.transport import (
    MESSAGE_CAPACITY,
    Aborted,
    Answer,
    Ask,
    Completed,
    Message,
    PeerGone,
    QueueEndpoint,
    Refused,
    Reserved,
    connected_endpoints,
)
from mocker_replay.shells.tokens import Watch
from tests.support.handoffs import OWN, drain_and_stop, start_destination
from tests.support.live import SLOW, RankConfig, ask, read_all
from tests.support.virtual_loop import VirtualClock, run_virtual


class Source:
    """A source as a test plays it."""

    def __init__(self, clock: VirtualClock, endpoint: QueueEndpoint) -> None:
        self.clock = clock
        self.endpoint = endpoint
        self.num_asked = 0

    async def ask(self, kind: str) -> Message | None:
        self.endpoint.post(Ask(self.num_asked, kind))
        self.num_asked += 1
        return await self.clock.until_done(self.endpoint.receive())


def joined(clock: VirtualClock, **config: Any) -> tuple[LiveEngine, DestinationHandoff, RequestStream, Source]:
    engine = start_destination(clock, **{"speedup_ratio": SLOW} | config)
    own, theirs = connected_endpoints()
    destination, stream = engine.join_handoff(OWN, ask(2, prompt_tokens=8), theirs)
    return engine, destination, stream, Source(clock, own)


def test_a_destination_does_what_it_is_asked() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, destination, stream, source = joined(clock)
        assert await source.ask("reserve_destination") == Answer(0, "accepted", "")
        assert await clock.until_done(source.endpoint.receive()) == Reserved(8)
        assert await source.ask("activate_destination") == Answer(1, "applied", "")
        source.endpoint.post(Completed())
        assert await clock.until_done(destination.completed()) == HandoffResult(OWN, True, None)
        assert len(await clock.until_done(read_all(stream))) == 2
        await drain_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("at", ["nothing", "reserved"])
@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Completed(), "the source completed before the activation"),
        (Refused("overloaded"), "refused: overloaded"),
        (Reserved(8), "unexpected message Reserved"),
        (Ask(9, "release_source"), "unexpected message Ask"),
        (None, "the source has disconnected"),
    ],
)
def test_a_destination_gives_up_and_cancels_what_it_has(at: str, message: Message | None, error: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine, destination, stream, source = joined(clock)
        if at == "reserved":
            await source.ask("reserve_destination")
            await clock.until_done(source.endpoint.receive())
        if message is None:
            source.endpoint.close()
        else:
            source.endpoint.post(message)
            assert await clock.until_done(source.endpoint.receive()) == Aborted(error)
        assert await clock.until_done(destination.completed()) == HandoffResult(OWN, False, error)
        assert await clock.until_done(read_all(stream)) == []
        await drain_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("way", ["cancel", "drop", "collect"])
@pytest.mark.parametrize("at", ["nothing", "reserving", "reserved"])
def test_a_destination_whose_caller_leaves(way: str, at: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine, destination, stream, source = joined(clock)
        if at == "reserving":
            source.endpoint.post(Ask(0, "reserve_destination"))
            await clock.turns(2)
        if at == "reserved":
            await source.ask("reserve_destination")
            await clock.until_done(source.endpoint.receive())
        if way == "cancel":
            destination.cancel()
        elif way == "drop":
            stream.drop()
        del stream
        gc.collect()
        if at == "nothing" and way != "cancel":
            message = await source.ask("reserve_destination")
            assert isinstance(message, Answer | Aborted)
            source.endpoint.close()
        result = await clock.until_done(destination.completed())
        assert not result.succeeded
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_a_destination_that_is_asked_to_cancel() -> None:
    async def main(clock: VirtualClock) -> None:
        for at in ("nothing", "reserved", "active"):
            engine, destination, stream, source = joined(clock)
            if at != "nothing":
                await source.ask("reserve_destination")
                await clock.until_done(source.endpoint.receive())
            if at == "active":
                await source.ask("activate_destination")
            answer = await source.ask("cancel_destination")
            assert isinstance(answer, Answer)
            assert answer.outcome == ("noop" if at == "nothing" else "applied")
            assert (await clock.until_done(destination.completed())).error == "the source gave up"
            assert all(not signal.completed for signal in await clock.until_done(read_all(stream)))
            await drain_and_stop(clock, engine)

    run_virtual(main)


def test_a_destination_that_is_refused_says_why() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, destination, stream, source = joined(clock, num_gpu_blocks=1)
        answer = await source.ask("reserve_destination")
        assert isinstance(answer, Answer)
        assert answer.outcome == "failed"
        assert "larger than the KV pool" in answer.text
        await source.ask("cancel_destination")
        assert not (await clock.until_done(destination.completed())).succeeded
        assert await read_all(stream) == []
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_an_engine_that_stops_ends_its_party() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, destination, stream, source = joined(clock)
        await source.ask("reserve_destination")
        await clock.until_done(engine.shutdown())
        assert (await clock.until_done(destination.completed())).error == "the engine has stopped"
        assert await clock.until_done(source.endpoint.receive()) == Reserved(8)
        assert await clock.until_done(source.endpoint.receive()) is None
        assert await read_all(stream) == []
        with pytest.raises(NotRunning):
            engine.join_handoff(OWN, ask(), connected_endpoints()[1])

    run_virtual(main)


def test_a_join_that_fails_closes_its_connection() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        own, theirs = connected_endpoints()
        with pytest.raises(LiveError, match="at least one output token"):
            engine.join_handoff(OWN, ask(0), theirs)
        assert await own.receive() is None
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_a_cleanup_of_a_destination_is_bounded() -> None:
    """Its engine stands at a boundary whose output nobody takes: the command is not applied."""

    async def main(clock: VirtualClock) -> None:
        gate = Watch(True)
        engine = start_destination(clock, RankConfig(output_gate=gate))
        own, theirs = connected_endpoints()
        destination, stream = engine.join_handoff(OWN, ask(), theirs)
        source = Source(clock, own)
        await source.ask("reserve_destination")
        gate.set(False)
        busy = await clock.until_done(engine.submit(ask()))
        await clock.settle()
        await clock.advance_ms(1)
        destination.cancel()
        result = await clock.until_done(destination.completed())
        assert result.error == "cancelled; the cleanup did not end in time"
        gate.set(True)
        await clock.settle()
        del stream, busy
        gc.collect()
        await drain_and_stop(clock, engine)

    run_virtual(main)


# -- the connection -------------------------------------------------------------------------------------


def test_a_connection() -> None:
    async def main(clock: VirtualClock) -> None:
        one, two = connected_endpoints()
        for number in range(MESSAGE_CAPACITY):
            one.post(Reserved(number))
        with pytest.raises(PeerGone, match="does not read"):
            one.post(Reserved(99))
        assert not two.peer_gone
        one.close()
        assert not two.peer_gone  # there is something to read still
        assert [await two.receive() for _ in range(MESSAGE_CAPACITY)] == [
            Reserved(at) for at in range(MESSAGE_CAPACITY)
        ]
        assert two.peer_gone
        assert await two.receive() is None
        with pytest.raises(PeerGone, match="has disconnected"):
            two.post(Reserved(1))
        one.close()

    run_virtual(main)


def test_an_end_that_is_collected_is_closed() -> None:
    async def main(clock: VirtualClock) -> None:
        one, two = connected_endpoints()
        one.post(Reserved(1))
        del one
        gc.collect()
        await clock.settle()
        assert await two.receive() == Reserved(1)
        assert await two.receive() is None

    run_virtual(main)
