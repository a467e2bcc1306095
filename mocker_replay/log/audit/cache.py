"""The prefix cache of each rank, as level `kv` tells it: a set of block hashes.

Decides what may be stored and removed. A block is visible once however many copies a rank keeps: a second copy is not
stored again, and `removed` says that the last one is gone. Memory follows the blocks stored, which the pool bounds.
"""

from __future__ import annotations

from typing import Final

import xxhash

from mocker_replay.events import LogEvent
from mocker_replay.log.audit.findings import Findings
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Group, Ledger

_HASH_SEED: Final = 1337


def chain_hash(parent: int, local: int) -> int:
    """Hash of a block and all before it: XXH3-64 over both hashes, 8 bytes each, little-endian."""
    return xxhash.xxh3_64_intdigest(parent.to_bytes(8, "little") + local.to_bytes(8, "little"), _HASH_SEED)


class Cache:
    """The rules whose names begin with `kv-`."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self._stored: dict[tuple[int, int], set[int]] = {}
        self.any = {LogEvent.KV_STORED.value: self._store, LogEvent.KV_REMOVED.value: self._remove}
        self.before = {LogEvent.KV_STORED.value: self._check_owner}
        self.closing_any = {LogEvent.PASS_END.value: self._pass_end}

    def _of(self, event: Event) -> set[int]:
        return self._stored.setdefault((event["worker"], event["rank"]), set())

    def _store(self, event: Event) -> None:
        stored, hashes, parent = self._of(event), event["block_hashes"], event["parent_hash"]
        if not self._setup.prefix_caching:
            self._findings.add("kv-stored", "blocks stored without prefix caching", len(hashes), 0)
        if len(hashes) != len(event["local_hashes"]) or not hashes:
            self._findings.add("kv-run", "as many local hashes as blocks", len(event["local_hashes"]), len(hashes))
        if (parent is None) != (event["first_block"] == 0):
            self._findings.add("kv-run", "the first block of a sequence has no parent", parent, event["first_block"])
        elif parent is not None and parent not in stored:
            self._findings.add("kv-run", "the parent is not stored", parent)
        self._check_chain(event)
        for block in hashes:
            if block in stored:
                self._findings.add("kv-stored", "the block is stored already", block)
            stored.add(block)

    def _check_chain(self, event: Event) -> None:
        chain = event["parent_hash"]
        for block, local in zip(event["block_hashes"], event["local_hashes"], strict=False):
            derived = local if chain is None else chain_hash(chain, local)
            if block != derived:
                self._findings.add("kv-chain", "chain hash of a block, by its parent and its content", block, derived)
                return
            chain = block

    def _remove(self, event: Event) -> None:
        stored = self._of(event)
        if not event["block_hashes"]:
            self._findings.add("kv-removed", "no block is removed")
        for block in event["block_hashes"]:
            if block not in stored:
                self._findings.add("kv-removed", "the block is not stored", block)
            stored.discard(block)

    def _check_owner(self, event: Event) -> None:
        """Who computed the blocks is a request of this rank; one that was cancelled in this pass is forgotten."""
        request = self._ledger.live.get(event["request"])
        if request is None:
            group = self._ledger.group
            if group is None or group.flight is None or event["request"] not in group.flight.cancelled:
                self._findings.add("known", f"{event['request']} has not arrived, or has ended")
            return
        place = [event["worker"], event["rank"]]
        if place != [request.worker, request.rank]:
            self._findings.add("placement", "worker and rank", place, [request.worker, request.rank])
        end = event["first_block"] + len(event["block_hashes"])
        most = (request.input_tokens + request.output_tokens) // self._setup.block_size
        if end > most:
            self._findings.add("kv-run", "blocks that its tokens can fill", end, most)

    def _pass_end(self, group: Group) -> None:
        for told in group.head["ranks"]:
            gauges = told["gauges"]
            there = gauges["active_blocks"] + gauges["inactive_blocks"]
            num_stored = len(self._stored.get((group.worker, told["rank"]), ()))
            if num_stored > there:
                self._findings.add(
                    "kv-pool", f"blocks stored on rank {told['rank']}", num_stored, there, at=group.place
                )
