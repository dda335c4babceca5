"""What a check says, and how several become one. Exit codes are Nagios's, which Slurm and Kubernetes set-ups know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """WARN: look at it when there is time. UNKNOWN: there is nothing here to check, or nobody may look."""

    OK = "OK"
    WARN = "WARN"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"


EXIT_CODES = {Status.OK: 0, Status.WARN: 1, Status.CRITICAL: 2, Status.UNKNOWN: 3}
#: What outweighs what: a fault that is seen outweighs something that could not be seen.
_WEIGHT = {Status.OK: 0, Status.UNKNOWN: 1, Status.WARN: 2, Status.CRITICAL: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``reasons``: one per thing that is wrong, or what was found."""

    check: str
    status: Status
    reasons: tuple[str, ...] = ()


def worst(statuses: Iterable[Status]) -> Status:
    """The heaviest; UNKNOWN where there is none."""
    return max(statuses, key=lambda status: _WEIGHT[status], default=Status.UNKNOWN)


def outcome(check: str, found: Iterable[tuple[Status, str]], fine: str) -> Outcome:
    """One outcome of all that was found; ``fine`` where nothing was."""
    found = list(found)
    if not found:
        return Outcome(check=check, status=Status.OK, reasons=(fine,))
    status = worst(each for each, _ in found)
    return Outcome(check=check, status=status, reasons=tuple(reason for _, reason in found))
