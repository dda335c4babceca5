"""The kernel's names of network counters -> our metrics (``network_counters.toml``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
    """All of them by the kernel's name. Raises ValueError if a name stands there twice."""
    text = (resources.files(__package__) / "network_counters.toml").read_text(encoding="utf-8")
    found: dict[str, NetworkCounter] = {}
    for group in tomllib.loads(text)["group"]:
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
