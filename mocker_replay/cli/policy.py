"""The values of `--policy` and `--policy-option`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mocker_replay.config import ReplayOptions

FLAG: Final = "--policy"
OPTION_FLAG: Final = "--policy-option"


def policy_options_of(texts: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE texts as arguments: a value is a number, true, false or null where it reads as one, else a text.

    Raises:
        UsageError: a text without `=`, or a key that stands twice.
    """
    from mocker_replay.errors import Fault, UsageError

    options: dict[str, Any] = {}
    faults = []
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.isidentifier():
            faults.append(Fault(OPTION_FLAG, 0, "", text, "must be KEY=VALUE"))
        elif key in options:
            faults.append(Fault(OPTION_FLAG, 0, "", text, f"{key} is given twice"))
        else:
            options[key] = _scalar(value)
    if faults:
        raise UsageError.of(faults)
    return options


def _scalar(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if value is None or isinstance(value, bool | int | float | str) else text


def require_policy(options: ReplayOptions) -> None:
    """Find out before anything runs whether the policy can be had; modules of the working directory can.

    Raises:
        UsageError: it cannot.
    """
    from mocker_replay.cli.timing_model import search_working_directory
    from mocker_replay.policies import load_policy

    if ":" in options.policy:
        search_working_directory()
    load_policy(options.policy, options.policy_options, where=FLAG, where_options=OPTION_FLAG)
