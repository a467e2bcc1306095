"""A prompt from a prefill engine to a decode engine: first command by command, then by a session.

    python examples/live_handoff.py

Takes about a second.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from mocker_replay.live import DestinationReserved, GenerateRequest, LiveEngine, SourceHeld


def config(worker_type: str) -> dict[str, Any]:
    """An engine whose prefill takes 20 ms, and which hands 100 kB of KV cache a token over at 1 GB/s."""
    return {
        "engine": {
            "block_size": 16,
            "num_gpu_blocks": 1024,
            "timing_model": {"type": "fixed", "prefill_ms": 20.0, "decode_ms": 5.0},
            "worker_type": worker_type,
            "kv_transfer_bytes_per_token": 100_000,
            "kv_transfer_bandwidth": 1.0,
        }
    }


async def by_hand(prefill: LiveEngine, decode: LiveEngine) -> None:
    """Hold at the source, reserve at the destination, transfer, activate, release."""
    handoff_id = uuid.UUID(int=1)
    request = GenerateRequest(prompt=range(96), output_ids=[11, 12])
    source, source_events = prefill.register_handoff(handoff_id)
    registration, _prefill_output = prefill.prepare(request)
    await source.submit_prefill(registration)
    held = await source_events.recv()
    assert isinstance(held, SourceHeld)
    print(f"held: {held.timing.prompt_tokens} tokens, {held.transfer_delay_ms(96):.1f} ms to transfer")

    destination, destination_events = decode.register_handoff(handoff_id)
    registration, output = decode.prepare(request)
    await destination.reserve_destination(registration)
    reserved = await destination_events.recv()
    assert isinstance(reserved, DestinationReserved)
    print(f"reserved: {reserved.missing_tokens} tokens are missing")

    await asyncio.sleep(held.transfer_delay_ms(reserved.missing_tokens) / 1000)
    await destination.activate_destination()
    await source.release_source()
    print("".join([f"token {signal.token_id} at {signal.t_ms:.0f} ms, " async for signal in output]))


async def by_session(prefill: LiveEngine, decode: LiveEngine) -> None:
    """The same, and an offer that nobody takes."""
    async with prefill.handoff_sessions(max_sessions=8) as sessions:
        handoff_id = uuid.UUID(int=2)
        request = GenerateRequest(prompt=range(1000, 1096), max_output_tokens=3)
        offered = sessions.offer(handoff_id, request)
        _, output = decode.join_handoff(handoff_id, request, sessions.connect(handoff_id))
        signals = [signal async for signal in output]
        result = await offered.completed()
        outcome = "succeeded" if result.succeeded else result.error
        print(f"a session: {len(signals)} tokens, {outcome}, the transfer took {result.delay_ms:.1f} ms")

        lonely = sessions.offer(uuid.UUID(int=3), request)
        lonely.cancel()
        print(f"a session that nobody joined: {(await lonely.completed()).error}")


async def main() -> None:
    async with LiveEngine.start(config("prefill")) as prefill, LiveEngine.start(config("decode")) as decode:
        await by_hand(prefill, decode)
        await by_session(prefill, decode)


if __name__ == "__main__":
    asyncio.run(main())
