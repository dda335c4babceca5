"""Incidents as the supervisor reads them, and a trail that is kept in memory. Not a test module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.commands.incidents.documents import LAUNCH, document
from whichrank.commands.incident_service.audit import AUDIT_FILE
from whichrank.commands.supervise.decision import SeenIncident
from whichrank.telemetry.incident_document import IncidentDocument
from whichrank.telemetry.incident_reading import read_incident

#: Of the documents.
ATTEMPT = LAUNCH
ID = "00531b2fdcc45a19"


def motion(word: str = "still", rank: int = 1) -> dict[str, Any]:
    """The row of evidence that says what the one does who is waited for."""
    return {"signal": "process.motion", "source": f"rank {rank}", "time": 1.0, "value": word, "shows": "it does that"}


def incident(
    id_: str = ID,
    *,
    action: str = "restart",
    by: str = "automatic",
    motions: tuple[str, ...] = ("still",),
    revision: int = 1,
    **fields: Any,
) -> IncidentDocument:
    """An open page: a hang whose suspect does nothing, to be restarted."""
    if fields.get("state") == "merged":
        fields.setdefault("merged_into", "0" * 16)
    fields.setdefault("evidence", [motion(word) for word in motions])
    advice = {"action": action, "by": by, "text": "do that"}
    return read_incident(document(id_, revision, advice=advice, **fields))


def seen(since_s: float = 0.0, **fields: Any) -> SeenIncident:
    return SeenIncident(incident=incident(**fields), since_s=since_s)


def audit(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's audit file."""
    path = folder / AUDIT_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
