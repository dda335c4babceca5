"""What a family of checks is given, and how it tells what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from ...diagnosis.health_checks.outcome import CheckStatus
from .expected import Expected, expected_of
from .finding import Family, Finding


class Mode(str, Enum):
    """When the check is run."""

    PREFLIGHT = "preflight"
    PROLOG = "prolog"
    EPILOG = "epilog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """root: what holds proc, sys and etc. limit_s: the family is left when it has taken so long.

    kernel_log: a file in place of the kernel's own ring, "" none.
    """

    mode: Mode
    families: frozenset[Family]
    expected: Expected
    limit_s: float
    root: Path = Path("/")
    kernel_log: str = ""

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def etc(self) -> Path:
        return self.root / "etc"


def plain_setup(setup: Setup, document: Mapping[str, Any]) -> dict[str, Any]:
    """``document``: what ``setup.expected`` was made of."""
    return {
        "mode": setup.mode.value,
        "families": sorted(family.value for family in setup.families),
        "expected": dict(document),
        "limit_s": setup.limit_s,
        "root": str(setup.root),
        "kernel_log": setup.kernel_log,
    }


def setup_of(plain: Mapping[str, Any]) -> Setup:
    return Setup(
        mode=Mode(plain["mode"]),
        families=frozenset(Family(name) for name in plain["families"]),
        expected=expected_of(plain["expected"], "--expect"),
        limit_s=plain["limit_s"],
        root=Path(plain["root"]),
        kernel_log=plain["kernel_log"],
    )


class Tell(Protocol):
    """Where findings go, at once: a family that gets stuck has told what it found before."""

    def found(self, *findings: Finding) -> None: ...

    def begins(self, what: str, stuck: CheckStatus = CheckStatus.UNKNOWN) -> None:
        """What is asked now, and what it means if the answer never comes."""
