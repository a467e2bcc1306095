"""What each session has said so far, as ids of engine blocks: the prompts of `mooncake-delta`.

Decides which engine blocks of two histories hold the same tokens, which is all that a prefix index asks. A history is
kept as one id a full block and the few tokens behind the last one; no prompt is ever materialised. Tokens of prompts
and authored outputs share one space of numbers; an output that nobody authored equals nothing but itself, in its own
session. Source: replay specification, sections 1.4 and 2.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from mocker_replay.errors import Fault, TraceError
from mocker_replay.trace.base import MAX_TOKENS, RowBatch

Run = tuple[int, int]  # a token, and how often it comes in a row

_UNTOLD: Final = -1  # tokens of an output that nobody authored


class Histories:
    """Histories of all sessions of a trace; rows come turn by turn.

    Args:
        rows: all of the trace, their hash ids numbered densely.
        trace_block_size, block_size: tokens of a hash id and of an engine block.
        shown_path: the trace, for messages.

    Raises:
        TraceError: a session whose history would be longer than any request may be.
    """

    def __init__(self, rows: RowBatch, trace_block_size: int, block_size: int, shown_path: str) -> None:
        self._rows = rows
        self._trace_block_size = trace_block_size
        self._block_size = block_size
        self._known: dict[tuple[Run, ...], int] = {}  # blocks of several tokens
        self._num_ids = 0
        self._sessions: dict[int, _History] = {}
        self._open: dict[int, _Turn] = {}  # by row: turns that were handed over and have not ended
        _require_lengths(rows, shown_path)

    def begin(self, row: int) -> tuple[int, array[int]]:
        """The turn of a row is due.

        Returns:
            tokens of its prompt, the history included; ids of the engine blocks of prompt and output to come.
        """
        session = int(self._rows.session[row])
        history = self._sessions.setdefault(session, _History())
        for run in self._prompt_runs(row):
            self._append(history, *run)
        turn = _Turn(session, history.length, list(history.tail))
        num_output = int(self._rows.output_tokens[row])
        for run in self._output_runs(row, 0, num_output):
            self._append(history, *run)
        self._open[row] = turn
        ids = array("Q", history.blocks)
        if history.tail:
            ids.append(0)  # nobody looks at a block that is not full
        return turn.num_input, ids

    def end(self, row: int, num_tokens: int, *, is_last: bool) -> None:
        """The turn of a row ended with so many tokens of its output in the history; `is_last`: of its session."""
        turn = self._open.pop(row)
        if is_last:
            del self._sessions[turn.session]
        elif num_tokens < int(self._rows.output_tokens[row]):
            self._cut(row, turn, num_tokens)

    def _cut(self, row: int, turn: _Turn, num_tokens: int) -> None:
        """Take back the part of an output that did not come."""
        history = self._sessions[turn.session]
        history.length = turn.num_input + num_tokens
        num_full = history.length // self._block_size
        del history.blocks[num_full:]
        first = num_full * self._block_size - turn.num_input  # of the output, in the tail
        history.tail = list(turn.tail) if first < 0 else []
        for run in self._output_runs(row, max(first, 0), num_tokens):
            _extend(history.tail, *run)

    def _prompt_runs(self, row: int) -> Iterator[Run]:
        rows = self._rows
        left = int(rows.input_tokens[row])
        for key in rows.hash_ids[rows.hash_offsets[row] : rows.hash_offsets[row + 1]].tolist():
            count = min(self._trace_block_size, left)
            left -= count
            yield key, count

    def _output_runs(self, row: int, first: int, stop: int) -> Iterable[Run]:
        authored = None if self._rows.output_token_ids is None else self._rows.output_token_ids[row]
        if stop <= first:
            return ()
        if authored is None:
            return ((_UNTOLD, stop - first),)
        return ((token, sum(1 for _ in group)) for token, group in groupby(authored[first:stop]))

    def _append(self, history: _History, token: int, count: int) -> None:
        size = self._block_size
        history.length += count
        if history.tail:
            taken = min(count, size - (history.length - count) % size)
            _extend(history.tail, token, taken)
            count -= taken
            if (history.length - count) % size == 0:
                history.blocks.append(self._id_of(history.tail))
                history.tail = []
        num_full, rest = divmod(count, size)
        if num_full and token != _UNTOLD:
            history.blocks.extend([_uniform(token)] * num_full)
        else:
            history.blocks.extend(self._new_id() for _ in range(num_full))
        if rest:
            history.tail = [(token, rest)]

    def _id_of(self, tail: list[Run]) -> int:
        """The id of a full block."""
        if any(token == _UNTOLD for token, _ in tail):
            return self._new_id()
        if len(tail) == 1:
            return _uniform(tail[0][0])
        key = tuple(tail)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._new_id()
        return known

    def _new_id(self) -> int:
        """Odd; blocks of one token have even ids."""
        self._num_ids += 1
        return 2 * self._num_ids - 1


class _History:
    """One session."""

    __slots__ = ("blocks", "length", "tail")

    def __init__(self) -> None:
        self.blocks: array[int] = array("Q")  # ids of the full blocks
        self.tail: list[Run] = []  # the tokens behind them
        self.length = 0  # tokens in all


class _Turn:
    """A turn on its way: what the history was before its output."""

    __slots__ = ("num_input", "session", "tail")

    def __init__(self, session: int, num_input: int, tail: list[Run]) -> None:
        self.session = session
        self.num_input = num_input
        self.tail = tail


def _uniform(token: int) -> int:
    """The id of a block of one token only."""
    return 2 * token


def _extend(tail: list[Run], token: int, count: int) -> None:
    if tail and tail[-1][0] == token:
        tail[-1] = token, tail[-1][1] + count
    else:
        tail.append((token, count))


def _require_lengths(rows: RowBatch, shown_path: str) -> None:
    lengths: dict[int, int] = {}
    columns = (rows.lines, rows.session, rows.input_tokens, rows.output_tokens)
    faults = []
    for line, session, num_input, num_output in zip(*(column.tolist() for column in columns), strict=True):
        before = lengths.get(session, 0)
        lengths[session] = before + num_input + num_output
        if before <= MAX_TOKENS < lengths[session]:
            rule = f"must not make its session longer than {MAX_TOKENS} tokens, history included"
            faults.append(Fault(shown_path, line, "input_length", str(num_input), rule))
    if faults:
        raise TraceError(faults[:100], max(0, len(faults) - 100))
