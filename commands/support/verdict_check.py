"""Whether what was concluded of a run is what was done to it: for faults that are put into a job on purpose.

The truth is known here and to whoever does the fault, and to nothing that judges. Pure but for reading one file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.vocabulary import Bucket, IncidentState, Kind
from ..run_folder.incident_log import read_lines

#: Of incidents that stop the job.
BLOCKING_BUCKETS = frozenset({Bucket.IMMEDIATE_CRASH, Bucket.COMMUNICATION_HANG})
_NOT_OF_FAULTS = frozenset({Bucket.PLANNED, Bucket.TELEMETRY})


def last_revisions(path: Path) -> dict[str, IncidentDocument]:
    """The last revision of each incident; none when the file is not there."""
    try:
        return {incident.id: incident for _, _, incident in read_lines(path) if incident is not None}
    except OSError:
        return {}


def incidents_of_faults(incidents: Iterable[IncidentDocument], since_s: float = 0.0) -> list[IncidentDocument]:
    """Incidents that say that something is wrong with the job, those that stop it first.

    since_s: Unix seconds; what was detected before is left out.
    """
    named = [
        incident
        for incident in incidents
        if incident.bucket not in _NOT_OF_FAULTS
        and incident.state is not IncidentState.MERGED
        and (incident.times.detected_s is None or incident.times.detected_s >= since_s)
    ]
    return sorted(named, key=lambda incident: incident.bucket not in BLOCKING_BUCKETS)


def differences(
    named: list[IncidentDocument], kinds: Collection[Kind], rank: int | None, *, several: bool = False
) -> list[str]:
    """What of these incidents does not fit a fault, in words; the first one is taken for the verdict.

    kinds: what such a fault may be called. rank: who did it; None: no rank has to be named. several: the fault may
    bring about more than one incident, all of these kinds.
    """
    may_be_so = several and named and all(incident.kind in kinds for incident in named)
    wrong = [] if len(named) == 1 or may_be_so else [f"{len(named)} incidents instead of one"]
    if not named:
        return wrong
    verdict = named[0]
    suspects = [suspect.rank for suspect in verdict.suspects]
    if rank is not None and suspects != [rank]:
        wrong.append(f"suspects {suspects} instead of rank {rank}")
    if verdict.kind not in kinds:
        wrong.append(f"kind {word_of(verdict.kind)} instead of {' or '.join(sorted(kind.value for kind in kinds))}")
    return wrong


def seconds_until_seen(verdict: IncidentDocument | None, since_s: float | None) -> float | None:
    """From ``since_s`` (Unix seconds) until the incident was detected; None where either is unknown."""
    if verdict is None or since_s is None or verdict.times.detected_s is None:
        return None
    return verdict.times.detected_s - since_s
