"""The rules of an audit by name.

Decides: which rules there are, what each says, and the lowest level of a log that can decide it. Never decides whether
one holds; the modules beside this one do, a family each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mocker_replay.events import EventLevel

LEVEL_ORDER: Final = tuple(EventLevel)


class Rule(NamedTuple):
    """One thing that must hold."""

    level: EventLevel  # the lowest that decides it
    holds: str


_R, _P, _T, _K = EventLevel.REQUESTS, EventLevel.PASSES, EventLevel.TOKENS, EventLevel.KV

RULES: Final[dict[str, Rule]] = {
    # lines
    "form": Rule(_R, "a line has the keys of its event in their order, each of its type, at a level that holds it"),
    "seq": Rule(_R, "`seq` counts from 0 without a gap"),
    "time": Rule(_R, "`t_ms` of one worker never falls, save for commands in mid-pass, which carry the pass start"),
    "grouping": Rule(_P, "what belongs to a pass start, a pass end or a command follows it, in order and at its time"),
    # the life of a request
    "arrival": Rule(_R, "a row of the trace arrives once, at a worker and rank that exist"),
    "known": Rule(_R, "a line names a request that has arrived and not ended"),
    "placement": Rule(_R, "worker and rank of a request are those of its arrival"),
    "submission": Rule(_P, "a request is submitted once, between passes, before all else"),
    "admission": Rule(_R, "only a waiting request is admitted; readmission only after a preemption"),
    "preemption": Rule(_R, "only a running request is preempted (trtllm: none); count and generated tokens are right"),
    "decision": Rule(_R, "a decision of a policy names who could be chosen, and is followed by what it decides"),
    "first-token": Rule(_R, "the first token comes once, to a running request"),
    "cancellation": Rule(_P, "a cancellation finds what its result says, and ends what it found"),
    "end": Rule(_R, "who finishes runs, who is rejected never ran; a reason fits its event and figures"),
    "cut": Rule(_R, "cuts are the last lines of a run that did not complete"),
    "left-over": Rule(_R, "every request that arrived ends or is cut"),
    # plays of a graph
    "play": Rule(_R, "a request of a graph tells its play, and none arrives once another of the play has failed"),
    "lanes": Rule(_R, "no more plays run at a time than there are lanes"),
    "skipped": Rule(_R, "requests that never arrived belong to plays that failed, and the footer counts them"),
    # tokens
    "token-count": Rule(_T, "`total` is the sum of `tokens`; one line a pass, no more than a burst may hold"),
    "output-tokens": Rule(_R, "an end delivers the tokens that were shown, no more than asked, and as its reason says"),
    "last-token": Rule(_R, "`last_token_ms` is the time of the last token shown"),
    "pass-tokens": Rule(_P, "`tokens` of a pass are those its requests got"),
    "emitted": Rule(_P, "the tokens of all passes of a rank are those that its requests were given"),
    # passes
    "pass-pair": Rule(_P, "a pass starts when none is in flight, and the one in flight ends"),
    "pass-number": Rule(_P, "passes of a worker are numbered from 0 without a gap"),
    "pass-time": Rule(_P, "a pass ends when its start said, which is when the latest of its ranks ends"),
    "pass-ranks": Rule(_P, "the ranks that have requests execute, and all ranks are told of at the end"),
    "wave": Rule(_P, "`wave` counts the passes since the worker was last empty"),
    "wall-time": Rule(_P, "`wall_time` is the length of the pass in seconds"),
    "pass-lists": Rule(_P, "`admitted` and `preempted` say what the lines of the pass start say"),
    "idle-rank": Rule(_P, "a rank that did not execute has no tokens and an empty forward-pass record"),
    # work
    "prefill": Rule(_P, "prompt tokens are computed for running requests, once each, to the last one before a token"),
    "batch": Rule(_P, "`scheduled_requests` and `scheduled_tokens` hold the prefill list and fit the running requests"),
    "fpm-batch": Rule(_P, "the forward-pass record counts the batch that was scheduled"),
    "fpm-queue": Rule(_P, "the forward-pass record counts the requests that wait"),
    # limits
    "budget": Rule(_P, "a rank schedules no more than `max_num_batched_tokens`, or than the budget its policy set"),
    "max-seqs": Rule(_R, "a rank runs no more than `max_num_seqs` requests"),
    "chunking": Rule(_P, "without chunked prefill a prompt is computed in one pass"),
    "model-len": Rule(_R, "prompt and output of a request stay within `max_model_len`"),
    "reuse": Rule(
        _R, "reused tokens are whole blocks, and leave a token to compute where output is to come (not trtllm)"
    ),
    "pool": Rule(_R, "blocks in use, cached or held are no more than there are, nor more than a request can hold"),
    # gauges
    "gauges": Rule(_P, "`running` and `waiting` are the requests that the lines say run and wait"),
    "gauge-blocks": Rule(_P, "blocks change in a pass or by a cancellation only"),
    "preemption-gauges": Rule(_R, "a preemption moves one request, and frees no more than it held"),
    # cache
    "kv-stored": Rule(_K, "a block is not stored while it is stored"),
    "kv-removed": Rule(_K, "a removed block was stored"),
    "kv-run": Rule(_K, "a run of stored blocks follows a stored parent, and lies in its request"),
    "kv-chain": Rule(_K, "the hash of a block follows from its parent's and from its content"),
    "kv-pool": Rule(_K, "no more blocks are stored than are active or inactive"),
    # totals
    "footer": Rule(_R, "the footer counts the lines; arrived = finished + failed + rejected + cancelled + cut"),
    "digest": Rule(_R, "the digest of the footer is that of the lines"),
    "end-word": Rule(_R, "a complete run cuts no request"),
    "summary": Rule(_T, "the summary follows from the lines"),
}

# Of logs with prefill and decode workers; of the others only those in OF_ROLES are held there.
HANDOFF_RULES: Final[dict[str, Rule]] = {
    "handoff": Rule(_R, "stages of a handoff come once, in order, at the workers of their roles"),
    "handoff-tokens": Rule(_R, "tokens of a stage are those of the prompt, those it lacks, or those that are charged"),
    "handoff-time": Rule(_R, "a transfer takes what the prefill configuration says"),
    "handoff-end": Rule(
        _R, "who decodes was activated; what is held of a request is given back, and nothing follows its end"
    ),
    "handoff-blocks": Rule(_P, "blocks in use at a rank have owners there, and all who wait or run there are known"),
}
# Of logs with host memory.
HOST_RULES: Final[dict[str, Rule]] = {
    "host-copy": Rule(_P, "copies of a tier are numbered from 0; each begins and ends once, for one request"),
    "host-lane": Rule(_P, "a copy ends when its lane says, and is seen then or later"),
    "host-room": Rule(_P, "a tier holds no more blocks than it has room for; what is loaded or evicted has come in"),
    "host-fence": Rule(_P, "a pass is held up only by a store that is under way"),
    "host-reuse": Rule(_P, "the first admission says what came from the host, and that was loaded for it"),
    "host-wait": Rule(_P, "who is loading waits; only who has loaded gives blocks back"),
}
OF_ROLES: Final = frozenset(
    {
        "form", "seq", "time", "pass-pair", "pass-number", "pass-time", "wall-time", "idle-rank", "pool", "footer",
        "digest", "left-over", *HANDOFF_RULES, *HOST_RULES,
    }
)  # fmt: skip


def decided_by(level: EventLevel, rules: Mapping[str, Rule] = RULES) -> frozenset[str]:
    """Those of `rules` that a log of this level can decide."""
    rank = LEVEL_ORDER.index(level)
    return frozenset(name for name, rule in rules.items() if LEVEL_ORDER.index(rule.level) <= rank)
