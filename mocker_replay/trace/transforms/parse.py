"""Transforms as people write them: `NAME`, `NAME=VALUE` or `NAME=VALUE,KEY=VALUE`.

Decides names, values and units, and finds every fault of all transforms in one pass. Never looks at a trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final

from mocker_replay.config.decimals import read_plain_float
from mocker_replay.config.origin import nearest
from mocker_replay.errors import Fault, UsageError
from mocker_replay.trace.transforms.lengths import ScaleInput, ScaleOutput
from mocker_replay.trace.transforms.limit import LimitRows
from mocker_replay.trace.transforms.renumber import RenumberHashIds, RenumberRequestIds
from mocker_replay.trace.transforms.sample import Sample
from mocker_replay.trace.transforms.step import WHERE, Step
from mocker_replay.trace.transforms.ties import ShuffleTies
from mocker_replay.trace.transforms.times import CapDelay, CapGap, ScaleArrivals, ScaleDelays
from mocker_replay.trace.transforms.window import Window

_MS_PER_UNIT: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "min": 60_000.0, "h": 3_600_000.0}
_DURATION: Final = re.compile(r"([0-9.eE+-]+?)\s*(us|ms|s|min|h)?", re.ASCII)
_SEED_END: Final = 2**64


class _Refused(Exception):
    """A value that is none; the message is the rule."""


def read_transforms(texts: Sequence[str], where: str = WHERE) -> tuple[Step, ...]:
    """The steps of a pipeline, in their order.

    Args:
        where: how the setting is called in messages.

    Raises:
        UsageError: all faults of all texts.
    """
    steps: list[Step] = []
    faults: list[Fault] = []
    for text in texts:
        try:
            steps.append(_step(text))
        except _Refused as exc:
            faults.append(Fault(where, 0, "", text, str(exc)))
    if faults:
        raise UsageError.of(faults)
    return tuple(steps)


def _step(text: str) -> Step:
    name, has_value, value = text.strip().partition("=")
    if name not in _READERS:
        near = nearest(name, _READERS)
        meant = f"; did you mean {near}?" if near else f"; known are {', '.join(_READERS)}"
        raise _Refused(f"no such transform{meant}")
    form, reader = _READERS[name]
    if bool(has_value) != ("=" in form):
        raise _Refused(f"must be written {form}")
    return reader(value)


def _window(value: str) -> Window:
    start, has_end, end = value.partition(":")
    if not has_end:
        raise _Refused("must be written window=START:END, such as window=0:60s; either may be left out")
    window = Window(_duration_ms(start) if start.strip() else 0.0, _duration_ms(end) if end.strip() else math.inf)
    if window.start_ms >= window.end_ms:
        raise _Refused("must end after its start")
    return window


def _duration_ms(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    number = read_plain_float(match[1]) if match else None
    if match is None or number is None:
        raise _Refused(f"{text.strip()} must be a number with its unit ({', '.join(_MS_PER_UNIT)})")
    if match[2] is None and number != 0.0:
        raise _Refused(f"{text.strip()} must have its unit ({', '.join(_MS_PER_UNIT)})")
    duration_ms = number * _MS_PER_UNIT[match[2] or "ms"]
    if not (math.isfinite(duration_ms) and duration_ms >= 0.0):
        raise _Refused(f"{text.strip()} must be finite and not negative")
    return duration_ms


def _sample(value: str) -> Sample:
    ratio, *more = value.split(",")
    seed = 0
    for entry in more:
        key, _, number = entry.partition("=")
        if key.strip() != "seed" or len(more) > 1:
            raise _Refused("must be written sample=RATIO or sample=RATIO,seed=SEED")
        seed = _whole(number, 0, _SEED_END - 1)
    return Sample(_number(ratio, "must be above 0 and at most 1", lambda share: 0.0 < share <= 1.0), seed)


def _factor(value: str) -> float:
    return _number(value, "must be finite and positive", lambda factor: math.isfinite(factor) and factor > 0.0)


def _limit_ms(value: str) -> float:
    return _number(value, "must be finite and not negative", lambda limit: math.isfinite(limit) and limit >= 0.0)


def _number(text: str, rule: str, is_legal: Callable[[float], bool]) -> float:
    number = read_plain_float(text.strip())
    if number is None:
        raise _Refused(f"{text.strip() or 'the value'} must be a number")
    if not is_legal(number):
        raise _Refused(rule)
    return number + 0.0


def _whole(text: str, low: int, high: int) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(high)) and low <= int(digits) <= high):
        raise _Refused(f"{digits or 'the value'} must be a whole number from {low} to {high}")
    return int(digits)


# Each transform: how it is written, and what reads its value.
_READERS: Final[dict[str, tuple[str, Callable[[str], Step]]]] = {
    "window": ("window=START:END", _window),
    "limit-rows": ("limit-rows=ROWS", lambda value: LimitRows(_whole(value, 1, 2**31 - 1))),
    "sample": ("sample=RATIO[,seed=SEED]", _sample),
    "scale-arrivals": ("scale-arrivals=FACTOR", lambda value: ScaleArrivals(_factor(value))),
    "scale-delays": ("scale-delays=FACTOR", lambda value: ScaleDelays(_factor(value))),
    "scale-input": ("scale-input=FACTOR", lambda value: ScaleInput(_factor(value))),
    "scale-output": ("scale-output=FACTOR", lambda value: ScaleOutput(_factor(value))),
    "cap-gap-ms": ("cap-gap-ms=MS", lambda value: CapGap(_limit_ms(value))),
    "cap-delay-ms": ("cap-delay-ms=MS", lambda value: CapDelay(_limit_ms(value))),
    "shuffle-ties": ("shuffle-ties=SEED", lambda value: ShuffleTies(_whole(value, 0, _SEED_END - 1))),
    "renumber-hash-ids": ("renumber-hash-ids", lambda value: RenumberHashIds()),
    "renumber-request-ids": ("renumber-request-ids", lambda value: RenumberRequestIds()),
}
FORMS: Final = tuple(form for form, _ in _READERS.values())
