"""Rules of error counters (``node_limits``) and of links (``links.toml``), read once and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

from ...telemetry.vocabulary import Action
from ..data_file import read_toml
from ..node_limits.table import rows_of

_PACKAGE = __package__ or ""


class Grade(str, Enum):
    """How bad a condition is. INFO is never a cause of anything."""

    INFO = "info"
    WARN = "warn"
    CRITICAL = "critical"


class RuleKind(str, Enum):
    #: Growth between two looks.
    DELTA = "delta"
    #: Growth per unit, over windows of at least that unit.
    RATE = "rate"


UNIT_S: Mapping[str, float] = {"second": 1.0, "minute": 60.0, "hour": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRule:
    """A condition of one counter: growth strictly beyond ``limit`` (per ``unit_s`` where it is a rate).

    counters: names of sysfs, then of ethtool and others that count the same. quiet_s: without growth beyond the limit
    for so long the condition is over. grade: what it means by itself; a link that went down once and came back is
    tolerated, that it stays down or flaps is another condition.
    """

    name: str
    counters: tuple[str, ...]
    kind: RuleKind
    limit: float
    #: Seconds that the limit is per; 0 for a delta.
    unit_s: float = 0.0
    #: Value at which the counter stops; None: it is wide enough.
    saturates_at: int | None = None
    grade: Grade = Grade.WARN
    quiet_s: float = 600.0
    shows: str = ""
    action: Action = Action.ASK_A_HUMAN

    def __post_init__(self) -> None:
        if self.kind is RuleKind.RATE and self.unit_s <= 0:
            raise ValueError(f"{self.name}: a rate needs per = second, minute or hour")
        if self.limit < 0 or self.quiet_s < 0:
            raise ValueError(f"{self.name}: limit and quiet_s must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRules:
    drop_s: float
    flap_down_s: float
    flaps: int
    flap_window_s: float
    losses: int
    losses_window_s: float
    flap_quiet_s: float
    missing_looks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPorts:
    """What a node must have: at least ``ports`` active ones of at least ``gbps``."""

    ports: int
    gbps: float


@cache
def counter_rules() -> tuple[CounterRule, ...]:
    """Rules of error counters from ``node_limits``, in its order. Raises ValueError or KeyError for a wrong entry."""
    return tuple(
        CounterRule(
            name=entry["condition"],
            counters=tuple(entry["counters"]),
            kind=RuleKind(entry["rule"]),
            limit=float(entry["limit"]),
            unit_s=UNIT_S[entry["per"]] if "per" in entry else 0.0,
            saturates_at=entry.get("saturates_at"),
            grade=Grade(entry["severity"]),
            quiet_s=float(entry["quiet_s"]),
            shows=entry["shows"],
            action=Action(entry["action"]),
        )
        for entry in rows_of("port")
    )


@cache
def link_rules() -> LinkRules:
    """When a link counts as dropped or flapping, from links.toml."""
    return LinkRules(**read_toml(_PACKAGE, "links.toml")["down"])


@cache
def expected_by_product() -> Mapping[str, ExpectedPorts]:
    """The network ports that a node must have, by the product name of its GPUs, from links.toml."""
    return {name: ExpectedPorts(**entry) for name, entry in read_toml(_PACKAGE, "links.toml")["expected"].items()}


def expected_ports(gpu_name: str) -> ExpectedPorts | None:
    """The network ports that a node with this GPU must have; None: not in the table.

    gpu_name: as the driver has it (``NVIDIA H100 80GB HBM3``).
    """
    words = gpu_name.upper().replace("-", " ").replace("_", " ").split()
    for name, expected in expected_by_product().items():
        # H100NVL is an H100, H1000 is not.
        if any(word == name or (word.startswith(name) and not word[len(name)].isdigit()) for word in words):
            return expected
    return None
