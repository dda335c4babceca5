"""What a detector told, as the scorer reads it: one story per incident, from all of its revisions.

Fields: docs/incident.md; what is missing is unknown. Of another detector everything is doubted: ``BadIncident``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]
_MOST_MERGES = 16
#: Who acts on such a scope, or such advice, takes a node away.
_NODE_SCOPES = frozenset({"node", "gpu", "link"})
_NODE_ACTION = "restart_without_node"


class BadIncident(ValueError):
    """A document that cannot be scored; says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    scope: str
    id: str
    rank: int | None
    node: str
    gpu: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a detector told of one incident. detected_s: of its first revision, in seconds after the run's begin.

    paged: whether it ever paged somebody. All else is what its last revision says. suspects: the likeliest first.
    blamed: nodes that any revision blamed. job: of its first revision. paged_at: which of all revisions paged first,
    inf none; paged_kind, first_suspects: what that said. told: by kind, which of all revisions that may be acted on
    was the first to say it.
    """

    id: str
    detected_s: float
    attributed_s: float
    paged: bool
    blamed: frozenset[str]
    kind: str
    bucket: str
    scope: str
    suspects: tuple[Suspect, ...]
    jobs: frozenset[str]
    culprits: frozenset[str]
    condition: str
    confidence: float
    merged_into: str
    job: str = ""
    paged_at: float = math.inf
    paged_kind: str = ""
    first_suspects: tuple[Suspect, ...] = ()
    told: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_telemetry(self) -> bool:
        """Whether it is about the telemetry and not about a job."""
        return self.bucket == "telemetry"


def read_stories(revisions: Iterable[Document], start_unix_s: float) -> list[Story]:
    """One story per incident, in order of detection; merged incidents are stories of their own.

    revisions: documents in the order they were published; start_unix_s: of the run's begin. Raises BadIncident for a
    document that cannot be read.
    """
    by_id: dict[str, list[tuple[int, Document]]] = {}
    for number, document in enumerate(revisions, start=1):
        if not isinstance(document, Mapping) or not document.get("id"):
            raise BadIncident(f"document {number} has no id")
        by_id.setdefault(str(document["id"]), []).append((number, document))
    try:
        stories = [_story(id_, told, start_unix_s) for id_, told in by_id.items()]
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise BadIncident(f"an incident cannot be read: {error}") from error
    return sorted(stories, key=lambda story: (story.detected_s, story.id))


def leading(stories: Sequence[Story]) -> list[Story]:
    """Stories that stand for themselves in the end, in order; a merged one is replaced by the one that took it over."""
    by_id = {story.id: story for story in stories}
    found: dict[str, None] = {}
    for story in stories:
        end = story
        for _ in range(_MOST_MERGES):
            if end.merged_into not in by_id:
                break
            end = by_id[end.merged_into]
        found.setdefault(end.id)
    return [by_id[id_] for id_ in found]


def _story(id_: str, numbered: Sequence[tuple[int, Document]], start_unix_s: float) -> Story:
    told = [document for _, document in numbered]
    first, last = told[0], told[-1]
    paged_at, paged = next(((n, each) for n, each in numbered if _pages(each)), (math.inf, first))
    kinds: dict[str, int] = {}
    for number, each in numbered:
        if _is_out(each):
            kinds.setdefault(str(each.get("kind") or ""), number)
    detected = _times(first).get("detected")
    if not isinstance(detected, int | float):
        raise ValueError(f"{id_}: times.detected is no number")
    attributed = next((t for each in told if (t := _times(each).get("attributed")) is not None), None)
    jobs = [row for row in last.get("jobs") or () if isinstance(row, Mapping)]
    about = last.get("job") or {}
    names = {str(row.get("id")) for row in jobs} | ({str(about["id"])} if about.get("id") else set())
    cause = last.get("cause") or {}
    confidence = last.get("confidence")
    return Story(
        id=id_,
        detected_s=float(detected) - start_unix_s,
        attributed_s=float(attributed if attributed is not None else detected) - start_unix_s,
        paged=any(_pages(each) for each in told),
        blamed=frozenset(node for each in told if _is_out(each) for node in _blamed(each)),
        kind=str(last.get("kind") or ""),
        bucket=str(last.get("bucket") or ""),
        scope=str(last.get("scope") or ""),
        suspects=tuple(_suspects(last)),
        jobs=frozenset(names),
        culprits=frozenset(str(row.get("id")) for row in jobs if row.get("role") == "culprit"),
        condition=str(cause.get("condition") or ""),
        confidence=min(1.0, max(0.0, float(0.0 if confidence is None else confidence))),
        merged_into=str(last.get("merged_into") or "") if last.get("state") == "merged" else "",
        job=str((first.get("job") or {}).get("id") or ""),
        paged_at=paged_at,
        paged_kind=str(paged.get("kind") or ""),
        first_suspects=tuple(_suspects(paged)),
        told=kinds,
    )


def _times(document: Document) -> Mapping[str, Any]:
    return document.get("times") or {}


def _is_out(document: Document) -> bool:
    """Somebody may act on it: it is not held back, and stands for itself."""
    return not document.get("hold") and document.get("state") != "merged"


def _pages(document: Document) -> bool:
    return _is_out(document) and document.get("severity") == "page" and document.get("state") != "resolved"


def _suspects(document: Document) -> list[Suspect]:
    rows = sorted(document.get("suspects") or (), key=lambda row: -float(row.get("probability") or 0.0))
    return [
        Suspect(
            scope=str(row.get("scope") or ""),
            id=str(row.get("id") or ""),
            rank=int(row["rank"]) if row.get("rank") is not None else None,
            node=str(row.get("node") or (row.get("id") if row.get("scope") == "node" else "") or ""),
            gpu=str(row.get("gpu") or ""),
            probability=float(row.get("probability") or 0.0),
        )
        for row in rows
    ]


def _blamed(document: Document) -> list[str]:
    """The node of the likeliest suspect, where the document says that it should go."""
    advice = document.get("advice") or {}
    if document.get("scope") not in _NODE_SCOPES and advice.get("action") != _NODE_ACTION:
        return []
    return [suspect.node for suspect in _suspects(document)[:1] if suspect.node]
