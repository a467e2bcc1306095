"""Settings of a realtime run that an accelerated one does not have.

Holds and validates values. They never stand among the replay options: the same options make the same modelled run,
whoever keeps the time.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator
from typing import Final, Literal

from msgspec import Struct

from mocker_replay.config.origin import nearest, show
from mocker_replay.errors import Fault, UsageError

CLOCKS: Final = ("measured", "nominal")


class RealtimeOptions(Struct, frozen=True):
    """How a trace is replayed at its real pace; `validate` finds what is wrong."""

    clock: str = "measured"  # which reading a step is given
    max_lateness_ms: float | None = None  # a run in which anything was later than this [ms] is a failed measurement
    output_buffering: int | Literal["full"] = "full"  # unread tokens of a request before it is cancelled
    reader_delay_ms: float = 0.0  # what each client waits after each token it reads [ms of wall time]

    def validate(self, name_of: Callable[[str], str] = str) -> None:
        """Refuse what cannot be.

        Args:
            name_of: how a field is called in the message; the command line passes the flag.

        Raises:
            UsageError: all faults.
        """
        faults = [Fault(name_of(field), 0, "", show(getattr(self, field)), rule) for field, rule in self._faults()]
        if faults:
            raise UsageError.of(faults)

    def _faults(self) -> Iterator[tuple[str, str]]:
        if self.clock not in CLOCKS:
            near = nearest(self.clock, CLOCKS) if isinstance(self.clock, str) else None
            yield "clock", f"must be one of {', '.join(CLOCKS)}" + (f"; did you mean {near}?" if near else "")
        for field in ("max_lateness_ms", "reader_delay_ms"):
            value = getattr(self, field)
            if value is None and field == "max_lateness_ms":
                continue
            if not isinstance(value, numbers.Real) or isinstance(value, bool):
                yield field, "must be a number"
            elif not 0.0 <= float(value) < math.inf:
                yield field, "must be finite and non-negative"
        buffering = self.output_buffering
        is_count = isinstance(buffering, int) and not isinstance(buffering, bool) and 1 <= buffering < 2**31
        if buffering != "full" and not is_count:
            yield "output_buffering", 'must be "full" or a whole number from 1 to 2^31-1'
        if self.clock == "nominal":
            # Under the nominal clock nothing may depend on how fast a reader happened to be.
            if buffering != "full":
                yield "output_buffering", "must be full with clock nominal"
            if self.reader_delay_ms:
                yield "reader_delay_ms", "is only of use with clock measured"
