"""When a revision was news, and until when it waits: for services that read incidents. Pure functions."""

from __future__ import annotations

import math

from ...telemetry.incident_document import IncidentDocument


def told_at(incident: IncidentDocument) -> float:
    """The newest time (Unix seconds) that a revision knows of itself; 0.0 none."""
    times = incident.times
    return max(at or 0.0 for at in (times.onset_s, times.detected_s, times.attributed_s, times.resolved_s))


def held_until(incident: IncidentDocument) -> float:
    """Until when (Unix seconds) a page waits for a cause that several jobs may share.

    0.0 it does not, inf nobody knows.
    """
    if incident.hold is None:
        return 0.0
    return math.inf if incident.hold.until_s is None else incident.hold.until_s
