"""Dates as logs write them -> Unix seconds. What a line leaves out (year, zone) comes from a ``Calendar``."""

from __future__ import annotations

import calendar as _calendar
import re
from dataclasses import dataclass

_MONTHS = {name: n for n, name in enumerate(_calendar.month_abbr) if name}
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d))?")
_MONTH_FIRST = re.compile(
    r"([A-Z][a-z]{2}) +(\d{1,2})(?: (\d{4}))? (\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(?: (\d{4}))?"
)
_DAY_S = 86_400


@dataclass(slots=True, kw_only=True)
class Calendar:
    """What dates without a year or zone mean.

    reference_s: Unix seconds, no line is more than a day younger (the file's mtime, or now); None: such dates stay
    unknown until a line with a whole date was seen, which then is the reference.
    utc_offset_s: of the machine that wrote the log, for dates without a zone.
    """

    reference_s: float | None = None
    utc_offset_s: int = 0

    def at(self, year: int | None, month: int, day: int, clock_s: float) -> float | None:
        """Unix seconds of a local date; None if there is no such day, or no year can be known.

        The first whole date becomes ``reference_s`` where that is None. clock_s: since midnight; year None: the newest
        that fits.
        """
        if year is not None:
            time_s = self._whole(year, month, day, clock_s)
            if self.reference_s is None:
                self.reference_s = time_s
            return time_s
        if self.reference_s is None:
            return None
        newest_year = _year_of(self.reference_s + self.utc_offset_s) + 1
        for year in range(newest_year, newest_year - 9, -1):  # 29 February may lie eight years back
            time_s = self._whole(year, month, day, clock_s)
            if time_s is not None and time_s <= self.reference_s + _DAY_S:
                return time_s
        return None

    def _whole(self, year: int, month: int, day: int, clock_s: float) -> float | None:
        if not (1970 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= _calendar.monthrange(year, month)[1]):
            return None
        return _calendar.timegm((year, month, day, 0, 0, 0)) + clock_s - self.utc_offset_s


def _year_of(time_s: float) -> int:
    year = 1970 + int(time_s // (365.2425 * _DAY_S))
    while _calendar.timegm((year, 1, 1, 0, 0, 0)) > time_s:
        year -= 1
    while _calendar.timegm((year + 1, 1, 1, 0, 0, 0)) <= time_s:
        year += 1
    return year


def parse_iso(text: str, calendar: Calendar) -> float | None:
    """Unix seconds of ``2024-07-01T10:00:00.123456+02:00``, with "," or " " too; without a zone in the calendar's.

    None for anything else.
    """
    found = _ISO.match(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    time_s = calendar.at(int(year), int(month), int(day), _clock_s(hour, minute, second, fraction))
    if time_s is None or zone is None:
        return time_s
    return time_s + calendar.utc_offset_s - _zone_s(zone)


def parse_month_first(text: str, calendar: Calendar) -> float | None:
    """Unix seconds of ``Jul  1 10:00:00``, also with a year after the day or at the end; None for anything else."""
    found = _MONTH_FIRST.match(text)
    if found is None or found[1] not in _MONTHS:
        return None
    month, day, year, hour, minute, second, fraction, year_last = found.groups()
    whole_year = year or year_last
    return calendar.at(
        int(whole_year) if whole_year else None,
        _MONTHS[month],
        int(day),
        _clock_s(hour, minute, second or "0", fraction),
    )


def parse_weekday_first(text: str, calendar: Calendar) -> float | None:
    """Unix seconds of ``Sun Dec  1 14:54:40 2024``; None for anything else."""
    return parse_month_first(text[4:], calendar)


def parse_klog(text: str, calendar: Calendar) -> float | None:
    """Unix seconds of klog's ``0701 10:00:00.123456`` (month and day first); None if its year cannot be known."""
    hour, minute, second = text[5:7], text[8:10], text[11:13]
    return calendar.at(None, int(text[:2]), int(text[2:4]), _clock_s(hour, minute, second, text[14:]))


def _clock_s(hour: str, minute: str, second: str, fraction: str | None) -> float:
    whole = int(hour) * 3600 + int(minute) * 60 + int(second)
    return whole + (float(f"0.{fraction}") if fraction else 0.0)


def _zone_s(zone: str) -> int:
    if zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "")
    offset_s = int(digits[:2]) * 3600 + int(digits[2:4]) * 60
    return -offset_s if zone[0] == "-" else offset_s
