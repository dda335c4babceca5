"""What one check found, and what all of them mean for the exit status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ...diagnosis.health_checks.outcome import CheckStatus, worst

EXIT_OK, EXIT_CRITICAL, EXIT_USAGE, EXIT_UNKNOWN = 0, 1, 2, 3


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
    SITE = "site"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """``device``: "" the node. ``remedy``: what to do, "" where all is well. ``value``: what was measured.

    domain, device_kind, action: of a site's own check, where it says them.
    """

    family: Family
    check: str
    status: CheckStatus
    reason: str
    device: str = ""
    remedy: str = ""
    value: float | None = None
    domain: str = ""
    device_kind: str = ""
    action: str = ""


def verdict(findings: Iterable[CheckFinding]) -> CheckStatus:
    """The status of all findings together: CRITICAL before WARN before UNKNOWN before OK."""
    return worst(finding.status for finding in findings)


def exit_status(overall: CheckStatus, *, strict: bool) -> int:
    """The exit status of a check with this verdict. strict: a warning fails the check as well.

    What could not be seen is no failure, and not well either: a status of its own.
    """
    if overall is CheckStatus.CRITICAL or (strict and overall is CheckStatus.WARN):
        return EXIT_CRITICAL
    return EXIT_UNKNOWN if overall is CheckStatus.UNKNOWN else EXIT_OK
