"""The incident document (docs/incident.md): its fields, its one canonical line, and a light check.

A document is plain JSON data. ``complete_document`` puts every field of the schema in place (null where unknown, in the
schema's order) and ``canonical_line`` writes the one byte form: fixed key order, floats to a microsecond, NaN as null,
so that the same conclusion is the same line in every replay. ``incident.schema.json`` is the full contract; at run time
``check_document`` looks at what must never be wrong. Pure functions, standard library only.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from .printable import is_incident_id
from .vocabulary import Action, Bucket, Change, IncidentState, Kind, Scope, Severity

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).with_name("incident.schema.json")

Document = dict[str, Any]

_JOB = ("run", "id", "name", "attempt", "owner", "now")
_SUSPECT = ("scope", "id", "rank", "node", "gpu", "pid", "where", "probability")
_WHERE = ("file", "line", "phase")
#: Fields of the document in the order in which they are written.
FIELDS: tuple[str, ...] = (
    "schema",
    "id",
    "revision",
    "change",
    "state",
    "merged_into",
    "severity",
    "cluster",
    "job",
    "jobs",
    "bucket",
    "kind",
    "scope",
    "suspects",
    "victims",
    "coverage",
    "first_bad",
    "times",
    "evidence",
    "ruled_out",
    "history",
    "confidence",
    "advice",
    "cost",
)
#: Fields that are there only where they are known; they come last.
WHERE_KNOWN: tuple[str, ...] = ("cause", "hold", "label")
#: Fields of nested objects; a list of objects is told by ``_LISTS``.
NESTED: dict[str, tuple[str, ...]] = {
    "job": _JOB,
    "jobs": ("id", "attempt", "role", "victims", "cost"),
    "suspects": _SUSPECT,
    "victims": ("count", "ranks"),
    "coverage": ("ranks_seen", "ranks_expected"),
    "first_bad": ("step", "group", "sequence", "operation"),
    "times": ("onset", "detected", "attributed", "resolved"),
    "evidence": ("signal", "source", "time", "value", "shows"),
    "ruled_out": ("who", "looks_guilty", "because"),
    "history": ("suspect_incidents", "last_change"),
    "advice": ("action", "by", "text"),
    "cost": ("gpu_seconds",),
}
_LISTS = frozenset({"jobs", "suspects", "evidence", "ruled_out"})
#: Null as a whole while nobody knows anything of it; the others are objects of nulls.
_NULL_WHOLE = frozenset({"advice", "cost"})
#: Digits kept of every float: microseconds for times, more than enough for ratios.
_DIGITS = 6


def incident_id(job: str, attempt: str, kind: Kind, first_bad_place: str) -> str:
    """Id fixed when the incident opens: 16 hex digits of hash(job, attempt, kind, first bad place)."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (job, attempt, kind.value, first_bad_place):
        digest.update(part.encode("utf-8", "replace") + b"\0")
    return digest.hexdigest()


def complete_document(fields: Mapping[str, Any]) -> Document:
    """A new document with all fields in order; unknown ones null, lists empty. Added fields come last, as they are."""
    document: Document = {}
    for name in FIELDS:
        value = fields.get(name)
        if name in _LISTS:
            document[name] = [_complete_object(name, entry) for entry in value or ()]
        elif name in NESTED and not (value is None and name in _NULL_WHOLE):
            document[name] = _complete_object(name, value)
        else:
            document[name] = _plain(value)
    if document["schema"] is None:
        document["schema"] = SCHEMA_VERSION
    for name, value in fields.items():
        if name not in document:
            document[name] = _plain(value)
    return document


def _complete_object(name: str, value: Mapping[str, Any] | None) -> Document:
    given = dict(value or {})
    ordered: Document = {field: _plain(given.pop(field, None)) for field in NESTED[name]}
    if name == "suspects" and isinstance(ordered["where"], dict):
        where = ordered["where"]
        ordered["where"] = {**{field: where.pop(field, None) for field in _WHERE}, **where}
    ordered.update((field, _plain(rest)) for field, rest in given.items())
    return ordered


_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def _plain(value: Any) -> Any:
    """Value as JSON data: enums by value, tuples as lists, floats rounded, what is no number null."""
    if type(value) in _AS_THEY_ARE:  # nearly all
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return round(value, _DIGITS) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    item = getattr(value, "item", None)  # numpy scalars
    return _plain(item()) if item is not None else str(value)


def canonical_line(document: Mapping[str, Any]) -> bytes:
    """The one byte form: a JSON line with its newline, equal for equal documents."""
    text = json.dumps(complete_document(document), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def read_line(line: bytes) -> Document:
    """The incident document in a line of JSON. Raises ValueError with one line of what is wrong."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {str(error)[:100]}") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    wrong = check_document(document)
    if wrong:
        raise ValueError(wrong[0])
    return document


_CLOSED_SETS: tuple[tuple[str, type[Enum]], ...] = (
    ("change", Change),
    ("state", IncidentState),
    ("severity", Severity),
    ("bucket", Bucket),
    ("kind", Kind),
    ("scope", Scope),
)


def _is_of(value: object, members: type[Enum]) -> bool:
    return isinstance(value, str) and value in {member.value for member in members}


def _shortened(value: object) -> str:
    return repr(value[:64] if isinstance(value, str) else value)[:80]


def check_document(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with an incident document, one line each; empty if all is well. Cheap enough for every revision."""
    wrong: list[str] = []
    missing = [name for name in FIELDS if name not in document]
    if missing:
        wrong.append(f"fields are missing: {', '.join(missing)}")
    for name in ("id", "merged_into"):
        id_ = document.get(name)
        if id_ is not None and not (isinstance(id_, str) and is_incident_id(id_)):
            wrong.append(f"{name} {_shortened(id_)} is not letters, digits, - and _, 64 at most")
    if document.get("id") is None:
        wrong.append("id is empty")
    revision = document.get("revision")
    if not isinstance(revision, int) or isinstance(revision, bool) or revision < 1:
        wrong.append(f"revision {_shortened(revision)} is not a count from 1")
    for name, members in _CLOSED_SETS:
        value = document.get(name)
        if not _is_of(value, members) and not (name == "scope" and value is None):
            wrong.append(
                f"{name} {_shortened(value)} is not one of {', '.join(str(member.value) for member in members)}"
            )
    if (document.get("state") == IncidentState.MERGED.value) != (document.get("merged_into") is not None):
        wrong.append("merged_into must be set exactly if the state is merged")
    confidence = document.get("confidence")
    if confidence is not None and not (isinstance(confidence, int | float) and 0 <= confidence <= 1):
        wrong.append(f"confidence {_shortened(confidence)} is not within 0 and 1")
    times = document.get("times")
    if not isinstance(times, Mapping) or not isinstance(times.get("onset"), int | float):
        wrong.append("times.onset is not a time")
    for name in _LISTS:
        if not isinstance(document.get(name), list):
            wrong.append(f"{name} is not a list")
    advice = document.get("advice")
    if isinstance(advice, Mapping) and not _is_of(advice.get("action"), Action):
        wrong.append(f"advice.action {advice.get('action')!r} is not in the action vocabulary")
    return wrong
