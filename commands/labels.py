"""What people say of incidents: lines of labels.jsonl in a run's folder, and the findings that operators take.

The newest word on an incident holds. A run that goes on reads its file as well; of one that is over it stands beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..telemetry.incident import Document
from ..telemetry.records import Finding, Identity
from .said_lines import append_line, read_objects

LABELS_FILE = "labels.jsonl"


def finding_of(label: Mapping[str, Any], cluster: str) -> Finding:
    """As the cluster operator takes it."""
    return Finding(
        identity=Identity(cluster=cluster),
        key=f"label/{label['incident']}",
        cleared=False,
        time_ns=int(float(label["time"]) * 1e9),
        body={"label": dict(label)},
    )


def append_label(folder: Path, label: Mapping[str, Any], cluster: str) -> None:
    """One line more. Raises Unusable."""
    append_line(folder / LABELS_FILE, {**label, "cluster": cluster})


def read_labels(folder: Path, after: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole lines beyond byte ``after``, and how far that is. What is no label is left out. Raises OSError."""
    said, read = read_objects(folder / LABELS_FILE, after)
    return [each for each in said if each.get("incident") and isinstance(each.get("time"), int | float)], read


def with_labels(documents: Iterable[Document], labels: Iterable[Mapping[str, Any]]) -> list[Document]:
    """What people have said stands in the documents, although nobody judges the run any more."""
    said = {str(label["incident"]): label for label in labels}
    shown = ("cause", "wrong", "by", "time")
    return [
        {**document, "label": {name: said[id_].get(name) for name in shown}}
        if (id_ := str(document["id"])) in said
        else document
        for document in documents
    ]
