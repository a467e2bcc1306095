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
    def num_ranks(self) -> int:
        """Ranks of all workers."""
        ranks = (self.num_workers - self.num_prefill_workers) * self.engine.dp_size
        return ranks if self.prefill is None else ranks + self.num_prefill_workers * self.prefill.dp_size

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
