"""Student's t distribution for whole degrees of freedom.

Computes one number, without tables and without a library for statistics.

Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import functools
import math
from typing import Final

_LARGE_DF: Final = 4096  # from here on the normal distribution is as good
_T_MAX: Final = 1e9
_BISECTIONS: Final = 200


def within(t: float, df: int) -> float:
    """Probability that a t variable of `df` degrees of freedom lies between -t and t."""
    if df >= _LARGE_DF:
        return math.erf(t / math.sqrt(2.0))
    angle = math.atan2(t, math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    # A sum over odd, or over even powers of the cosine.
    term, total, start = (cosine, 0.0, 3) if df % 2 else (1.0, 0.0, 2)
    for k in range(start, df + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    return 2.0 / math.pi * (angle + sine * total) if df % 2 else sine * total


@functools.cache
def critical_t(alpha: float, df: int) -> float:
    """The t that a variable of `df` degrees of freedom exceeds, on either side, with probability alpha."""
    if not 0.0 < alpha < 1.0 or df < 1:
        raise ValueError(f"alpha must lie between 0 and 1 and df be positive (got {alpha}, {df})")
    low, high = 0.0, 1.0
    while within(high, df) < 1.0 - alpha and high < _T_MAX:
        high *= 2.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if within(middle, df) < 1.0 - alpha:
            low = middle
        else:
            high = middle
    return high
