"""``whichrank incidents watch``: one line for each change of an incident, as it happens."""

from __future__ import annotations

import json

from ...telemetry.incident import Document
from ..incident_text.incident_panel import incident_line
from ..incident_text.utc_time import when
from ..support.stderr import say
from .chosen import Source


def watch(source: Source, *, as_json: bool) -> None:
    """What is open already, then each change until there is nothing more to come. Raises Unusable, KafkaTrouble."""
    told: set[tuple[str, int]] = set()
    try:
        before = source.revisions()
        last = {str(document["id"]): document for document in before}
        told.update(map(_key, before))
        for document in last.values():
            if document.get("state") == "open":
                _tell(document, as_json=as_json)
        for documents in source.follow():
            for document in documents:
                if _key(document) not in told:
                    told.add(_key(document))
                    _tell(document, as_json=as_json)
    except KeyboardInterrupt:
        return
    if not as_json:
        say(f"{source.where}: the run has ended")


def _key(document: Document) -> tuple[str, int]:
    return str(document["id"]), int(document["revision"])


def _tell(document: Document, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document, ensure_ascii=False), flush=True)
        return
    times = document.get("times") or {}
    moment = times.get("resolved") or times.get("detected") or times.get("onset")
    print(f"{when(moment)} {incident_line(document)}", flush=True)
