"""The incidents of all jobs in rows of state: a row per incident, and per job the list of its incidents.

Kept for a week after the last of a job's incidents has ended. Working copies of cases are held beside their rows, and
are used only while they are what the row says.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ...telemetry.incident_document import IncidentDocument
from ..fair_share import FairShare
from ..operator import Context
from .case import Case
from .case_row import pack_case, published_documents, unpack_case
from .listed_names import read_names

#: Incidents kept per job; beyond that the oldest that ended are forgotten.
MAX_CASES_PER_JOB = 24
#: Incidents of all clusters. Beyond that a cluster that has more than its share forgets the idlest of the owner who has
#: most.
MAX_INCIDENTS = 16_384
#: Cases that are held beside their rows, so that these need not be read again for each finding.
MAX_UNPACKED = 16_384
#: A job's incidents are forgotten so long after the last of them has ended.
KEPT_NS = 7 * 24 * 3_600_000_000_000
#: The timer at which they are.
FORGET = "forget"
#: Tables. The last one: by job, when the last of its incidents has ended, while none is open.
_INCIDENTS, _JOBS, _ENDED = "incidents", "jobs", "ended"


@dataclass(slots=True)
class HeldCases:
    """Working copies of all clusters' rows. by_id: of each incident its row, and the case that it holds. shares: by
    cluster its incidents and their owners; after a restart they are as idle as the names of their jobs are early."""

    by_id: dict[str, tuple[bytes, Case]] = field(default_factory=dict)
    shares: dict[str, FairShare] = field(default_factory=dict)

    def let_go(self, cluster: str) -> None:
        """Rows may have been taken back."""
        self.by_id.clear()
        self.shares.pop(cluster, None)


class CaseBook:
    """Over three tables of the operator's state."""

    def __init__(self, ctx: Context, held: HeldCases) -> None:
        self._ctx = ctx
        self._cases, self._jobs, self._ended = (ctx.state.table(name) for name in (_INCIDENTS, _JOBS, _ENDED))
        if len(held.by_id) > MAX_UNPACKED:
            held.by_id.clear()
        self._held, self._shares = held.by_id, held.shares

    def has_any(self) -> bool:
        """Whether any incident of the cluster is kept."""
        return len(self._share) > 0

    def of_job(self, job: str) -> list[Case]:
        """The job's incidents that are kept, in order of opening."""
        found = (self.get(incident) for incident in self._ids(job))
        return [case for case in found if case is not None]

    def get(self, incident: str) -> Case | None:
        """The case of an incident; None where it is not known or forgotten. The same object for as long as its row is
        the same.
        """
        packed = self._cases.get(incident)
        if packed is None:
            return None
        held = self._held.get(incident)
        if held is None or held[0] != packed:  # it is not what the row says after the runner rolled back
            held = self._held[incident] = packed, unpack_case(packed)
        return held[1]

    def knows(self, job: str) -> bool:
        """Whether any incident of the job is still kept."""
        return self._jobs.get(job) is not None

    def documents(self, job: str) -> list[IncidentDocument]:
        """The last revisions of the job's incidents, of those that were published."""
        rows = [(incident, self._cases.get(incident)) for incident in self._ids(job)]
        return list(published_documents((incident, row) for incident, row in rows if row is not None))

    def save(self, job: str, cases: list[Case], touched: Collection[str], stamp_ns: int) -> list[Case]:
        """Writes the job's list of incidents and those that changed; returns the cases written.

        cases: all of the job, in order; the oldest that are over are dropped from it, and deleted, where they are too
        many. touched: ids of those that have changed. stamp_ns: from which a job whose incidents are over is kept.
        """
        over = [case for case in cases if _is_over(case)]
        for case in over[: max(0, len(cases) - MAX_CASES_PER_JOB)]:
            cases.remove(case)
            self._delete(case.id)
        share = self._share
        written = [case for case in cases if case.id in touched]
        for case in written:
            packed = pack_case(case)
            self._cases.put(case.id, packed)
            self._held[case.id] = packed, case
            share.touch(case.id, self._ctx.owner_of(case.job))
        listed = json.dumps([case.id for case in cases]).encode()
        if self._jobs.get(job) != listed:
            self._jobs.put(job, listed)
        self._note_end(job, cases, stamp_ns)
        return written

    def forgotten_by(self, now_ns: int) -> Iterator[tuple[str, list[Case]]]:
        """Jobs whose incidents have been over for KEPT_NS, with their cases; each is deleted once it was given.

        Sets the timer for the others.
        """
        left = []
        for job, row in list(self._ended.rows()):
            due_ns = int(row) + KEPT_NS
            if now_ns < due_ns:
                left.append(due_ns)
                continue
            yield job, self.of_job(job)
            for incident in self._ids(job):
                self._delete(incident)
            self._jobs.delete(job)
            self._ended.delete(job)
        if left:
            self._ctx.set_timer(FORGET, min(left))

    @property
    def _share(self) -> FairShare:
        share = self._shares.get(self._ctx.key)
        if share is None:
            share = self._shares[self._ctx.key] = FairShare(
                (incident, self._ctx.owner_of(job)) for job, row in self._jobs.rows() for incident in read_names(row)
            )
        return share

    def surplus(self) -> Iterator[str]:
        """Incidents that are too many, one by one; each must be dropped before the next."""
        share = self._share
        while sum(map(len, self._shares.values())) > MAX_INCIDENTS and len(share) > MAX_INCIDENTS // len(self._shares):
            yield share.first_to_go()

    def drop(self, incident: str, cases: list[Case], stamp_ns: int) -> None:
        """Deletes an incident, one of ``cases``, which are all of its job."""
        self._delete(incident)
        job = next((case.job for case in cases if case.id == incident), "")
        left = [case for case in cases if case.id != incident]
        if left:
            self._jobs.put(job, json.dumps([case.id for case in left]).encode())
            self._note_end(job, left, stamp_ns)
        elif job:
            self._jobs.delete(job)
            self._ended.delete(job)

    def _delete(self, incident: str) -> None:
        self._cases.delete(incident)
        self._held.pop(incident, None)
        self._share.remove(incident)

    def _ids(self, job: str) -> list[str]:
        return read_names(self._jobs.get(job))

    def _note_end(self, job: str, cases: Sequence[Case], stamp_ns: int) -> None:
        if any(not _is_over(case) for case in cases):
            if self._ended.get(job) is not None:
                self._ended.delete(job)
        elif self._ended.get(job) is None:
            if next(self._ended.rows(), None) is None:
                self._ctx.set_timer(FORGET, stamp_ns + KEPT_NS)
            self._ended.put(job, b"%d" % stamp_ns)


def _is_over(case: Case) -> bool:
    return case.is_gone or case.over_at is not None
