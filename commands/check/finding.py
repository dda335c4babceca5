"""What one check found, how it travels between processes, and what all of them mean for the exit status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from ...diagnosis.health_checks.outcome import CheckStatus, worst

EXIT_OK, EXIT_CRITICAL, EXIT_USAGE, EXIT_UNKNOWN = 0, 1, 2, 3
#: More is cut: a driver's words can be anything.
_MOST_CHARACTERS = 400


class Family(str, Enum):
    """What can be chosen with --only and --skip, in the order in which it is told."""

    GPU = "gpu"
    NVLINK = "nvlink"
    COMPUTE = "compute"
    NETWORK = "network"
    STORAGE = "storage"
    MEMORY = "memory"
    HOST = "host"
    SERVICES = "services"
    VERSIONS = "versions"
    KERNEL_LOG = "kernel_log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``device``: "" the node. ``remedy``: what to do, "" where all is well. ``value``: what was measured."""

    family: Family
    check: str
    status: CheckStatus
    reason: str
    device: str = ""
    remedy: str = ""
    value: float | None = None

    def plain(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["family"], plain["status"] = self.family.value, self.status.value
        return plain

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Finding:
        """Raises KeyError, ValueError."""
        value = plain["value"]
        return cls(
            family=Family(plain["family"]),
            check=_line(plain["check"]),
            status=CheckStatus(plain["status"]),
            reason=_line(plain["reason"]),
            device=_line(plain["device"]),
            remedy=_line(plain["remedy"]),
            value=None if value is None else float(value),
        )


def verdict(findings: Iterable[Finding]) -> CheckStatus:
    """CRITICAL before WARN before UNKNOWN before OK."""
    return worst(finding.status for finding in findings)


def exit_status(overall: CheckStatus, *, strict: bool) -> int:
    if overall is CheckStatus.CRITICAL or (strict and overall is CheckStatus.WARN):
        return EXIT_CRITICAL
    return EXIT_UNKNOWN if overall is CheckStatus.UNKNOWN else EXIT_OK


def _line(text: object) -> str:
    """One line for a terminal or a scheduler's log, whatever a driver or a mount's name holds."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:_MOST_CHARACTERS])
