"""A hang without any fault of its node is of the program: told by elimination, once every fault would have been told.

Only where all that could be at fault is looked at, where nothing of the node's own is the matter, and where it is known
at which line of the user's code the suspect stands. Pure functions over findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from ...telemetry.incident_document import EvidenceRow, SuspectEntry
from ...telemetry.vocabulary import Action, Kind
from ..condition_document import ConditionReport
from ..told_finding import ToldFinding

CONDITION = "no_node_fault"
#: Kinds in which a rank that is alive does not come to where the others wait, by its own doing or its node's.
MAYBE_OF_PROGRAM = frozenset({Kind.RANK_NOT_ENTERED})
#: Faults are told late by so much after the verdict: a mount that does not answer takes longest.
SETTLES_S = 20.0
#: What must be looked at. The rest (logs, versions, topology) shows causes, but its absence hides no fault of the node.
NEEDED = frozenset({"gpu", "host", "kernel_log", "network", "processes", "storage"})
#: A fault of the node that was told so long before the hang is history, unless it lasts.
RECENT_S = 900.0
_GRAVE = frozenset({"error", "fatal"})
_WORDS = {
    "gpu": "GPUs where there are any",
    "host": "memory and load",
    "kernel_log": "kernel log",
    "network": "network ports",
    "processes": "processes",
    "storage": "mounts and disks",
}


def by_elimination(
    primary: ToldFinding,
    suspects: Sequence[SuspectEntry],
    conditions: Iterable[ConditionReport],
    watched: Mapping[str, Sequence[str]],
) -> ConditionReport | None:
    """The program as cause of a hang, in the shape of a condition; None where something else may be it, or is not
    looked at.

    suspects: of the incident, with the place of their stack. watched: by node, the names of the collectors that see.
    """
    if primary.kind not in MAYBE_OF_PROGRAM or not suspects:
        return None
    nodes = {suspect.node or "" for suspect in suspects}
    places = [_place(suspect) for suspect in suspects]
    if "" in nodes or None in places:
        return None
    if not all(set(watched.get(node, ())) >= NEEDED for node in nodes):
        return None
    onset = primary.onset_s
    if any(_may_matter(condition, nodes, onset) for condition in conditions):
        return None
    node, place = ", ".join(sorted(nodes)), str(places[0])
    looked_at = ", ".join(_WORDS[name] for name in sorted(NEEDED))
    return ConditionReport(
        name=CONDITION,
        entity=node,
        device_kind="code",
        device=place,
        since=onset,
        domain="application",
        action=Action.FIX_CODE.value,
        text=f"no fault of {node} was seen ({looked_at} are watched); it stands in the program, at {place}",
        source="node",
        value=place,
    )


def evidence_of(cause: ConditionReport) -> EvidenceRow:
    """The row of evidence that shows a cause found by ``by_elimination``."""
    return EvidenceRow(
        signal=f"{cause.source}.{cause.name}",
        source=cause.entity,
        time_s=cause.since + SETTLES_S,
        value=cause.value,
        shows=cause.text,
        condition=cause.name,
        trust=cause.trust,
    )


def _place(suspect: SuspectEntry) -> str | None:
    where = suspect.where
    if where is None or not where.file or where.line is None:
        return None
    return f"{PurePosixPath(where.file).name}:{where.line}"


def _may_matter(condition: ConditionReport, nodes: Iterable[str], onset: float) -> bool:
    """A fault of a suspect's node that lasts, or was there not long ago: then nobody says that there was none."""
    if (
        condition.entity_kind != "node"
        or condition.entity not in nodes
        or condition.domain == "application"
        or condition.tolerated
    ):
        return False
    if condition.severity not in _GRAVE:
        return False
    return condition.until is None or abs(condition.since - onset) < RECENT_S
