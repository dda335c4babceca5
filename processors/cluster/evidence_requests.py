"""What to ask agents for once an incident is told: stacks of suspects, what they have printed, dumps, kernel logs.

Each wish is asked once. Its id is the one that JobOperator gives to the same wish: the agent answers once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...telemetry.incident_document import IncidentDocument, SuspectEntry
from ...telemetry.records import Event, Finding, Identity
from ...telemetry.told_ranks import read_ranks
from ...telemetry.vocabulary import EventName, Kind
from .case import Case, is_blocking_incident

#: Kinds whose suspect has said where it was, or cannot be asked any more.
NOTHING_TO_ASK = frozenset({Kind.RANK_DIED, Kind.RANK_RAISED, Kind.RANK_NEVER_JOINED, Kind.PLANNED_STOP})
#: What else tells of a suspect: the end of what it has printed, its last minutes, what its flight recorder and those of
#: the ranks beside it have dumped, and what its node's kernel has said.
_LOG_TAIL, _HISTORY, _FLIGHT_RECORDER, _KERNEL_LOG = "log_tail", "history", "flight_recorder", "kernel_log"
FILES_TO_ASK: Mapping[Kind, Sequence[str]] = {
    Kind.RANK_DIED: (_LOG_TAIL,),
    Kind.RANK_RAISED: (_LOG_TAIL,),
    Kind.RANK_NOT_ENTERED: (_LOG_TAIL, _HISTORY, _FLIGHT_RECORDER),
    Kind.RANK_STOPPED: (_HISTORY, _FLIGHT_RECORDER),
    Kind.DESYNC: (_LOG_TAIL, _HISTORY, _FLIGHT_RECORDER),
    Kind.DEADLOCK: (_HISTORY, _FLIGHT_RECORDER),
    Kind.COLLECTIVE_STALLED: (_HISTORY, _FLIGHT_RECORDER),
    Kind.RANK_SLOW: (_HISTORY,),
    Kind.NUMERIC_FIRST_RANK: (_LOG_TAIL,),
}
#: Of an incident with many suspects, files of so many.
MOST_ASKED_FOR_FILES = 2


def wanted_evidence(case: Case, finding: Finding, *, asks_for_files: bool) -> list[Event]:
    """Requests for evidence that were not made before; they are noted in the case. finding: what has changed it.

    The stack of each suspect that can still tell where it is, and (asks_for_files) files of the first ones; where a
    hang has no suspect, files of the first of those who wait in it.
    """
    return [
        request
        for suspect, action in _wishes(case, asks_for_files=asks_for_files)
        if (request := _request(case, finding, suspect, action)) is not None
    ]


def _wishes(case: Case, *, asks_for_files: bool) -> Iterator[tuple[SuspectEntry, str]]:
    kind, told = case.primary.kind, case.told
    suspects = [suspect for suspect in told.suspects if suspect.rank is not None]
    if kind not in NOTHING_TO_ASK:
        for suspect in suspects:
            if suspect.line is None:
                yield suspect, "stack"
    if not asks_for_files:
        return
    actions = FILES_TO_ASK.get(kind, ())
    asked = suspects or (_witnesses(told) if _FLIGHT_RECORDER in actions else [])
    for suspect in asked[:MOST_ASKED_FOR_FILES]:
        for action in actions:
            yield suspect, action
    if is_blocking_incident(case):
        nodes: dict[str, SuspectEntry] = {}
        for suspect in [*told.suspects, *(asked if not suspects else ())]:
            nodes.setdefault(suspect.node or "", suspect)
        for suspect in list(nodes.values())[:MOST_ASKED_FOR_FILES]:
            yield suspect, _KERNEL_LOG


def _request(case: Case, finding: Finding, suspect: SuspectEntry, action: str) -> Event | None:
    rank = -1 if suspect.rank is None else suspect.rank
    node = suspect.node or finding.identity.node
    whose = node if action == _KERNEL_LOG and node else rank
    request = f"{case.primary_key}/{action}/{whose}"
    if request in case.requested:
        return None
    case.requested.append(request)
    identity = Identity(cluster=case.cluster, run=case.run, job=case.job, attempt=case.attempt, node=node, rank=rank)
    attributes = {"id": request, "action": action, "rank": rank, "node": node, "incident": case.id}
    return Event(name=EventName.EVIDENCE_REQUEST, identity=identity, time_ns=finding.time_ns, attributes=attributes)


def _witnesses(told: IncidentDocument) -> list[SuspectEntry]:
    """Ranks that wait, as suspects would be named; nobody says on which node they are."""
    try:
        ranks = read_ranks(told.victims.ranks or "")
    except ValueError:  # a document of another release
        return []
    return [SuspectEntry(rank=rank) for rank in ranks[:MOST_ASKED_FOR_FILES]]
