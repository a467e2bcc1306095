"""Which fields of event lines a comparison may leave out.

Decides: a name stands for the field at any depth, a dotted path for one place, lists passed through
(`ranks.fpm.wall_time`). A name that no line has is refused: it would leave out nothing, and nobody would see it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mocker_replay.config.origin import nearest
from mocker_replay.errors import Fault, UsageError

# Every field of docs/event-log.md but `event`, which says what a line is.
_NAMES = """
seq t_ms request worker rank input_tokens output_tokens session turn row reused_tokens readmission
generated_tokens preemptions blocks_held before after running waiting active_blocks inactive_blocks
last_token_ms reason needed_tokens max_model_len needed_blocks pool_blocks max_num_batched_tokens kind in_pass
result suppressed gauges pass wave end_ms ranks scheduled_requests scheduled_tokens admitted prefill preempted
tokens fpm wall_time num_prefill_requests sum_prefill_tokens var_prefill_length sum_prefill_kv_tokens
num_decode_requests sum_decode_kv_tokens var_decode_kv_tokens num_queued_prefill sum_queued_prefill_tokens
var_queued_prefill_length num_queued_decode sum_queued_decode_kv_tokens var_queued_decode_kv_tokens total
first_block parent_hash block_hashes local_hashes priority deadline_ms play budget instead_of
copy blocks until_ms host_tokens
"""
KNOWN_FIELDS = frozenset(_NAMES.split())
_MOST = 64


def check_ignored(fields: Iterable[str]) -> tuple[str, ...]:
    """The fields to leave out, each once.

    Raises:
        UsageError: all that are none.
    """
    chosen = tuple(dict.fromkeys(fields))
    faults = []
    for field in chosen:
        unknown = [part for part in field.split(".") if part not in KNOWN_FIELDS]
        if unknown:
            near = nearest(unknown[0], KNOWN_FIELDS)
            hint = f"; did you mean {near}?" if near else ""
            faults.append(Fault("--ignore", 0, "", field, f"must be a field of event lines, or a path of such{hint}"))
    if len(chosen) > _MOST:
        faults.append(Fault("--ignore", 0, "", str(len(chosen)), f"at most {_MOST} fields can be left out"))
    if faults:
        raise UsageError.of(faults)
    return chosen
