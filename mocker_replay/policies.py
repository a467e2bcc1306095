"""Scheduling policies: the ones that come with the program, and the plug-in point for one's own.

Decides which object a name stands for, and which hooks of it are asked. Never decides anything about a request: the
built-in policies are `_core/policies_built_in`, the questions are asked by `_core/sched_policy`. docs/policies.md
tells how to write one.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from mocker_replay.errors import Fault, UsageError

if TYPE_CHECKING:  # the core is loaded when a policy is made
    from mocker_replay._core.policy import SchedulingPolicy
    from mocker_replay._core.python_policy import RankFacts, RequestFacts

__all__ = [
    "BUILT_IN", "ENTRY_POINTS", "FCFS", "LoadedPolicy", "Policy", "RankFacts", "RankLoad", "RequestFacts",
    "load_policy", "ready",
]  # fmt: skip
FCFS: Final = "fcfs"
BUILT_IN: Final[Mapping[str, str]] = {
    FCFS: "first come, first served, as the reference",
    "sjf": "shortest job first, by prompt and output",
    "lpm": "longest cached prefix first",
    "priority": "lowest `priority` of the row first",
    "edf": "earliest `deadline_ms` of the row first",
}
_CLASSES: Final = {
    "sjf": "ShortestJobFirst",
    "lpm": "LongestPrefixMatch",
    "priority": "Priority",
    "edf": "EarliestDeadlineFirst",
}
ENTRY_POINTS: Final = "mocker_replay.policies"
_HOOKS: Final = ("order_key", "choose_victim", "may_admit", "token_budget")


class RankLoad(NamedTuple):
    """One rank as the router sees it when a request is to be placed."""

    worker: int
    rank: int
    num_requests: int  # placed there and not ended
    outstanding_tokens: int  # prompt and output of these
    num_running: int  # as last published, with a command or a pass end
    num_waiting: int
    active_blocks: int
    num_blocks: int


class Policy:
    """Base of policies in Python: override what you want to decide, and nothing else.

    One object serves all ranks of a run, and is asked in a fixed order, so a policy that uses neither the clock nor
    unseeded randomness makes the same run each time. What it is given is a copy. An exception ends the run.

    Attributes:
        reason: why it decides as it does, for the event log: 1 to 40 small letters, digits or `_`. It is read after
            each decision, so a hook may set it.
        reorders: ask for the key of every waiting request in every pass that could admit one, not only when it begins
            to wait. It costs a call a request and pass.
        max_matches: look up the cached prefix of a request before its key is asked for (`request.match_tokens`) while
            no more than so many wait; 0 never does. Without `reorders` it is as it was when the request began to wait.
    """

    reason: str = "policy"
    reorders: bool = False
    max_matches: int = 0

    def order_key(self, request: RequestFacts, rank: RankFacts) -> float:
        """Place in the waiting queue: the lowest goes first, equals in the order of arrival, preempted ones before."""
        return 0.0

    def choose_victim(self, running: Sequence[RequestFacts], rank: RankFacts) -> int:
        """Index in `running` (in order of admission) of the request that loses its blocks when the pool is full."""
        return len(running) - 1

    def may_admit(self, request: RequestFacts, rank: RankFacts) -> bool:
        """False holds a request back in this pass although there is room; the next in order is tried.

        A rank that runs nothing and holds everybody back stands still for ever, and ends the run.
        """
        return True

    def token_budget(self, rank: RankFacts) -> int:
        """Tokens of the pass that starts, from 1 to `rank.max_num_batched_tokens`."""
        return rank.max_num_batched_tokens

    def place(self, request: RequestFacts, ranks: Sequence[RankLoad]) -> tuple[int, int]:
        """(worker, rank) of a request that arrives; `ranks` is in order of worker, then rank."""
        raise NotImplementedError("a policy without a `place` of its own leaves placement to the router")


class LoadedPolicy(Struct, frozen=True):
    """A policy, ready to be asked."""

    name: str
    options: Mapping[str, Any]
    scheduling: SchedulingPolicy | None  # None: first come, first served
    placing: Any = None  # what has `place` and `reason`; None: placement is the router's

    @property
    def is_fcfs(self) -> bool:
        return self.scheduling is None and self.placing is None


def load_policy(
    name: str, options: Mapping[str, Any], *, where: str = "policy", where_options: str = "policy_options"
) -> LoadedPolicy:
    """The policy of a name: built in, MODULE:CLASS, or an entry point of the group `mocker_replay.policies`.

    Args:
        options: arguments of its class. where, where_options: how they are called in messages.

    Raises:
        UsageError: no such policy, or its class does not take the options.
    """
    if name == FCFS:
        if options:
            raise _fault(where_options, options, "fcfs takes no options")
        return LoadedPolicy(FCFS, {}, None)
    target = _class_of(name, where)
    try:
        made = target(**options)
    except Exception as exc:  # a class of the user's may raise anything
        raise _fault(where_options, options, f"{name} refuses them: {type(exc).__name__}: {exc}") from exc
    return ready(made, name, options, where)


def ready(
    made: Any, name: str | None = None, options: Mapping[str, Any] | None = None, where: str = "policy"
) -> LoadedPolicy:
    """A policy object, ready to be asked.

    Raises:
        UsageError: it is none.
    """
    from mocker_replay._core.policy import SchedulingPolicy
    from mocker_replay._core.python_policy import PythonPolicy

    name = name or f"{type(made).__module__}:{type(made).__qualname__}"
    if isinstance(made, Policy):
        kind = type(made)
        hooks = [hook for hook in _HOOKS if getattr(kind, hook) is not getattr(Policy, hook)]
        scheduling: SchedulingPolicy | None = None
        if hooks:
            scheduling = PythonPolicy(made, hooks, reorders=made.reorders, max_matches=made.max_matches)
        places = kind.place is not Policy.place
        if not hooks and not places:
            raise _fault(where, name, f"must override one of {', '.join((*_HOOKS, 'place'))}")
    elif isinstance(made, SchedulingPolicy):
        scheduling, places = made, callable(getattr(made, "place", None))
    else:
        raise _fault(where, name, "must be a mocker_replay.policies.Policy, or a SchedulingPolicy in Cython")
    return LoadedPolicy(name, dict(options or {}), scheduling, made if places else None)


def _class_of(name: str, where: str) -> Any:
    if name in _CLASSES:
        return getattr(importlib.import_module("mocker_replay._core.policies_built_in"), _CLASSES[name])
    target = _imported(name, where) if ":" in name else _entry_point(name, where)
    if not inspect.isclass(target):
        raise _fault(where, name, "must name a class")
    return target


def _imported(name: str, where: str) -> Any:
    module, _, path = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except Exception as exc:  # a module of the user's may raise anything
        raise _fault(where, name, f"cannot be imported: {type(exc).__name__}: {exc}") from exc
    return target


def _entry_point(name: str, where: str) -> Any:
    from difflib import get_close_matches
    from importlib.metadata import entry_points

    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        known = [*BUILT_IN, *sorted(found)]
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise _fault(where, name, f"must be one of {', '.join(known)}, or MODULE:CLASS{hint}")
    try:
        return found[name].load()
    except Exception as exc:
        raise _fault(where, name, f"cannot be loaded: {type(exc).__name__}: {exc}") from exc


def _fault(where: str, value: Any, rule: str) -> UsageError:
    shown = value if isinstance(value, str) else json.dumps(dict(value), default=repr)
    return UsageError.of([Fault(where, 0, "", shown, rule)])


def __getattr__(name: str) -> Any:
    """The facts that hooks are given, for annotations and tests of a policy; the core is loaded with them."""
    if name in ("RankFacts", "RequestFacts"):
        return getattr(importlib.import_module("mocker_replay._core.python_policy"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
