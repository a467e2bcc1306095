"""Random engines, rows and scripts of commands for property tests of the core."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hypothesis import strategies as st

from mocker_replay._core.lanes import Command
from mocker_replay._core.timing import TimingModel
from tests.support.machines import Row, cancel, submit

WANT_PREFILL, WANT_FPM, WANT_TOKENS = 1, 2, 4

# Pass times that meet arrivals (multiples of 0.5) often, and some that never do.
timings = st.one_of(
    st.tuples(st.sampled_from([0.0, 1.0, 2.5, 10.0]), st.sampled_from([0.0, 0.5, 1.0])).map(
        lambda pair: TimingModel("fixed", prefill_ms=pair[0], decode_ms=pair[1])
    ),
    st.just(TimingModel("polynomial", speedup_ratio=3.0)),
)


@st.composite
def engines(draw: st.DrawFn, *, drafts: bool = True, want: int | None = None) -> dict[str, Any]:
    """Keyword arguments of `make_machine`: small pools, budgets and limits, so that everything runs short."""
    block_size = draw(st.integers(2, 6))
    settings: dict[str, Any] = {
        "dp_size": draw(st.sampled_from([1, 1, 2, 3])),
        "interval": draw(st.sampled_from([1, 1, 3])),
        "block_size": block_size,
        "trace_block_size": draw(st.sampled_from([block_size, 1, 3, 4, 9])),
        "num_gpu_blocks": draw(st.integers(2, 14)),
        "max_num_seqs": draw(st.sampled_from([1, 2, 4, None])),
        "max_num_batched_tokens": draw(st.sampled_from([3, 7, 20, None])),
        "max_model_len": draw(st.sampled_from([None, None, 12, 30])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
        "enable_chunked_prefill": draw(st.sampled_from([True, True, False])),
        "preemption_mode": draw(st.sampled_from(["lifo", "fifo"])),
        "timing": draw(timings),
        "want": draw(st.sampled_from([0, WANT_PREFILL, WANT_FPM | WANT_PREFILL, WANT_TOKENS]))
        if want is None
        else want,
    }
    if drafts and draw(st.integers(0, 4)) == 0:
        settings["accept_rates"] = draw(st.sampled_from([(1.0,), (0.7, 0.3), (0.5, 0.0, 1.0)]))
    return settings


@st.composite
def prompts(draw: st.DrawFn, trace_block_size: int) -> tuple[int, int, tuple[int, ...]]:
    """(input tokens, output tokens, hash ids) with prefixes that are often shared."""
    n_in = draw(st.integers(1, 24))
    family = draw(st.integers(0, 2))
    count = -(-n_in // trace_block_size)
    shared = draw(st.integers(0, count))
    return n_in, draw(st.integers(0, 24)), tuple(family if i < shared else 1_000 * family + i for i in range(count))


times_ms = st.integers(0, 60).map(lambda n: n / 2.0)


# Clients that stay, and some that leave at a pass end, in mid-pass, or at once.
patience_ms = st.one_of(st.just(math.inf), st.just(math.inf), st.sampled_from([0.0, 0.5, 1.0, 7.5, 30.0]))


@st.composite
def rows(draw: st.DrawFn, trace_block_size: int, *, max_size: int = 20, clients_leave: bool = False) -> list[Row]:
    due_ms = sorted(draw(st.lists(times_ms, min_size=1, max_size=max_size)))
    patience = patience_ms if clients_leave else st.just(math.inf)
    return [Row(at_ms, *draw(prompts(trace_block_size)), cancel_after_ms=draw(patience)) for at_ms in due_ms]


class Timed(NamedTuple):
    """A command and when it is put on its lane."""

    at_ms: float
    command: Command


@st.composite
def scripts(draw: st.DrawFn, trace_block_size: int, dp_size: int, *, max_size: int = 14) -> list[Timed]:
    """Submissions and cancellations in order of time; cancellations often name a request that lives."""
    script: list[Timed] = []
    submitted: list[Command] = []
    for command_id, at_ms in enumerate(sorted(draw(st.lists(times_ms, min_size=1, max_size=max_size)))):
        if submitted and draw(st.integers(0, 2)) == 0:
            target = draw(st.sampled_from(submitted))
            command = cancel(command_id, target.request, rank=target.rank, discard=draw(st.booleans()))
        else:
            n_in, n_out, hash_ids = draw(prompts(trace_block_size))
            rank = draw(st.integers(0, dp_size - 1))
            command = submit(command_id, len(submitted), n_in, n_out, rank=rank, hash_ids=hash_ids)
            submitted.append(command)
        script.append(Timed(at_ms, command))
    return script


@st.composite
def driven_engines(draw: st.DrawFn) -> tuple[dict[str, Any], list[Timed]]:
    """An engine and a script for it."""
    settings = draw(engines())
    return settings, draw(scripts(settings["trace_block_size"], settings["dp_size"]))
