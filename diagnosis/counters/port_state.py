"""What is remembered of one port between two looks; packs into JSON's types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .growth import Latch
from .link import LinkHistory


@dataclass(slots=True)
class PortState:
    """What is remembered of one port."""

    link: LinkHistory = field(default_factory=LinkHistory)
    latches: dict[str, Latch] = field(default_factory=dict)
    #: The last value of the loss counter.
    lost: int | None = None
    #: The fastest that it ever was.
    best_gbps: float = 0.0
    missing_looks: int = 0

    def pack(self) -> dict[str, Any]:
        """The state in JSON's types, for a collector that starts again."""
        return {
            "link": self.link.pack(),
            "latches": {name: latch.pack() for name, latch in self.latches.items()},
            "lost": self.lost,
            "best_gbps": self.best_gbps,
            "missing_looks": self.missing_looks,
        }

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> PortState:
        """The state from what ``pack`` gave. Raises KeyError or TypeError where it is something else."""
        return cls(
            link=LinkHistory.unpack(packed["link"]),
            latches={name: Latch.unpack(latch) for name, latch in packed["latches"].items()},
            lost=packed["lost"],
            best_gbps=packed["best_gbps"],
            missing_looks=packed["missing_looks"],
        )
