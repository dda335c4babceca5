"""What a node's collectors measure: every metric by name, from one data file per source (``*.toml`` beside this).

Names are OpenTelemetry's where it has one (``hw.*``, ``system.*``), ``whichrank.*`` otherwise. Units are UCUM.
An entry:

    ["hw.gpu.utilization"]
    instrument = "gauge"              # gauge | counter | up_down_counter
    unit = "1"
    description = "Share of the last sample period in which a kernel ran"
    attributes = ["hw.id", "hw.name"] # that tell two points of one node apart
    each_look = true                  # where it is news that somebody looked: told even while it stands still
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


class NodeMetricInstrument(str, Enum):
    GAUGE = "gauge"
    #: A sum that only grows, until its device or driver begins anew.
    COUNTER = "counter"
    #: A sum that also shrinks: of things that are there now.
    UP_DOWN_COUNTER = "up_down_counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetric:
    name: str
    instrument: NodeMetricInstrument
    unit: str
    description: str
    attributes: tuple[str, ...]
    each_look: bool = False


@cache
def node_metrics() -> Mapping[str, NodeMetric]:
    """Metrics of a node's collectors by name. Raises ValueError if two files have the same name."""
    found: dict[str, NodeMetric] = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".toml"):
            continue
        for name, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
            if name in found:
                raise ValueError(f"{file.name}: {name} stands in another file as well")
            found[name] = NodeMetric(
                name=name,
                instrument=NodeMetricInstrument(entry["instrument"]),
                unit=entry["unit"],
                description=entry["description"],
                attributes=tuple(entry["attributes"]),
                each_look=entry.get("each_look", False),
            )
    return found
