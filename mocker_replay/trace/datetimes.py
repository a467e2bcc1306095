"""Dates and times in a trace as whole ticks of 100 ns.

Decides which texts are a date and time and what tick each is; an offset from UTC is taken off. Exact throughout: no
tick ever passes through a float. Reads no clock: these are figures of a file, so the calendar is arithmetic of our own.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

TICKS_PER_S: Final = 10_000_000
TICKS_PER_MS: Final = 10_000
NO_DATETIME: Final = "must be a date and time such as 2023-11-16 18:17:03.9799600, at most seven digits of a second"
MIXED_OFFSETS: Final = "must have an offset from UTC in all rows or in none"
_MINUTE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):", re.ASCII)
_MINUTE_CHARS: Final = len("2023-11-16 18:17:")
_REST: Final = re.compile(r"(\d\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII)
_DIGITS: Final = 7  # of a second
_S_PER_DAY: Final = 86_400
_MAX_KNOWN_MINUTES: Final = 4096
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_BEFORE_MONTH: Final = (0, *itertools.accumulate(_MONTH_DAYS))


class DateTimes:
    """Reads the times of one file; rows of one minute stand together."""

    def __init__(self) -> None:
        self._minutes: dict[str, int | None] = {}
        self._has_offset: bool | None = None

    def ticks(self, text: str) -> int | str:
        """100 ns since the first day of the year 1, or the rule that the text breaks."""
        head = text[:_MINUTE_CHARS]
        if head not in self._minutes:
            if len(self._minutes) >= _MAX_KNOWN_MINUTES:
                self._minutes.clear()
            self._minutes[head] = _minute_ticks(head)
        minute = self._minutes[head]
        rest = _REST.fullmatch(text, _MINUTE_CHARS)
        if minute is None or rest is None:
            return NO_DATETIME
        second, fraction = int(rest[1]), rest[2] or ""
        if second > 59 or fraction[_DIGITS:].strip("0"):
            return NO_DATETIME
        has_offset = rest[3] is not None or rest[4] is not None
        if self._has_offset is None:
            self._has_offset = has_offset
        if has_offset != self._has_offset:
            return MIXED_OFFSETS
        ticks = minute + second * TICKS_PER_S + int(fraction[:_DIGITS].ljust(_DIGITS, "0"))
        if rest[4] is not None:
            if int(rest[5]) > 23 or int(rest[6]) > 59:
                return NO_DATETIME
            offset_s = int(rest[5]) * 3600 + int(rest[6]) * 60
            ticks -= (offset_s if rest[4] == "+" else -offset_s) * TICKS_PER_S
        return ticks


def text_of_ticks(ticks: int) -> str:
    """The date and time of a tick, with seven digits."""
    seconds, fraction = divmod(ticks, TICKS_PER_S)
    days, seconds = divmod(seconds, _S_PER_DAY)
    year = days // 366 + 1
    while _days_before_year(year + 1) <= days:
        year += 1
    days -= _days_before_year(year)
    month = 1
    while days >= _days_in_month(year, month):
        days -= _days_in_month(year, month)
        month += 1
    hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60
    return f"{year:04}-{month:02}-{days + 1:02} {hour:02}:{minute:02}:{second:02}.{fraction:07}"


def _minute_ticks(text: str) -> int | None:
    """The tick at which a minute begins, None for what is none."""
    found = _MINUTE.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute = map(int, found.groups())
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= _days_in_month(year, month) and hour < 24 and minute < 60):
        return None
    days = _days_before_year(year) + _DAYS_BEFORE_MONTH[month - 1] + (month > 2 and _is_leap(year)) + day - 1
    return (days * _S_PER_DAY + hour * 3600 + minute * 60) * TICKS_PER_S


def _days_before_year(year: int) -> int:
    years = year - 1
    return years * 365 + years // 4 - years // 100 + years // 400


def _days_in_month(year: int, month: int) -> int:
    return _MONTH_DAYS[month - 1] + (month == 2 and _is_leap(year))


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
