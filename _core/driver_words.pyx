"""What phases, stimuli and answers of a driver are called where people or tests read them. Decides names only."""
from .types cimport (
    APPLY_ACCEPTED, APPLY_ACTIVE, APPLY_APPLIED, APPLY_BAD_PROMPT, APPLY_NO_HANDOFFS, APPLY_NO_RANK, APPLY_NOOP,
    APPLY_OVER_MODEL_LEN, APPLY_OVER_POOL, APPLY_SUBMITTED,
)

# In the order of driver.Phase and driver.Stimulus.
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
