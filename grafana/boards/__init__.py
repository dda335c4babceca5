"""One module per dashboard; ``all_dashboards`` has them in the order in which one goes from the whole to the single."""

from __future__ import annotations

from ..dashboard import Dashboard
from . import fleet, goodput, incident, job, node, overview, pipeline


def all_dashboards() -> list[Dashboard]:
    return [each.dashboard() for each in (overview, job, incident, node, fleet, goodput, pipeline)]
