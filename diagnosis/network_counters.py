"""The kernel's names of network counters -> our metrics (``network_counters.toml``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from .data_file import read_toml

DIRECTION = "network.io.direction"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCounter:
    """attributes: that the metric's points of this counter carry, beside those of the port.

    kind: what tells it from other counters of the same metric: its name, or a direction.
    factor: of the kernel's number to the metric's unit. maximum: at which the counter stands still, 0 none.
    """

    name: str
    metric: str
    kind: str
    attributes: Mapping[str, str]
    factor: int
    maximum: int


@cache
def network_counters() -> Mapping[str, NetworkCounter]:
    """By the kernel's name of each counter what it is of ours.

    Raises ValueError if a name stands in the table twice.
    """
    found: dict[str, NetworkCounter] = {}
    for group in read_toml(__package__, "network_counters.toml")["group"]:
        for name in group["names"]:
            if name in found:
                raise ValueError(f"network_counters.toml: {name} stands there twice")
            attributes = {DIRECTION: group["direction"]} if "direction" in group else {}
            if "attribute" in group:
                attributes[group["attribute"]] = name
            if group["metric"] == "hw.errors":
                attributes["hw.type"] = "network"
            kind = attributes.get(DIRECTION, name if "attribute" in group else "")
            found[name] = NetworkCounter(
                name=name,
                metric=group["metric"],
                kind=kind,
                attributes=attributes,
                factor=group.get("factor", 1),
                maximum=(1 << group["bits"]) - 1 if "bits" in group else 0,
            )
    return found
