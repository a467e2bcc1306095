"""A simulated inference engine in real time, as a network server would use one.

    python examples/live_engine.py

Streams a response token by token, cancels one, sends both ranks of an engine work, looks at gauges and at the metrics
of each pass, and shuts down. Takes about a second.
"""

from __future__ import annotations

import asyncio

from mocker_replay.live import Admission, BoundedLane, ForwardPass, GenerateRequest, LiveEngine, RankConfig

# Passes take 20 ms with prefill and 5 ms without; every key of the engine configuration works here.
CONFIG = {
    "engine": {
        "block_size": 16,
        "num_gpu_blocks": 256,
        "max_num_seqs": 8,
        "timing_model": {"type": "fixed", "prefill_ms": 20.0, "decode_ms": 5.0},
    }
}
PROMPT = list(range(100))  # token ids


async def stream_a_response(engine: LiveEngine) -> None:
    """Leaving the block in any way, by `break` or by an exception, would cancel the request."""
    request = GenerateRequest(prompt=PROMPT, output_ids=[11, 12, 13, 14])
    async with await engine.submit(request) as stream:
        async for signal in stream:
            late_ms = signal.observed_ms - signal.t_ms
            end = f", {signal.reason}" if signal.completed else ""
            print(f"  token {signal.token_id} at {signal.t_ms:.0f} ms, delivered {late_ms:.2f} ms later{end}")


async def cancel_a_response(engine: LiveEngine) -> None:
    """By its stream; `engine.cancel(client_id)` does the same from elsewhere."""
    stream = await engine.submit(GenerateRequest(prompt=PROMPT, max_output_tokens=1000))
    print(f"  token {(await stream.recv()).token_id}, and that is enough")
    print(f"  cancelled: {await stream.cancel()}, requests left: {engine.active_request_count()}")


async def one_rank() -> None:
    admissions: BoundedLane[Admission] = BoundedLane(None)
    passes: list[ForwardPass] = []
    rank = RankConfig(admissions=admissions, forward_pass_publisher=passes.append)
    async with LiveEngine.start(CONFIG, rank=rank) as engine:
        print("a response:")
        await stream_a_response(engine)
        print("the same prompt again:")
        await cancel_a_response(engine)
        reused = [admissions.take_nowait().reused_tokens for _ in range(2)]
        print(f"prompt tokens found in the cache: {reused[0]}, then {reused[1]}")
        gauges = engine.metrics_receiver().value
        print(f"gauges: {gauges.running} running, {gauges.waiting} waiting, {gauges.cache_usage:.0%} of blocks in use")
        print(f"passes: {len(passes)}, the first one took {passes[0].values['wall_time'] * 1000:.0f} ms")


async def two_ranks() -> None:
    """Attention-DP ranks pass together: the slower one sets the pace."""
    engines = LiveEngine.start_grouped({**CONFIG, "dp_size": 2}, [RankConfig(), RankConfig()])

    async def first_token_ms(engine: LiveEngine) -> float:
        async with await engine.submit(GenerateRequest(prompt=PROMPT)) as stream:
            signal = await stream.recv()
            assert signal is not None
            return signal.t_ms

    times_ms = await asyncio.gather(*map(first_token_ms, engines))
    print(f"two ranks, first tokens at {times_ms[0]:.0f} and {times_ms[1]:.0f} ms")
    await engines[0].shutdown()  # stops all ranks


async def main() -> None:
    await one_rank()
    await two_ranks()


if __name__ == "__main__":
    asyncio.run(main())
