"""Conditions of ports, each with a beginning and an end: what, which port, since when, how bad, still there?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...telemetry.vocabulary import Action, Scope
from .rules import Grade


class PortCondition(str, Enum):
    """What is told about a port besides the counters' rules, whose names stand for themselves."""

    LINK_DOWN = "link_down"
    LINK_FLAPPING = "link_flapping"
    RATE_DEGRADED = "rate_degraded"
    PORT_MISSING = "port_missing"
    #: With the counter after a colon: one condition per counter.
    COUNTER_FULL = "counter_full"
    PORTS_TOO_FEW = "ports_too_few"


class ChangeKind(str, Enum):
    BEGAN = "began"
    #: More of the same, or a worse grade.
    WORSENED = "worsened"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortConditionSpan:
    """``until_s``: None while it lasts. ``value`` and ``limit`` in ``unit`` ("" a count). port "": the whole node."""

    name: str
    port: str
    since_s: float
    until_s: float | None = None
    grade: Grade = Grade.WARN
    value: float = 0.0
    limit: float = 0.0
    unit: str = ""
    shows: str = ""
    action: Action = Action.ASK_A_HUMAN
    scope: Scope = Scope.LINK

    @property
    def key(self) -> tuple[str, str]:
        """(name, port): of one such pair only one condition may be open at a time."""
        return self.name, self.port

    def plain(self) -> dict[str, Any]:
        """The condition as a dictionary for JSON."""
        return {
            "condition": self.name,
            "port": self.port,
            "since_s": self.since_s,
            "until_s": self.until_s,
            "is_open": self.until_s is None,
            "severity": self.grade.value,
            "value": self.value,
            "limit": self.limit,
            "unit": self.unit,
            "shows": self.shows,
            "action": self.action.value,
            "scope": self.scope.value,
        }

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> PortConditionSpan:
        """The condition from what ``plain`` gave. Raises KeyError or ValueError for anything else."""
        return cls(
            name=plain["condition"],
            port=plain["port"],
            since_s=plain["since_s"],
            until_s=plain["until_s"],
            grade=Grade(plain["severity"]),
            value=plain["value"],
            limit=plain["limit"],
            unit=plain["unit"],
            shows=plain["shows"],
            action=Action(plain["action"]),
            scope=Scope(plain["scope"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionChange:
    kind: ChangeKind
    condition: PortConditionSpan
