"""``whichrank incidents watch``: one line for each change of an incident, as it happens."""

from __future__ import annotations

import json

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_writing import write_incident
from ...telemetry.printable import printable
from ...telemetry.vocabulary import IncidentState
from ..incident_text.incident_view import incident_line
from ..incident_text.utc_time import when
from ..support.stderr import say
from .chosen import IncidentSource


def watch(source: IncidentSource, *, as_json: bool) -> None:
    """Prints what is open already, then each change, until nothing more can come or Ctrl-C.

    Raises Unusable, KafkaTrouble.
    """
    told: set[tuple[str, int]] = set()
    try:
        before = source.revisions()
        last = {incident.id: incident for incident in before}
        told.update(map(_key, before))
        for incident in last.values():
            if incident.state is IncidentState.OPEN:
                _report(incident, as_json=as_json)
        for incidents in source.follow():
            for incident in incidents:
                if _key(incident) not in told:
                    told.add(_key(incident))
                    _report(incident, as_json=as_json)
    except KeyboardInterrupt:
        return
    if not as_json:
        say(f"{source.where}: the run has ended")


def _key(incident: IncidentDocument) -> tuple[str, int]:
    return incident.id, incident.revision


def _report(incident: IncidentDocument, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(write_incident(incident), ensure_ascii=False), flush=True)
        return
    times = incident.times
    moment = times.resolved_s or times.detected_s or times.onset_s
    print(printable(f"{when(moment)} {incident_line(incident)}"), flush=True)
