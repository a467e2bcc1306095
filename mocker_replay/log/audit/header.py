"""What the header of a log says about its run, as far as rules need it. Never decides a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mocker_replay.events import EventLevel
from mocker_replay.log.reader import LogError

_RANKS_MAX: Final = 1 << 20  # what is read of a log must not grow with a number that somebody wrote into its header


class Transfer(NamedTuple):
    """What the transfer of a prompt takes; a bandwidth of 0 is no model."""

    mode: str = "full_prompt"
    bytes_per_token: int = 0
    bandwidth_gbps: float = 0.0

    def delay_ms(self, tokens: int) -> float:
        """How long so many tokens take."""
        if self.bytes_per_token == 0 or self.bandwidth_gbps == 0.0:
            return 0.0
        return float(tokens) * float(self.bytes_per_token) / (self.bandwidth_gbps * 1e9) * 1000.0


NO_TRANSFER: Final = Transfer()


class Tier(NamedTuple):
    """Host memory of a rank, or of all ranks together; a bandwidth of 0 takes no time."""

    is_shared: bool
    num_blocks: int
    block_bytes: float
    d2h_gbps: float
    h2d_gbps: float
    latency_ms: float

    def copy_ms(self, blocks: int, gbps: float) -> float:
        """How long the copy of so many blocks takes when it is alone."""
        return float(blocks) * self.block_bytes / (gbps * 1e6) if gbps > 0.0 else 0.0


class Setup(Struct, frozen=True, kw_only=True):
    """Limits and sizes of the run that wrote a log; None where there is no limit."""

    level: EventLevel
    measured: bool  # modelled time follows a measured clock
    realtime: bool  # lines may carry `wall`
    trace_rows: int
    num_workers: int
    dp_size: int
    tensor_parallel_size: int
    num_gpu_blocks: int
    block_size: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    num_drafts: int  # 0 without multi-token prediction
    prefix_caching: bool
    chunked_prefill: bool
    sla_ttft_ms: float | None
    sla_itl_ms: float | None
    sla_e2e_ms: float | None
    policy: str
    num_plays: int | None  # None: the trace was no graph
    agentic_lanes: int | None
    num_prefill_workers: int = 0  # of num_workers, the first; 0: workers have no roles
    transfer: Transfer = NO_TRANSFER
    tier: Tier | None = None  # host memory of all workers, of decode workers where there are roles
    prefill_tier: Tier | None = None
    prefill_dp_size: int = 0
    prefill_num_gpu_blocks: int = 0
    decode_dp_size: int = 0
    backend: str = "vllm"
    books_outputs: bool = False  # a request is admitted with room for its whole life, and is never preempted

    def dp_size_of(self, worker: int) -> int:
        """Ranks of a worker, where workers have roles."""
        return self.prefill_dp_size if worker < self.num_prefill_workers else self.decode_dp_size

    def num_blocks_of(self, worker: int) -> int:
        """Device blocks of a rank of a worker."""
        return self.prefill_num_gpu_blocks if worker < self.num_prefill_workers else self.num_gpu_blocks

    @property
    def pool_tokens(self) -> int:
        """Tokens that the pool of a rank holds."""
        return self.num_gpu_blocks * self.block_size

    @property
    def is_sglang(self) -> bool:
        """A pass computes prompts or decodes, a prompt that is cut waits, lost output is computed again like a prompt,
        and a handoff begins at its destination."""
        return self.backend == "sglang"

    @property
    def has_tier(self) -> bool:
        """Whether any worker has host memory."""
        return self.tier is not None or self.prefill_tier is not None

    def tier_of(self, worker: int) -> Tier | None:
        """Host memory of a worker."""
        return self.prefill_tier if worker < self.num_prefill_workers else self.tier

    def stores_hold(self, worker: int) -> bool:
        """Whether stores of a worker hold device blocks until they end: its memory is shared."""
        tier = self.tier_of(worker)
        return tier is not None and tier.is_shared

    def blocks_of(self, tokens: int) -> int:
        """Blocks that so many tokens need."""
        return -(-tokens // self.block_size)


_BOOKS_OUTPUTS: Final = ("trtllm",)


def read_setup(header: Mapping[str, Any], name: str) -> Setup:
    """Raises LogError: the header does not say what every log of this program says."""
    levels = [str(level) for level in EventLevel]
    if header.get("level") not in levels:
        raise LogError(f"{name}:1: level: must be one of {', '.join(levels)} (got {header.get('level')!r})")
    find = _Finder(header, name)
    has_roles = "prefill_config" in header
    num_prefill = find.count("options", "num_prefill_workers") if has_roles else 0
    num_workers = find.count("options", "num_decode_workers" if has_roles else "num_workers") + num_prefill
    num_ranks = num_workers * find.count("config", "dp_size")
    if num_ranks > _RANKS_MAX:
        raise LogError(
            f"{name}:1: options.num_workers: with config.dp_size {num_ranks} ranks, more than {_RANKS_MAX:,}"
        )
    return Setup(
        level=EventLevel(header["level"]),
        measured=find.text("clock") == "measured",
        realtime="wall" in header,
        trace_rows=find.count("trace", "rows"),
        num_workers=num_workers,
        num_prefill_workers=num_prefill,
        transfer=_transfer(find) if has_roles else NO_TRANSFER,
        tier=_tier(find, "config"),
        prefill_tier=_tier(find, "prefill_config") if has_roles else None,
        prefill_dp_size=find.count("prefill_config", "dp_size") if has_roles else 0,
        prefill_num_gpu_blocks=find.count("prefill_config", "engine", "num_gpu_blocks") if has_roles else 0,
        decode_dp_size=find.count("config", "dp_size"),
        dp_size=max(find.count("config", "dp_size"), find.count("prefill_config", "dp_size") if has_roles else 0),
        tensor_parallel_size=find.count("config", "tensor_parallel_size"),
        num_gpu_blocks=find.count("config", "engine", "num_gpu_blocks"),
        block_size=find.count("config", "engine", "block_size", least=1),
        max_num_seqs=find.limit("config", "engine", "max_num_seqs"),
        max_num_batched_tokens=find.limit("config", "engine", "max_num_batched_tokens"),
        max_model_len=find.limit("config", "engine", "max_model_len"),
        num_drafts=find.limit("config", "engine", "aic_nextn") or 0,
        prefix_caching=find.flag("config", "engine", "enable_prefix_caching"),
        chunked_prefill=find.flag("config", "engine", "enable_chunked_prefill"),
        sla_ttft_ms=find.bound("options", "sla_ttft_ms"),
        sla_itl_ms=find.bound("options", "sla_itl_ms"),
        sla_e2e_ms=find.bound("options", "sla_e2e_ms"),
        policy=find.text_or("fcfs", "options", "policy"),
        num_plays=find.count_or_none("trace", "plays"),
        agentic_lanes=find.count_or_none("options", "agentic_lanes"),
        books_outputs=find.text_or("vllm", "config", "engine", "backend") in _BOOKS_OUTPUTS,
        backend=find.text_or("vllm", "config", "engine", "backend"),
    )


def _transfer(find: _Finder) -> Transfer:
    path = ("prefill_config", "engine")
    return Transfer(
        find.text(*path, "kv_transfer_timing_mode"),
        find.limit(*path, "kv_transfer_bytes_per_token") or 0,
        find.bound(*path, "kv_transfer_bandwidth") or 0.0,
    )


def _tier(find: _Finder, config: str) -> Tier | None:
    path = (config, "engine", "native_host_offload")
    if not find.has(*path):
        return None
    block_size = find.count(config, "engine", "block_size", least=1)
    latency_ms = find.bound(*path, "latency_to_first_byte_ms") if find.has(*path, "latency_to_first_byte_ms") else 0.0
    return Tier(
        find.text_or("dp_rank_local", *path, "scope") == "cluster_shared",
        find.count(*path, "num_host_blocks", least=1),
        float(block_size * find.count(config, "engine", "kv_cache_bytes_per_token", least=1)),
        find.bound(*path, "d2h_bandwidth_gbps") or 0.0,
        find.bound(*path, "h2d_bandwidth_gbps") or 0.0,
        latency_ms or 0.0,
    )


class _Finder:
    """Looks values up by key path; each miss is an error that names the path."""

    def __init__(self, header: Mapping[str, Any], name: str) -> None:
        self._header = header
        self._name = name

    def _find(self, path: tuple[str, ...]) -> Any:
        value: Any = self._header
        for key in path:
            if not isinstance(value, dict) or key not in value:
                raise LogError(f"{self._name}:1: {'.'.join(path)}: the header of an event log must have it")
            value = value[key]
        return value

    def _wrong(self, path: tuple[str, ...], rule: str, value: Any) -> LogError:
        return LogError(f"{self._name}:1: {'.'.join(path)}: must be {rule} (got {value!r})")

    def has(self, *path: str) -> bool:
        """Whether the last key of a path stands there, and is not null."""
        section = self._find(path[:-1])
        return isinstance(section, dict) and section.get(path[-1]) is not None

    def text(self, *path: str) -> str:
        value = self._find(path)
        if not isinstance(value, str):
            raise self._wrong(path, "a text", value)
        return value

    def text_or(self, default: str, *path: str) -> str:
        """A text that logs of before there was such a setting lack."""
        section = self._find(path[:-1])
        return self.text(*path) if isinstance(section, dict) and path[-1] in section else default

    def flag(self, *path: str) -> bool:
        value = self._find(path)
        if not isinstance(value, bool):
            raise self._wrong(path, "true or false", value)
        return value

    def count(self, *path: str, least: int = 0) -> int:
        value = self._find(path)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(path, f"a whole number from {least} on", value)
        return value

    def count_or_none(self, *path: str) -> int | None:
        """A count that only some runs have."""
        section = self._find(path[:-1])
        return self.count(*path) if isinstance(section, dict) and path[-1] in section else None

    def limit(self, *path: str) -> int | None:
        return None if self._find(path) is None else self.count(*path)

    def bound(self, *path: str) -> float | None:
        value = self._find(path)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise self._wrong(path, "a number or null", value)
        return None if value is None else float(value)
