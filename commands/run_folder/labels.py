"""What people say of incidents: lines of labels.jsonl in a run's folder, and the findings that operators take.

The newest word on an incident holds. A run that goes on reads its file as well; of one that is over it stands beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument, IncidentLabel
from ...telemetry.records import Finding, Identity
from .jsonl_store import OnOdd, append_line, read_entries
from .people_codec import PeopleLabel, read_people_label, write_people_label

LABELS_FILE = "labels.jsonl"
#: Of a label, what stands in the document always.
_ALWAYS = ("cause", "wrong", "by", "time")


def finding_of(label: PeopleLabel, cluster: str) -> Finding:
    """The label as a finding that the cluster operator takes."""
    return Finding(
        identity=Identity(cluster=cluster),
        key=f"label/{label.incident}",
        cleared=False,
        time_ns=int((label.said.time_s or 0.0) * 1e9),
        body={"label": write_people_label(label)},
    )


def append_label(folder: Path, label: PeopleLabel, cluster: str) -> None:
    """Appends the label to labels.jsonl. Raises Unusable."""
    written = {**write_people_label(label), "cluster": cluster}
    append_line(folder / LABELS_FILE, json.dumps(written, ensure_ascii=False))


def read_labels(folder: Path, after: int = 0, on_odd: OnOdd | None = None) -> tuple[list[PeopleLabel], int]:
    """(labels in whole lines beyond byte ``after``, the byte behind them). What is no label is left out, and told to
    ``on_odd``.

    Raises OSError.
    """
    return read_entries(folder / LABELS_FILE, after, read_people_label, on_odd)


def with_labels(incidents: Iterable[IncidentDocument], labels: Iterable[PeopleLabel]) -> list[IncidentDocument]:
    """The incidents, each with what people have said of it, although nobody judges the run any more."""
    said = {label.incident: replace(label.said, keys=_ALWAYS, extra="") for label in labels}
    return [replace(incident, label=said.get(incident.id, incident.label)) for incident in incidents]


def handling_words(label: IncidentLabel | None) -> str:
    """Who has closed or acknowledged an incident: ``acknowledged by ann``; closed goes first, "" where nobody has."""
    if label is None:
        return ""
    for name, said in (("closed", label.closed), ("acknowledged", label.acknowledged)):
        if said is not None:
            because = f": {said.because}" if said.because else ""
            return f"{name} by {said.by}{because}"
    return ""


def label_words(label: IncidentLabel | None) -> str:
    """What people have said in words: ``it was node=n1; acknowledged by ann``; "" where nobody has said anything."""
    if label is None:
        return ""
    wrong = "what it says is wrong" if label.wrong else ""
    cause = f"it was {label.cause}" if label.cause else ""
    whose = f"says {label.by}" if wrong or cause else ""
    return "; ".join(filter(None, (", ".join(filter(None, (wrong, cause, whose))), handling_words(label))))
