"""One module per dashboard; ``all_dashboards`` has them in the order in which one goes from the whole to the single."""

from __future__ import annotations

from ..elements.dashboard import Dashboard
from ..elements.panels import LogStore
from . import exporters, fleet, goodput, incident_board, job_board, node, overview, pipeline


def all_dashboards(logs: LogStore = LogStore.VICTORIALOGS) -> list[Dashboard]:
    """All dashboards, in the order in which one goes from the whole to the single.

    logs: the store that their panels of events ask.
    """
    return [
        overview.dashboard(logs),
        job_board.dashboard(logs),
        incident_board.dashboard(logs),
        node.dashboard(logs),
        fleet.dashboard(),
        goodput.dashboard(),
        pipeline.dashboard(logs),
        exporters.dashboard(),
    ]
