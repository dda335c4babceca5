"""``whichrank incidents list`` and ``show``."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...telemetry.incident import Document
from ..incident_text.incident_panel import describe_suspects, incident_panel, printable
from ..incident_text.utc_time import when
from ..run_folder.labels import handling_words
from ..support.stderr import say
from .chosen import Source, choose

SCHEMA = 1


def list_incidents(source: Source, *, as_json: bool) -> None:
    """Raises Unusable, KafkaTrouble."""
    last = {str(document["id"]): document for document in source.revisions()}
    documents = sorted(last.values(), key=lambda document: (document["times"]["onset"], str(document["id"])))
    if as_json:
        rows = [_row(document) for document in documents]
        print(json.dumps({"schema": SCHEMA, "from": source.where, "incidents": rows, "problems": source.problems}))
        return
    for problem in source.problems:
        say(problem)
    if not documents:
        say(f"{source.where}: no incident")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("incident", "state", "severity", "since (UTC)", "kind", "who", "job"):
        table.add_column(heading, overflow="fold")
    for document in documents:
        job = document.get("job") or {}
        into = f" into {document['merged_into']}" if document.get("merged_into") else ""
        cells = (
            str(document["id"]),
            ", ".join(filter(None, (f"{document['state']}{into}", handling_words(document.get("label"))))),
            str(document["severity"]),
            when(document["times"]["onset"]),
            str(document["kind"]),
            describe_suspects(document) or "nobody in particular",
            str(job.get("name") or job.get("id") or ""),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def show_incident(source: Source, wanted: str, *, as_json: bool) -> None:
    """Raises Unusable, KafkaTrouble."""
    chosen = choose(source.revisions(), wanted)
    if as_json:
        answer = {
            "schema": SCHEMA,
            "from": source.where,
            "incident": chosen.last,
            "revisions": len(chosen.revisions),
            "merged": [document["id"] for document in chosen.merged],
            "problems": source.problems,
        }
        print(json.dumps(answer))
        return
    for problem in source.problems:
        say(problem)
    if not str(chosen.last["id"]).startswith(wanted):
        say(f"{wanted} went into incident {chosen.last['id']}; this is that one")
    Console(width=None if sys.stdout.isatty() else 160).print(incident_panel(chosen.last))


def _row(document: Document) -> dict[str, Any]:
    names = ("id", "revision", "state", "merged_into", "severity", "bucket", "kind", "scope", "confidence")
    return {
        **{name: document.get(name) for name in names},
        "job": {name: (document.get("job") or {}).get(name) for name in ("id", "name", "attempt")},
        "suspects": [
            {name: suspect.get(name) for name in ("scope", "id", "rank", "node", "gpu")}
            for suspect in document.get("suspects") or ()
        ],
        "times": document.get("times"),
        "label": document.get("label"),
    }
