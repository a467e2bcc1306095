"""The workers of one replay: all the same, or prefill and decode workers, each with a configuration of its own.

Decides which worker of a fleet has which configuration (prefill workers come first), and what two pools must have in
common. Never builds a worker.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from mocker_replay.config import EngineConfig, ReplayOptions, load_engine_config
from mocker_replay.config.origin import show
from mocker_replay.errors import ConfigError, Fault, UsageError


class Pools(Struct, frozen=True):
    """Who works in a replay. `engine` is the configuration of decode workers, or of all where workers have no roles."""

    engine: EngineConfig
    num_workers: int
    prefill: EngineConfig | None = None
    num_prefill_workers: int = 0  # of num_workers

    @classmethod
    def of(
        cls,
        options: ReplayOptions,
        engine: EngineConfig | None,
        prefill: EngineConfig | None,
        decode: EngineConfig | None,
    ) -> Pools:
        """The pools that the options ask for.

        Raises:
            UsageError: a pool without its configuration, or the other way round.
            ConfigError: a configuration that its pool cannot have, or two that do not fit each other.
        """
        faults = list(_missing(options, prefill, decode))
        if faults:
            raise UsageError.of(faults)
        if prefill is None or decode is None:
            engine = engine or load_engine_config(None)
            engine.require_supported()
            return cls(engine, options.num_workers)
        faults = []
        for role, config in (("prefill", prefill), ("decode", decode)):
            try:
                config.require_supported(role)
            except ConfigError as exc:
                faults += exc.faults
        faults += _misfits(prefill, decode)
        if faults:
            raise ConfigError.of(faults)
        assert options.num_prefill_workers is not None
        assert options.num_decode_workers is not None
        num_workers = options.num_prefill_workers + options.num_decode_workers
        return cls(decode, num_workers, prefill, options.num_prefill_workers)

    @property
    def dp_size(self) -> int:
        """Ranks of the worker that has most."""
        return self.engine.dp_size if self.prefill is None else max(self.engine.dp_size, self.prefill.dp_size)

    @property
    def has_tier(self) -> bool:
        """Whether any worker has host memory."""
        configs = (self.engine, self.prefill)
        return any(config is not None and config.native_host_offload is not None for config in configs)

    @property
    def shares_tier(self) -> bool:
        """Whether any workers share host memory."""
        return any(config.shares_tier for config, _ in self.ranks_by_config())

    @property
    def num_ranks(self) -> int:
        """Ranks of all workers."""
        return sum(num_ranks for _, num_ranks in self.ranks_by_config())

    def ranks_by_config(self) -> list[tuple[EngineConfig, int]]:
        """Each configuration and how many ranks have it, in the order of the workers."""
        ranks = [(self.engine, (self.num_workers - self.num_prefill_workers) * self.engine.dp_size)]
        if self.prefill is not None:
            ranks.insert(0, (self.prefill, self.num_prefill_workers * self.prefill.dp_size))
        return ranks

    def number_in_pool(self, worker: int) -> int:
        """Number of a worker of the fleet among those of its kind."""
        return worker if worker < self.num_prefill_workers else worker - self.num_prefill_workers

    def config_of(self, worker: int) -> EngineConfig:
        """Configuration of a worker of the fleet."""
        return self.prefill if self.prefill is not None and worker < self.num_prefill_workers else self.engine


def _missing(options: ReplayOptions, prefill: EngineConfig | None, decode: EngineConfig | None) -> Iterator[Fault]:
    for role, config in (("prefill", prefill), ("decode", decode)):
        if options.is_disaggregated and config is None:
            rule = f"num_prefill_workers and num_decode_workers need a {role} configuration"
            yield Fault(f"{role}_engine_config", 0, "", "", rule)
        elif config is not None and not options.is_disaggregated:
            rule = "is only of use with num_prefill_workers and num_decode_workers"
            yield Fault(f"{role}_engine_config", 0, "", "", rule)


def _misfits(prefill: EngineConfig, decode: EngineConfig) -> Iterator[Fault]:
    """What the blocks of a prompt must have in common to be moved from one worker to another."""
    for field in ("block_size", "backend"):
        ours, theirs = getattr(prefill, field), getattr(decode, field)
        if ours != theirs:
            rule = f"must be that of the decode configuration, {theirs}"
            yield Fault("prefill engine config", 0, f"engine.{field}", show(ours), rule)
    if prefill.shares_tier and decode.shares_tier:
        theirs_by_key = dict(_shared_memory(decode))
        for key, ours in _shared_memory(prefill):
            if ours != theirs_by_key[key]:
                rule = f"must be that of the decode configuration, {show(theirs_by_key[key])}: they share one memory"
                yield Fault("prefill engine config", 0, key, show(ours), rule)


def _shared_memory(config: EngineConfig) -> Iterator[tuple[str, object]]:
    """What all who share host memory must say of it, by key."""
    offload = config.native_host_offload
    assert offload is not None, "who shares memory has some"
    yield "tensor_parallel_size", config.tensor_parallel_size
    yield "engine.kv_cache_bytes_per_token", config.kv_cache_bytes_per_token
    path = "engine.native_host_offload"
    yield f"{path}.kv_layout_id", offload.kv_layout_id
    yield f"{path}.num_host_blocks", offload.num_host_blocks
    yield f"{path}.shared_d2h_bandwidth_gbps", offload.gbps_of_all[0]
    yield f"{path}.shared_h2d_bandwidth_gbps", offload.gbps_of_all[1]
