"""Readings against what is expected of a node (``expectations.toml``). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

from ..data_file import read_toml
from .outcome import CheckOutcome, CheckStatus


class ExpectationKind(str, Enum):
    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    EQUAL = "equal"
    ABOVE = "above"
    BELOW = "below"
    #: Two upper limits.
    SHARE = "share"


Reading = float | str | None
_WORDS = {
    ExpectationKind.AT_LEAST: "at least ",
    ExpectationKind.AT_MOST: "at most ",
    ExpectationKind.ABOVE: "more than ",
    ExpectationKind.BELOW: "less than ",
    ExpectationKind.EQUAL: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """``expected`` None: the configuration must say it; until then the check is UNKNOWN."""

    check: str
    rule: ExpectationKind
    shows: str
    expected: float | str | None = None
    warn: float = math.inf
    critical: float = math.inf
    unit: str = ""
    otherwise: CheckStatus = CheckStatus.CRITICAL
    above: CheckStatus = CheckStatus.CRITICAL
    unreadable: CheckStatus = CheckStatus.WARN


@cache
def expectations() -> dict[str, Expectation]:
    """All by the check's name. Raises ValueError or KeyError for a wrong entry."""
    found = {}
    for check, entry in read_toml(__package__ or "", "expectations.toml").items():
        otherwise = CheckStatus(entry.get("otherwise", "CRITICAL"))
        found[check] = Expectation(
            check=check,
            rule=ExpectationKind(entry["rule"]),
            shows=entry["shows"],
            expected=entry.get("expected") if entry.get("expected") != "" else None,
            warn=float(entry.get("warn", math.inf)),
            critical=float(entry.get("critical", math.inf)),
            unit=entry.get("unit", ""),
            otherwise=otherwise,
            above=CheckStatus(entry.get("above", otherwise.value)),
            unreadable=CheckStatus(entry["unreadable"]),
        )
    return found


#: As people write comparisons in a configuration.
OPERATORS = {
    ">": ExpectationKind.ABOVE, "<": ExpectationKind.BELOW, ">=": ExpectationKind.AT_LEAST,
    "<=": ExpectationKind.AT_MOST, "=": ExpectationKind.EQUAL, "==": ExpectationKind.EQUAL,
}  # fmt: skip


def expecting(
    check: str,
    expected: float | str | None = None,
    *,
    operator: str = "",
    warn: float | None = None,
    critical: float | None = None,
) -> Expectation:
    """A check with the configuration's values in the table's place. Raises KeyError for an unknown check, operator."""
    found = expectations()[check]
    return replace(
        found,
        rule=OPERATORS[operator] if operator else found.rule,
        expected=found.expected if expected is None else expected,
        warn=found.warn if warn is None else warn,
        critical=found.critical if critical is None else critical,
    )


def judge(expectation: Expectation, reading: Reading, *, what: str = "") -> CheckOutcome:
    """``reading`` None: the source failed or said nothing that can be read. ``what``: which of several (GPU 3)."""
    name = f"{what}: {expectation.shows}" if what else expectation.shows
    if reading is None or (isinstance(reading, float) and math.isnan(reading)):
        return _said(expectation, expectation.unreadable, f"{name}: cannot be read")
    unit = f" {expectation.unit}" if expectation.unit else ""
    if expectation.rule is ExpectationKind.SHARE:
        return _share(expectation, reading, name)
    expected = expectation.expected
    if expected is None:
        return _said(
            expectation, CheckStatus.UNKNOWN, f"{name}: {reading}{unit}; nothing is expected, so nothing is judged"
        )
    status = _status(expectation, reading, expected)
    word = _WORDS[expectation.rule]
    wanted = "" if status is CheckStatus.OK else f", expected {word}{expected}{unit}"
    return _said(expectation, status, f"{name}: {reading}{unit}{wanted}")


def _status(expectation: Expectation, reading: float | str, expected: float | str) -> CheckStatus:
    if isinstance(reading, str) or isinstance(expected, str):
        return CheckStatus.OK if str(reading).strip() == str(expected).strip() else expectation.otherwise
    if expectation.rule is ExpectationKind.AT_LEAST:
        if reading < expected:
            return expectation.otherwise
        # A second, higher limit of what should be.
        return CheckStatus.WARN if reading < expectation.warn and math.isfinite(expectation.warn) else CheckStatus.OK
    if expectation.rule is ExpectationKind.EQUAL and reading > expected:
        return expectation.above
    is_held = {
        ExpectationKind.AT_MOST: reading <= expected,
        ExpectationKind.ABOVE: reading > expected,
        ExpectationKind.BELOW: reading < expected,
        ExpectationKind.EQUAL: reading == expected,
    }[expectation.rule]
    return CheckStatus.OK if is_held else expectation.otherwise


def _share(expectation: Expectation, reading: float | str, name: str) -> CheckOutcome:
    if isinstance(reading, str):
        return _said(expectation, expectation.unreadable, f"{name}: {reading[:80]!r} is no number")
    unit = expectation.unit
    for status, limit in ((CheckStatus.CRITICAL, expectation.critical), (CheckStatus.WARN, expectation.warn)):
        if reading > limit:
            return _said(expectation, status, f"{name}: {reading:g}{unit}, limit {limit:g}{unit}")
    return _said(expectation, CheckStatus.OK, f"{name}: {reading:g}{unit}")


def _said(expectation: Expectation, status: CheckStatus, reason: str) -> CheckOutcome:
    return CheckOutcome(check=expectation.check, status=status, reasons=(reason,))
