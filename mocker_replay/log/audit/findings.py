"""What an audit found: where, which rule, and both figures.

Decides how many findings are kept; all are counted. Never decides what is one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

MAX_KEPT: Final = 200


class Place(NamedTuple):
    """A line of a log."""

    line: int  # from 1; the header is line 1
    seq: int | None  # None: header or footer


class Finding(Struct, frozen=True):
    """One rule broken at one line."""

    line: int
    seq: int | None
    rule: str
    text: str  # what is wrong
    stated: Any = None  # what the log (or the summary) says
    derived: Any = None  # what follows from the rest of the log

    def to_mapping(self) -> dict[str, Any]:
        return structs.asdict(self)


def _fitting(value: Any) -> Any:
    """A figure that JSON can hold: sums of figures made up by somebody may have more than 64 bits."""
    is_long = isinstance(value, int) and not -(2**63) <= value < 2**64
    return float(value) if is_long else value


class Findings:
    """Collects findings of one pass over a log, in the order in which they became known."""

    def __init__(self, checked: frozenset[str]) -> None:
        self.checked = checked
        self.kept: list[Finding] = []
        self.by_rule: Counter[str] = Counter()
        self.here = Place(1, None)  # the line that is being looked at

    def add(self, rule: str, text: str, stated: Any = None, derived: Any = None, *, at: Place | None = None) -> None:
        """A rule is broken, at the line that is being looked at unless told otherwise."""
        if rule not in self.checked:
            return
        self.by_rule[rule] += 1
        if len(self.kept) < MAX_KEPT:
            place = at or self.here
            self.kept.append(Finding(place.line, place.seq, rule, text, _fitting(stated), _fitting(derived)))

    @property
    def num_findings(self) -> int:
        return self.by_rule.total()

    def in_order(self) -> list[Finding]:
        """Those kept, by line."""
        return sorted(self.kept, key=lambda finding: finding.line)
