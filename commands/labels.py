"""What people say of incidents: lines of labels.jsonl in a run's folder, and the findings that operators take.

The newest word on an incident holds. A run that goes on reads its file as well; of one that is over it stands beside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..telemetry.incident import Document
from ..telemetry.records import Finding, Identity
from .run_directory import Unusable

LABELS_FILE = "labels.jsonl"
#: Bytes; more is nobody's labels.
MAX_FILE_BYTES = 4 << 20


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
    line = json.dumps({**label, "cluster": cluster}, ensure_ascii=False).encode() + b"\n"
    try:
        file = os.open(folder / LABELS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
    except OSError as error:
        raise Unusable(f"{folder / LABELS_FILE}: {error.strerror or error}") from error


def read_labels(folder: Path, after: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole lines beyond byte ``after``, and how far that is. What is no label is left out. Raises OSError."""
    try:
        with (folder / LABELS_FILE).open("rb") as file:
            file.seek(after)
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return [], after
    whole = content[: content.rfind(b"\n") + 1]
    found = []
    for line in whole.splitlines():
        try:
            label = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(label, dict) and label.get("incident") and isinstance(label.get("time"), int | float):
            found.append(label)
    return found, after + len(whole)


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
