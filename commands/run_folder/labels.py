"""What people say of incidents: lines of labels.jsonl in a run's folder, and the findings that operators take.

The newest word on an incident holds. A run that goes on reads its file as well; of one that is over it stands beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...telemetry.incident import Document
from ...telemetry.records import Finding, Identity
from .jsonl_store import append_line, read_objects

LABELS_FILE = "labels.jsonl"
#: Of a label, what stands in the document: always, and where a person has said it.
_ALWAYS, _WHERE_SAID = ("cause", "wrong", "by", "time"), ("acknowledged", "closed")


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
    said = {str(label["incident"]): _shown(label) for label in labels}
    return [
        {**document, "label": said[id_]} if (id_ := str(document["id"])) in said else document for document in documents
    ]


def _shown(label: Mapping[str, Any]) -> dict[str, Any]:
    return {name: label.get(name) for name in _ALWAYS} | {name: label[name] for name in _WHERE_SAID if label.get(name)}


def handling_words(label: Mapping[str, Any] | None) -> str:
    """``acknowledged by ann``; what was said last of the two, empty where nobody has."""
    for name in ("closed", "acknowledged"):
        said = (label or {}).get(name)
        if isinstance(said, Mapping):
            because = f": {said['because']}" if said.get("because") else ""
            return f"{name} by {said.get('by')}{because}"
    return ""


def label_words(label: Mapping[str, Any] | None) -> str:
    """``it was node=n1; acknowledged by ann``; empty where nobody has said anything."""
    if not label:
        return ""
    wrong = "what it says is wrong" if label.get("wrong") else ""
    cause = f"it was {label['cause']}" if label.get("cause") else ""
    whose = f"says {label.get('by')}" if wrong or cause else ""
    return "; ".join(filter(None, (", ".join(filter(None, (wrong, cause, whose))), handling_words(label))))
