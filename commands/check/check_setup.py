"""What a family of checks is given, and how it tells what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from ...diagnosis.health_checks.outcome import CheckStatus
from .expected import Expected
from .finding import CheckFinding, Family


class CheckMode(str, Enum):
    """When the check is run."""

    PREFLIGHT = "preflight"
    PROLOG = "prolog"
    EPILOG = "epilog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """root: what holds proc, sys and etc. limit_s: the family is left when it has taken so long.

    kernel_log: a file in place of the kernel's own ring, "" none. site_checks: the file of a site's own, "" none.
    """

    mode: CheckMode
    families: frozenset[Family]
    expected: Expected
    limit_s: float
    root: Path = Path("/")
    kernel_log: str = ""
    site_checks: str = ""

    @property
    def proc(self) -> Path:
        """The host's /proc, also where it is mounted elsewhere."""
        return self.root / "proc"

    @property
    def sys(self) -> Path:
        """The host's /sys, also where it is mounted elsewhere."""
        return self.root / "sys"

    @property
    def etc(self) -> Path:
        """The host's /etc, also where it is mounted elsewhere."""
        return self.root / "etc"


class Tell(Protocol):
    """Where findings go, at once: a family that gets stuck has told what it found before."""

    def found(self, *findings: CheckFinding) -> None:
        """Takes findings that are known by now; may be called as often as something is found."""

    def begins(self, what: str, stuck: CheckStatus = CheckStatus.UNKNOWN) -> None:
        """Says what is asked now, and with ``stuck`` what it means if the answer never comes."""
