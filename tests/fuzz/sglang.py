"""Random replays of the SGLang-flavoured engine from a seed; the same seed always gives the same case.

Aims at its corners: pages of one token, pools so tight that requests are retracted, budgets that end in the middle of
a prompt, queues in the order of cached prefixes, intervals, drafts that are all or none accepted. A pool always holds
what one request may grow to: one that cannot is a run that the wheel never ends.
"""

from __future__ import annotations

import json
from typing import Any

from tests.fuzz.disaggregated import with_transfers
from tests.fuzz.generate import Draft
from tests.parity.cases import Case

PAGE_SIZES = (1, 1, 2, 3, 4, 4, 5, 8, 16)


class SglangDraft(Draft):
    """A case in the making for this backend."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        self.block_size = rng.choice(PAGE_SIZES)
        self.trace_block_size = self._trace_block_size()
        if self.block_size == 1:
            self.max_blocks_a_request = rng.choice((5, 20, 60))
        self.num_blocks = max(2, int(self.max_blocks_a_request * rng.choice((1, 1.2, 1.5, 2, 3, 6, 20))) + 1)
        self.spare_impossible = True
        self.clip = 4096
        self.may_leave_page_size_out = True

    def engine(self) -> dict[str, Any]:
        rng = self.rng
        engine = super().engine()
        for key in ("preemption_mode", "enable_chunked_prefill", "max_num_batched_tokens"):
            engine.pop(key, None)
        engine["backend"] = "sglang"
        if self.block_size == 1 and self.may_leave_page_size_out and rng.random() < 0.5:
            del engine["block_size"]
        if rng.random() < 0.3:
            engine["prefill_decode_interval"] = rng.choice((1, 1, 2, 3, 5))
        sglang = engine["sglang"] = self.settings()
        if not sglang:
            del engine["sglang"]
        return engine

    def _mtp(self) -> dict[str, Any]:
        """Who draws when is told by the draws: only sure ones are portable."""
        mtp = super()._mtp()
        mtp["aic_nextn_accept_rates"] = ",".join(self.rng.choice("01") for _ in range(mtp["aic_nextn"]))
        return mtp

    def settings(self) -> dict[str, Any]:
        """What stands under `sglang`."""
        rng = self.rng
        longest = self.max_blocks_a_request * self.block_size
        sglang: dict[str, Any] = {}
        if rng.random() < 0.4:
            sglang["schedule_policy"] = rng.choice(("lpm", "lpm", "fifo"))
        if rng.random() < 0.6 or 8192 % self.block_size:
            pages = rng.choice((1, 2, 3, max(1, self.max_blocks_a_request // 2), self.max_blocks_a_request, 100))
            sglang["chunked_prefill_size"] = pages * self.block_size
        if rng.random() < 0.3:
            least = min(sglang.get("chunked_prefill_size", 8192), longest + self.block_size)
            sglang["max_prefill_tokens"] = least + rng.choice((0, 1, self.block_size, longest))
        if rng.random() < 0.8:
            sglang["clip_max_new_tokens"] = self.clip = rng.choice((0, 1, 4, self.block_size, 10, longest))
        if rng.random() < 0.5:
            choices = (0.0, 0.1, 0.3, 0.5, 1.0, 1.7, 3.0, round(rng.random(), 3))
            sglang["schedule_conservativeness"] = rng.choice(choices)
        return sglang

    def _fit(self, n_in: int, n_out: int) -> tuple[int, int]:
        """Shorten what could never be admitted, or never grow to its end."""
        room = (self.num_blocks - 1) * self.block_size
        if self.rng.random() < 0.004:
            return n_in, n_out
        n_in = min(n_in, room - self.block_size)
        n_in = max(1, n_in)
        n_out = min(n_out, max(0, room - n_in - 1))
        if min(n_out, self.clip) + n_in + self.block_size >= room + self.block_size:
            n_out = max(0, room - n_in - self.block_size)
        return n_in, n_out


def share_out(config: dict[str, Any], dp_size: int) -> None:
    """Give a worker several ranks, each of which has a share of the chunks."""
    config["dp_size"] = dp_size
    sglang = config["engine"].get("sglang", {})
    if "chunked_prefill_size" in sglang:
        sglang["chunked_prefill_size"] *= dp_size


def make_sglang_case(seed: int) -> Case:
    """The case of a seed, as the parity harness takes it."""
    draft = SglangDraft(seed)
    rng = draft.rng
    config: dict[str, Any] = {"engine": draft.engine()}
    dp_size = rng.choice((1, 1, 1, 1, 2, 3))
    if dp_size > 1:
        share_out(config, dp_size)
    rows = draft.rows()
    args = draft.args(dp_size)
    npz = draft.profile() if draft.profiled else {}
    return Case(f"sglang-{seed}", "mooncake", config, _text(rows, args), args, {}, npz_arrays=npz)


def make_sglang_pools_case(seed: int) -> Case:
    """The same with prefill and decode workers."""
    draft = SglangDraft(seed)
    draft.may_leave_page_size_out = False
    pools: dict[str, Any] = {}
    blocks = []
    for role in ("prefill", "decode"):
        engine = draft.engine()
        draft.slow = draft.profiled = False
        if engine["timing_model"]["type"] == "external":
            engine["timing_model"] = {"type": "polynomial"}
        engine["worker_type"] = role
        engine["num_gpu_blocks"] = max(2, int(draft.max_blocks_a_request * draft.rng.choice((1, 1.5, 2, 3, 6, 20))) + 1)
        blocks.append(engine["num_gpu_blocks"])
        pools[role] = {"engine": engine}
        dp_size = draft.rng.choice((1, 1, 1, 1, 2, 3))
        if dp_size > 1:
            share_out(pools[role], dp_size)
    draft.num_blocks = min(blocks)
    return with_transfers(draft, pools, f"sglang-{seed}")


def _text(rows: list[dict[str, Any]], args: dict[str, Any]) -> str:
    if "replay_concurrency" in args:
        for row in rows:
            if row.get("timestamp", 0) < 0:
                row["timestamp"] = 0
    return "".join(json.dumps(row) + "\n" for row in rows)
