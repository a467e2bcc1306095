"""The clients of a realtime replay: one a row, with a stream of its own that it reads as slowly as it was told to.

Decides what a client is called and what it reads. Never decides when a row arrives or a client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mocker_replay.config import RealtimeOptions
from mocker_replay.identity import stable_request_uuid
from mocker_replay.live.errors import LiveError, NotRunning
from mocker_replay.live.operations import Submission
from mocker_replay.live.rank import Rank
from mocker_replay.live.request import GenerateRequest, Prompt, Signal
from mocker_replay.live.stream import Registration, RequestStream

_NAME_SEED = 0

Observe = Callable[[int, Signal, float], None]  # (row, what its client just read, measured time [ms])


class Clients:
    """Who waits for an answer.

    Args:
        name_of: name of a row. wall_ms: measured time [ms]. observe: called with every token read.
        on_task_end: called when a client has read all, or failed.
    """

    def __init__(
        self,
        options: RealtimeOptions,
        name_of: Callable[[int], str],
        wall_ms: Callable[[], float],
        observe: Observe | None,
        on_task_end: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._options = options
        self._name_of = name_of
        self._wall_ms = wall_ms
        self._observe = observe
        self._on_task_end = on_task_end
        self._tasks: set[asyncio.Task[None]] = set()

    def prepare(
        self, rank: Rank, row: int, prompt: Prompt, output_tokens: int, priority: int, times: tuple[float, float]
    ) -> tuple[Registration, RequestStream]:
        """Register the request of a row; `times` as in `Rank.prepare`."""
        name = self._name_of(row)
        client_id = stable_request_uuid(_NAME_SEED, name)
        while rank.routes.by_client(client_id) is not None:
            # Two rows of one name may be in flight; their clients are two.
            name += f"#{row}"
            client_id = stable_request_uuid(_NAME_SEED, name)
        request = GenerateRequest(max_output_tokens=output_tokens, client_id=client_id, priority=priority)
        return rank.prepare(request, scheduler_id=row, prompt=prompt, times=times)

    def start(self, row: int, stream: RequestStream, submission: Submission, *, may_be_refused: bool = False) -> None:
        """A client begins to read."""
        client = asyncio.get_running_loop().create_task(self._read(row, stream, submission, may_be_refused))
        self._tasks.add(client)
        client.add_done_callback(self._tasks.discard)
        client.add_done_callback(self._on_task_end)

    async def _read(self, row: int, stream: RequestStream, submission: Submission, may_be_refused: bool) -> None:
        delay_s = self._options.reader_delay_ms / 1000.0
        async with stream:
            try:
                await submission.wait()
            except NotRunning:
                return
            except LiveError:
                if may_be_refused:
                    return
                raise
            if self._options.output_buffering == "full" and not delay_s and self._observe is None:
                # Whether tokens are read one by one cannot be told apart, and costs a turn of the loop each.
                await stream.until_ended()
                return
            while (signal := await stream.recv()) is not None:
                if self._observe is not None:
                    self._observe(row, signal, self._wall_ms())
                if delay_s:
                    await asyncio.sleep(delay_s)

    def stop_slow_readers(self) -> None:
        """Who reads slowly may have an hour's worth of tokens; what is unread at the end is of no interest."""
        if self._options.reader_delay_ms:
            for client in self._tasks:
                client.cancel()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Those that still read."""
        return [*self._tasks]
