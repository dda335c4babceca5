"""What a check says, and how several become one. Exit codes are Nagios's, which Slurm and Kubernetes set-ups know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class CheckStatus(str, Enum):
    """WARN: look at it when there is time. UNKNOWN: there is nothing here to check, or nobody may look."""

    OK = "OK"
    WARN = "WARN"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"


EXIT_CODES = {CheckStatus.OK: 0, CheckStatus.WARN: 1, CheckStatus.CRITICAL: 2, CheckStatus.UNKNOWN: 3}
#: What outweighs what: a fault that is seen outweighs something that could not be seen.
_WEIGHT = {CheckStatus.OK: 0, CheckStatus.UNKNOWN: 1, CheckStatus.WARN: 2, CheckStatus.CRITICAL: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """``reasons``: one per thing that is wrong, or what was found."""

    check: str
    status: CheckStatus
    reasons: tuple[str, ...] = ()


def worst(statuses: Iterable[CheckStatus]) -> CheckStatus:
    """The heaviest of the statuses; UNKNOWN where there is none."""
    return max(statuses, key=lambda status: _WEIGHT[status], default=CheckStatus.UNKNOWN)


def outcome(check: str, found: Iterable[tuple[CheckStatus, str]], fine: str) -> CheckOutcome:
    """The outcome of a check: the worst status found, with all reasons; OK with ``fine`` where nothing was found."""
    found = list(found)
    if not found:
        return CheckOutcome(check=check, status=CheckStatus.OK, reasons=(fine,))
    status = worst(each for each, _ in found)
    return CheckOutcome(check=check, status=status, reasons=tuple(reason for _, reason in found))
