"""Names of the driver's phases, stimuli and answers, and the order in which a shell has to look for those that are wanted."""
from libc.stdint cimport uint64_t

from .driver cimport (
    ST_BOUNDARY_APPLY, ST_BOUNDARY_DROPPED, ST_BOUNDARY_FINISH, ST_CANCEL, ST_CANCEL_ITEM, ST_CANCELS_CLOSED, ST_COMMAND_ITEM,
    ST_COMMANDS_CLOSED, ST_GO, ST_INTERNAL_TIMER, ST_LANE_COUNTS, ST_LANE_EMPTY, ST_PASS_TIMER, ST_PUBLISH_CLOSED, ST_PUBLISHED,
    ST_YIELDED,
)
from .types cimport (
    APPLY_ACCEPTED, APPLY_ACTIVE, APPLY_APPLIED, APPLY_BAD_PROMPT, APPLY_NO_HANDOFFS, APPLY_NO_RANK, APPLY_NOOP,
    APPLY_OVER_MODEL_LEN, APPLY_OVER_POOL, APPLY_SUBMITTED,
)

PHASE_NAMES = (
    "turn", "idle", "snapshot", "snapshot_cancels", "snapshot_commands", "start_pass", "in_pass", "at_boundary",
    "post_pass", "post_cancels", "post_deferred", "post_commands", "yield", "stopped",
)
STIMULUS_NAMES = (
    "go", "cancel", "cancel_item", "command_item", "lane_empty", "cancels_closed", "commands_closed", "lane_counts",
    "pass_timer", "internal_timer", "boundary_apply", "boundary_finish", "boundary_dropped", "published",
    "publish_closed", "yielded",
)

STATUS_TEXTS = {
    APPLY_SUBMITTED: "submitted", APPLY_APPLIED: "applied", APPLY_NOOP: "noop",
    APPLY_ACCEPTED: "accepted", APPLY_ACTIVE: "request is already active", APPLY_NO_RANK: "attention-DP rank is out of range",
    APPLY_BAD_PROMPT: "a length is negative or the hash ids do not cover the prompt",
    APPLY_OVER_POOL: "the prompt is larger than the KV pool",
    APPLY_OVER_MODEL_LEN: "the prompt is not shorter than max_model_len",
    APPLY_NO_HANDOFFS: "this engine hands nothing off",
}

cdef dict _wanted = {}                   # by mask: the names in order; some twenty entries


cdef tuple wanted_names(uint64_t mask):
    """Names of the stimuli whose bits are set; the first one that is there must be taken."""
    wanted = _wanted.get(mask)
    if wanted is None:
        wanted = _wanted[mask] = _in_order(mask)
    return wanted


cdef tuple _in_order(uint64_t mask):
    """Names of wanted stimuli in order of priority; Idle alone wants internal work and no pass end."""
    if mask >> ST_PUBLISHED & 1:
        # A publication that can proceed does; a lane without reader is no error to a driver that is being stopped.
        order = (ST_PUBLISHED, ST_CANCEL, ST_PUBLISH_CLOSED)
    elif mask >> ST_LANE_COUNTS & 1:
        order = (ST_LANE_COUNTS, ST_CANCEL_ITEM, ST_COMMAND_ITEM)
    elif mask >> ST_INTERNAL_TIMER & 1 and not mask >> ST_PASS_TIMER & 1:
        order = (ST_CANCEL, ST_CANCEL_ITEM, ST_CANCELS_CLOSED, ST_COMMAND_ITEM, ST_COMMANDS_CLOSED, ST_INTERNAL_TIMER)
    else:
        order = (ST_CANCEL, ST_CANCEL_ITEM, ST_CANCELS_CLOSED, ST_PASS_TIMER, ST_INTERNAL_TIMER, ST_COMMAND_ITEM,
                 ST_COMMANDS_CLOSED, ST_LANE_EMPTY, ST_BOUNDARY_APPLY, ST_BOUNDARY_FINISH,
                 ST_BOUNDARY_DROPPED, ST_YIELDED, ST_GO)
    return tuple([STIMULUS_NAMES[stimulus] for stimulus in order if mask >> stimulus & 1])
