"""The copies of host tiers: from preparation to end, on their lanes, in the room there is, and who waits for them.

Decides what a log with a host tier says of its copies. Never looks at queues or batches; blocks it only counts.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from mocker_replay.events import LogEvent, RunEnd
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup, Tier

_ENDS: Final = (LogEvent.FINISH, LogEvent.REJECTION, LogEvent.FAILURE, LogEvent.CANCELLATION, LogEvent.CUT)
_SHARED: Final = (-1, -1)  # where the one memory of all who share stands


class _Copy(Struct):
    """One copy under way."""

    place: Place
    request: str
    is_store: bool
    blocks: int
    end_ms: float | None = None  # as the log says when the copy begins; a shared tier cannot say it
    submitted: bool = False


class _Tier(Struct):
    """Host memory of one rank, or of all."""

    settings: Tier
    next_copy: int = 0
    copies: dict[int, _Copy] = field(default_factory=dict)
    used_blocks: int = 0
    resident_blocks: int = 0
    store_tail_ms: float = 0.0
    load_tail_ms: float = 0.0


class _Loaded(Struct):
    """What a request loads, or has loaded and holds."""

    copy: int | None
    blocks: int


class HostTiers:
    """One handler an event; nothing in a log without a tier."""

    def __init__(self, setup: Setup, findings: Findings) -> None:
        self._setup = setup
        self._findings = findings
        self._tiers: dict[tuple[int, int], _Tier] = {}
        self._loads: dict[str, _Loaded] = {}  # by request, until it is admitted or ends
        self._fences: dict[tuple[int, int], float] = {}  # of the pass that has just started
        self.before = {
            LogEvent.STORE_PREPARED.value: self._prepared,
            LogEvent.STORE_SUBMITTED.value: self._submitted,
            LogEvent.STORE_COMPLETED.value: self._completed,
            LogEvent.LOAD_SCHEDULED.value: self._scheduled,
            LogEvent.LOAD_COMPLETED.value: self._completed,
            LogEvent.LOAD_CANCELLED.value: self._cancelled,
            LogEvent.LOAD_RETURNED.value: self._returned,
            LogEvent.HOST_EVICTION.value: self._evicted,
            LogEvent.FENCE.value: self._fence,
            LogEvent.ADMISSION.value: self._admitted,
            LogEvent.PREEMPTION.value: self._forget,
            **{event.value: self._forget for event in _ENDS if event is not LogEvent.CANCELLATION},
        }

    def finish(self, end: str) -> None:
        """The log is over: a run that completed has waited for its copies."""
        if end != RunEnd.COMPLETE:
            return
        for tier in self._tiers.values():
            for number, copy in tier.copies.items():
                self._findings.add("host-copy", f"copy {number} never ended", at=copy.place)

    def _tier(self, event: Event) -> _Tier | None:
        """The tier a line is about; None where its worker has none."""
        settings = self._setup.tier_of(event["worker"])
        if settings is None:
            self._findings.add("host-copy", "this worker has no host tier", event["worker"])
            return None
        place = _SHARED if settings.is_shared else (event["worker"], event["rank"])
        return self._tiers.setdefault(place, _Tier(settings))

    # -- stores -------------------------------------------------------------------------------------

    def _begin(self, event: Event, tier: _Tier, *, is_store: bool) -> _Copy:
        if event["copy"] != tier.next_copy:
            self._findings.add("host-copy", "copies are numbered without a gap", event["copy"], tier.next_copy)
        tier.next_copy = event["copy"] + 1
        copy = _Copy(self._findings.here, event["request"], is_store, event["blocks"])
        tier.copies[event["copy"]] = copy
        if copy.blocks == 0:
            self._findings.add("host-copy", "a copy has blocks", 0)
        return copy

    def _prepared(self, event: Event) -> None:
        tier = self._tier(event)
        if tier is None:
            return
        self._begin(event, tier, is_store=True)
        tier.used_blocks += event["blocks"]
        if tier.used_blocks > tier.settings.num_blocks:
            self._findings.add("host-room", "blocks of the tier", tier.used_blocks, tier.settings.num_blocks)

    def _submitted(self, event: Event) -> None:
        tier = self._tier(event)
        copy = None if tier is None else self._known(event, tier, is_store=True)
        if tier is None or copy is None:
            return
        if copy.submitted:
            self._findings.add("host-copy", "a store is submitted once", event["copy"])
        copy.submitted, copy.end_ms = True, event.get("end_ms")
        if tier.settings.is_shared:
            return
        settings = tier.settings
        tail_ms = max(tier.store_tail_ms, event["t_ms"] + settings.latency_ms)
        tier.store_tail_ms = tail_ms + settings.copy_ms(copy.blocks, settings.d2h_gbps)
        self._lane(event, tier.store_tail_ms, (tier.store_tail_ms,))
        tier.store_tail_ms = event.get("end_ms", tier.store_tail_ms)

    def _evicted(self, event: Event) -> None:
        tier = self._tier(event)
        if tier is None:
            return
        tier.used_blocks -= event["blocks"]
        tier.resident_blocks -= event["blocks"]
        if tier.resident_blocks < 0 and not tier.settings.is_shared:  # whose ends are told when their rank sees them
            self._findings.add("host-room", "only what has come in is evicted: blocks", event["blocks"])

    # -- loads --------------------------------------------------------------------------------------

    def _scheduled(self, event: Event) -> None:
        tier = self._tier(event)
        if tier is None:
            return
        stores = [copy.end_ms for copy in tier.copies.values() if copy.is_store and copy.end_ms is not None]
        copy = self._begin(event, tier, is_store=False)
        copy.submitted, copy.end_ms = True, event.get("end_ms")
        if copy.blocks > tier.resident_blocks and not tier.settings.is_shared:
            self._findings.add("host-room", "blocks that are loaded, by those there", copy.blocks, tier.resident_blocks)
        if event["request"] in self._loads:
            self._findings.add("host-wait", "a request loads once before it is admitted")
        self._loads[event["request"]] = _Loaded(event["copy"], copy.blocks)
        if tier.settings.is_shared:
            return
        # It may have to wait for a store that still reads the blocks it brings something into.
        settings = tier.settings
        copy_ms = settings.copy_ms(copy.blocks, settings.h2d_gbps)
        begins = [event["t_ms"], *(end_ms for end_ms in stores if end_ms > event["t_ms"])]
        ends = tuple(max(tier.load_tail_ms, at_ms + settings.latency_ms) + copy_ms for at_ms in begins)
        self._lane(event, ends[0], ends)
        tier.load_tail_ms = event.get("end_ms", ends[0])

    def _cancelled(self, event: Event) -> None:
        tier = self._tier(event)
        if tier is not None and self._known(event, tier, is_store=False) is not None:
            del tier.copies[event["copy"]]
        self._loads.pop(event["request"], None)

    def _returned(self, event: Event) -> None:
        loaded = self._loads.pop(event["request"], None)
        if loaded is None or loaded.copy is not None:
            self._findings.add("host-wait", "who gives blocks back has loaded them, and was not admitted")

    # -- both ---------------------------------------------------------------------------------------

    def _known(self, event: Event, tier: _Tier, *, is_store: bool) -> _Copy | None:
        """The copy a line goes on with."""
        copy = tier.copies.get(event["copy"])
        if copy is None or copy.is_store != is_store:
            self._findings.add("host-copy", f"{event['event']} of a copy that is not under way", event["copy"])
            return None
        if [copy.request, copy.blocks] != [event["request"], event["blocks"]]:
            told = [event["request"], event["blocks"]]
            self._findings.add("host-copy", "request and blocks of the copy", told, [copy.request, copy.blocks])
        return copy

    def _completed(self, event: Event) -> None:
        tier = self._tier(event)
        is_store = event["event"] == LogEvent.STORE_COMPLETED
        copy = None if tier is None else self._known(event, tier, is_store=is_store)
        if tier is None or copy is None:
            return
        del tier.copies[event["copy"]]
        if not copy.submitted:
            self._findings.add("host-copy", "a store is submitted before it ends", event["copy"])
        if copy.end_ms is not None and event.get("end_ms") != copy.end_ms:
            self._findings.add("host-lane", "end of the copy, as it was told", event.get("end_ms"), copy.end_ms)
        if event.get("end_ms", 0.0) > event["t_ms"]:
            self._findings.add("host-lane", "a copy is seen when it has ended", event["t_ms"], event["end_ms"])
        if is_store:
            tier.resident_blocks += copy.blocks
        elif event["request"] in self._loads:
            self._loads[event["request"]].copy = None

    def _lane(self, event: Event, derived: float, allowed: tuple[float, ...]) -> None:
        if event.get("end_ms") not in allowed:
            self._findings.add("host-lane", "when the copy ends on its lane", event.get("end_ms"), derived)

    # -- requests and passes --------------------------------------------------------------------------

    def _fence(self, event: Event) -> None:
        tier = self._tier(event)
        if tier is None:
            return
        ends = [copy.end_ms for copy in tier.copies.values() if copy.is_store]
        if tier.settings.is_shared or event["until_ms"] not in ends or event["until_ms"] <= event["t_ms"]:
            self._findings.add("host-fence", "a pass waits for a store that is under way", event["until_ms"])

    def _admitted(self, event: Event) -> None:
        loaded = self._loads.pop(event["request"], None)
        if loaded is not None and loaded.copy is not None:
            self._findings.add("host-wait", "who is loading is not admitted", loaded.copy)
        if self._setup.tier_of(event["worker"]) is None:
            if "host_tokens" in event:
                self._findings.add("host-reuse", "this worker has no host tier", event["host_tokens"])
            return
        if ("host_tokens" in event) == event["readmission"]:
            self._findings.add("host-reuse", "the first admission tells where reused tokens came from")
        told = event.get("host_tokens", 0)
        most = 0 if loaded is None else min(event["reused_tokens"], loaded.blocks * self._setup.block_size)
        if told > most:
            self._findings.add("host-reuse", "reused tokens that came from the host, at most", told, most)

    def _forget(self, event: Event) -> None:
        """Whoever ends or is preempted holds nothing that it loaded."""
        loaded = self._loads.pop(event["request"], None)
        if loaded is not None and loaded.copy is not None and event["event"] != LogEvent.CUT:
            self._findings.add("host-wait", "who is loading neither runs nor ends but by its client", loaded.copy)
