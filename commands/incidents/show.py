"""``whichrank incidents list`` and ``show``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_writing import write_incident
from ..incident_text.incident_panel import incident_panel
from ..incident_text.incident_view import incident_view, printable
from ..incident_text.utc_time import when
from ..support.stderr import say
from .chosen import IncidentSource, choose

SCHEMA = 1


def list_incidents(source: IncidentSource, *, as_json: bool) -> None:
    """Prints all incidents, the oldest first, as a table or JSON. Raises Unusable, KafkaTrouble."""
    last = {incident.id: incident for incident in source.revisions()}
    incidents = sorted(last.values(), key=lambda incident: (incident.times.onset_s, incident.id))
    if as_json:
        print(_list_json(source, incidents))
        return
    for problem in source.problems:
        say(problem)
    if not incidents:
        say(f"{source.where}: no incident")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("incident", "state", "severity", "since (UTC)", "kind", "who", "job"):
        table.add_column(heading, overflow="fold")
    for view in map(incident_view, incidents):
        into = f" into {view.merged_into}" if view.merged_into else ""
        cells = (
            view.id,
            ", ".join(filter(None, (f"{view.state}{into}", view.handling))),
            view.severity,
            when(view.times.onset_s),
            view.kind,
            view.who_or_nobody,
            view.job_name,
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def show_incident(source: IncidentSource, wanted: str, *, as_json: bool) -> None:
    """Prints one incident (id or beginning of one) in a box or as JSON. Raises Unusable, KafkaTrouble."""
    chosen = choose(source.revisions(), wanted)
    if as_json:
        answer = {
            "schema": SCHEMA,
            "from": source.where,
            "incident": write_incident(chosen.last),
            "revisions": len(chosen.revisions),
            "merged": [incident.id for incident in chosen.merged],
            "problems": source.problems,
        }
        print(json.dumps(answer))
        return
    for problem in source.problems:
        say(problem)
    if not chosen.last.id.startswith(wanted):
        say(f"{wanted} went into incident {chosen.last.id}; this is that one")
    Console(width=None if sys.stdout.isatty() else 160).print(incident_panel(chosen.last))


def _list_json(source: IncidentSource, incidents: Sequence[IncidentDocument]) -> str:
    names = ("id", "revision", "state", "merged_into", "severity", "bucket", "kind", "scope", "confidence")
    rows = []
    for whole in map(write_incident, incidents):
        suspects = [{name: each[name] for name in ("scope", "id", "rank", "node", "gpu")} for each in whole["suspects"]]
        shown = {
            **{name: whole[name] for name in names},
            "job": {name: whole["job"][name] for name in ("id", "name", "attempt")},
            "suspects": suspects,
            "times": whole["times"],
            "label": whole.get("label"),
        }
        rows.append(shown)
    return json.dumps({"schema": SCHEMA, "from": source.where, "incidents": rows, "problems": source.problems})
