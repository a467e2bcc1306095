"""Names of the driver's phases and stimuli, and the order in which a shell has to look for those that are wanted."""
from libc.stdint cimport uint64_t

from .driver cimport (
    ST_BOUNDARY_APPLY, ST_BOUNDARY_DROPPED, ST_BOUNDARY_FINISH, ST_CANCEL, ST_CANCEL_ITEM, ST_CANCELS_CLOSED, ST_COMMAND_ITEM,
    ST_COMMANDS_CLOSED, ST_GO, ST_INTERNAL_TIMER, ST_LANE_COUNTS, ST_LANE_EMPTY, ST_PASS_TIMER, ST_PUBLISH_CLOSED, ST_PUBLISHED,
    ST_YIELDED,
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
    elif mask >> ST_INTERNAL_TIMER & 1 and not mask >> ST_PASS_TIMER & 1:
        order = (ST_CANCEL, ST_CANCEL_ITEM, ST_CANCELS_CLOSED, ST_COMMAND_ITEM, ST_COMMANDS_CLOSED, ST_INTERNAL_TIMER)
    else:
        order = (ST_CANCEL, ST_CANCEL_ITEM, ST_CANCELS_CLOSED, ST_PASS_TIMER, ST_INTERNAL_TIMER, ST_COMMAND_ITEM,
                 ST_COMMANDS_CLOSED, ST_LANE_EMPTY, ST_LANE_COUNTS, ST_BOUNDARY_APPLY, ST_BOUNDARY_FINISH,
                 ST_BOUNDARY_DROPPED, ST_YIELDED, ST_GO)
    return tuple([STIMULUS_NAMES[stimulus] for stimulus in order if mask >> stimulus & 1])
