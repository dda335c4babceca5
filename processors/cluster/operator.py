"""ClusterOperator: alone opens, updates, merges, resolves and reopens incidents, from the findings of other operators.

Pure: findings in, incident revisions and evidence requests out. State: a row per incident, and per job the list of its
incidents, for a week after the last of them has ended. One page per cause; an incident's id is fixed when it opens.
Where the state was lost, what was published is given to it as incidents, before any finding: it goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...telemetry.incident import incident_id
from ...telemetry.records import Event, Finding, Identity, Incident, Record
from ...telemetry.ring_layout import parse_ranks
from ...telemetry.topics import TOPIC_REQUESTS
from ...telemetry.vocabulary import Change, EventName, Kind
from ..operator import Context, Timer
from .application import OF_PROGRAMS, SETTLES_S
from .case import Case, Contribution, change_of, compose, is_blocking_incident
from .causes import Relation, kind_of, relate, suspect_ranks
from .condition_register import ConditionRegister

TOPIC_INCIDENTS = "whichrank.incidents"
#: Incidents kept per job; beyond that the oldest that ended are forgotten.
MAX_CASES_PER_JOB = 24
#: A job's incidents are forgotten so long after the last of them has ended.
KEPT_NS = 7 * 24 * 3_600_000_000_000
_FORGET = "forget"
#: Timers: until then faults of the suspects' nodes would have been told.
_SETTLED = "settled/"
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
UNKNOWN_CLUSTER = "unknown"
#: Tables. The last one: by job, when the last of its incidents has ended, while none is open.
_INCIDENTS, _JOBS, _ENDED = "incidents", "jobs", "ended"
_CONDITIONS, _CONCERNED, _SUSPECTED, _WATCHED = "conditions", "concerned", "suspected", "watched"


class ClusterOperator:
    """Incident life cycle for one cluster."""

    name = "cluster"

    def __init__(self, disabled: Collection[Kind] = (), *, asks_for_files: bool = False) -> None:
        """disabled: kinds of which no incident is opened; may be changed at any time. Open ones go on to their end.

        asks_for_files: where agents answer with files: log tails, last minutes and dumps of suspects, too.
        """
        self.disabled = frozenset(disabled)
        self._asks_for_files = asks_for_files

    def key_of(self, record: Record) -> str | None:
        payload = record.payload
        if isinstance(payload, Finding):
            return payload.identity.cluster or UNKNOWN_CLUSTER
        if isinstance(payload, Incident):
            return str(payload.document.get("cluster") or UNKNOWN_CLUSTER)
        return None

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        for record in records:
            docket = _Docket(ctx, record.stamp_ns, self.disabled, asks_for_files=self._asks_for_files)
            if isinstance(record.payload, Finding):
                docket.take(record.payload)
            elif isinstance(record.payload, Incident):
                docket.adopt(record.payload.document)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """A hang of which no fault was told is looked at again; incidents of jobs that are over are forgotten."""
        if timer.name.startswith(_SETTLED):
            docket = _Docket(ctx, ctx.now, self.disabled, asks_for_files=self._asks_for_files)
            docket.settle(timer.name.removeprefix(_SETTLED))
            return
        ended, jobs, cases = (ctx.state.table(name) for name in (_ENDED, _JOBS, _INCIDENTS))
        conditions = _register(ctx)
        left = []
        for job, row in list(ended.rows()):
            if ctx.now < int(row) + KEPT_NS:
                left.append(int(row) + KEPT_NS)
                continue
            for incident in json.loads(jobs.get(job) or b"[]"):
                cases.delete(incident)
            jobs.delete(job)
            conditions.forget(job)
            ended.delete(job)
        if left:
            ctx.set_timer(_FORGET, min(left))


class _Docket:
    """The incidents of one job while one finding is taken."""

    def __init__(self, ctx: Context, stamp_ns: int, disabled: Collection[Kind], *, asks_for_files: bool) -> None:
        self._ctx = ctx
        self._stamp_ns = stamp_ns
        self._disabled = disabled
        self._asks_for_files = asks_for_files
        self._cases = ctx.state.table(_INCIDENTS)
        self._jobs = ctx.state.table(_JOBS)
        self._ended = ctx.state.table(_ENDED)
        self._conditions = _register(ctx)
        self._loaded: dict[str, bytes] = {}

    def take(self, finding: Finding) -> None:
        if "condition" in finding.body:
            self._take_condition(finding)
            return
        if "watch" in finding.body:
            self._conditions.take_watch(finding)
            return
        if "kind" not in finding.body or "bucket" not in finding.body:
            return  # not a conclusion about an incident
        cases = self._load(finding.identity.job)
        owner = next((case for case in cases if self._holds(case, finding)), None)
        if owner is not None:
            self._hear(owner, finding)
        elif not finding.cleared and kind_of(finding.body) not in self._disabled:
            owner = self._place(finding, cases)
        if owner is not None:
            self._merge(owner, cases)
        self._follow_the_job(finding, cases)
        for case in cases:
            if self._loaded.get(case.id) != case.pack():
                case.conditions = self._conditions.about(case)
                if case.watched is not None:
                    self._look_again(case)
                self._publish(case, finding)
        self._save(finding.identity.job, cases)

    def _take_condition(self, finding: Finding) -> None:
        """A node, a device or a mount has changed: it may explain what is known of jobs already."""
        condition = self._conditions.take(finding, self._ctx.now)
        for job in self._jobs_of(condition):
            cases = self._load(job)
            for case in cases:
                if case.merged_into is None and (about := self._conditions.about(case)) != case.conditions:
                    case.conditions = about
                    self._publish(case, finding)
            self._save(job, cases)

    def settle(self, incident: str) -> None:
        """By now a fault of the suspects' nodes would have been told: what is seen of them says what silence means."""
        packed = self._cases.get(incident)
        if packed is None:
            return
        job = Case.unpack(packed).job
        cases = self._load(job)
        for case in cases:
            if case.id == incident and case.merged_into is None and case.resolved_at is None:
                self._look_again(case)
                self._publish(case, None)
        self._save(job, cases)

    def _look_again(self, case: Case) -> None:
        """Who has looked since it has settled would have told a fault; that it looks no more takes nothing back."""
        before = case.watched or {}
        case.watched = {
            node: sorted({*before.get(node, ()), *sees}) for node, sees in self._conditions.watched(case).items()
        }

    def _jobs_of(self, condition: Mapping[str, Any]) -> list[str]:
        """Jobs with ranks where it is, as far as that is known, and those with a suspect there."""
        known = {str(rank["job"]) for rank in [*condition["ranks"], *condition["others"]]}
        return sorted(known | self._conditions.suspected_at(str(condition["entity"])))

    def adopt(self, document: Mapping[str, Any]) -> None:
        """Take an incident as it was published, unless it is known here."""
        case = Case.of_document(document)
        cases = self._load(case.job)
        if all(known.id != case.id for known in cases):
            cases.append(case)
            self._save(case.job, cases)

    def _holds(self, case: Case, finding: Finding) -> bool:
        if not self._is_of_attempt(case, finding) or case.merged_into is not None:
            return False
        if case.adopted and case.id == incident_id(case.job, case.attempt, kind_of(finding.body), finding.key):
            case.recognise(finding.key)
        return case.find(finding.key) is not None

    def _is_of_attempt(self, case: Case, finding: Finding) -> bool:
        """A job is stopped as a whole, whatever attempts of several worlds it consists of."""
        both = kind_of(case.primary) is kind_of(finding.body) is Kind.PLANNED_STOP
        return case.attempt == finding.identity.attempt or (both and case.resolved_at is None)

    def _hear(self, case: Case, finding: Finding) -> None:
        """A finding that belongs to the case already has something new to say, or has ended."""
        known = case.find(finding.key)
        assert known is not None
        if known.cleared and not finding.cleared:
            case.ended = None
        known.cleared = finding.cleared
        known.time = finding.time_ns / 1e9
        if not finding.cleared or finding.body.get("evidence"):
            known.body = dict(finding.body)

    def _place(self, finding: Finding, cases: list[Case]) -> Case:
        """A finding not heard before joins the incident that explains it, or opens one."""
        contribution = Contribution(
            key=finding.key, cleared=False, consequence=False, time=finding.time_ns / 1e9, body=dict(finding.body)
        )
        for case in cases:
            if not self._is_of_attempt(case, finding) or case.merged_into is not None:
                continue
            relation = relate(case.primary, finding.body, case.resolved_at)
            if relation is Relation.UNRELATED:
                continue
            # What turns up about the past of an incident that has ended does not open it again.
            contribution.consequence = relation is Relation.CONSEQUENCE or case.resolved_at is not None
            if relation is Relation.ORIGIN and not contribution.consequence:
                for former in case.contributions:
                    former.consequence = True
            case.add(contribution)
            return case
        identity = finding.identity
        case = Case(
            id=incident_id(identity.job, identity.attempt, kind_of(finding.body), finding.key),
            cluster=identity.cluster,
            run=identity.run,
            job=identity.job,
            attempt=identity.attempt,
            contributions=[contribution],
            earlier_incidents=sum(1 for c in cases if suspect_ranks(c.primary) & suspect_ranks(finding.body)),
        )
        cases.append(case)
        return case

    def _merge(self, changed: Case, cases: list[Case]) -> None:
        """Two incidents that turn out to be one: the later goes into the earlier."""
        for other in cases:
            if other is changed or other.attempt != changed.attempt or other.merged_into or changed.merged_into:
                continue
            if other.resolved_at is not None or changed.resolved_at is not None:
                continue
            if relate(other.primary, changed.primary, None) is not Relation.SAME_CAUSE:
                continue
            first, second = sorted((other, changed), key=cases.index)
            for contribution in second.contributions:
                first.add(contribution)
            second.merged_into = first.id
            return

    def _follow_the_job(self, finding: Finding, cases: list[Case]) -> None:
        """What a finding says of the job holds for all incidents of the job."""
        now = (finding.body.get("job") or {}).get("now")
        planned = finding.body["kind"] == Kind.PLANNED_STOP.value and not finding.cleared
        for case in cases:
            if case.merged_into is not None:
                continue
            if case.attempt == finding.identity.attempt:
                case.job_now = now or case.job_now
            if case.resolved_at is not None or not is_blocking_incident(case):
                continue
            if planned:
                case.ended = finding.time_ns / 1e9

    def _publish(self, case: Case, finding: Finding | None) -> None:
        """finding: what has changed it; None where nothing did but time."""
        document = compose(case)
        change = change_of(case, document)
        if change is None:
            return
        document["revision"] = int(case.document.get("revision", 0)) + 1
        document["change"] = change.value
        case.document = document
        self._emit(TOPIC_INCIDENTS, case.id, Incident(document=case.document))
        if kind_of(case.primary) in OF_PROGRAMS and not case.settles_ns:
            case.settles_ns = self._stamp_ns + int(SETTLES_S * 1e9)
            self._ctx.set_timer(f"{_SETTLED}{case.id}", case.settles_ns)
        if finding is not None and change in (Change.OPENED, Change.UPDATED, Change.REOPENED):
            self._request_evidence(case, finding)

    def _request_evidence(self, case: Case, finding: Finding) -> None:
        """Ask once for the stack of each suspect that can still tell where it is, and for files of the first ones.

        Where a hang has no suspect, the first of those who wait in it are witnesses.
        """
        kind = kind_of(case.primary)
        suspects = [suspect for suspect in case.document["suspects"] if suspect.get("rank") is not None]
        if kind not in NOTHING_TO_ASK:
            for suspect in suspects:
                if (suspect.get("where") or {}).get("line") is None:
                    self._request(case, finding, suspect, "stack")
        if not self._asks_for_files:
            return
        actions = FILES_TO_ASK.get(kind, ())
        asked = suspects or (_witnesses(case.document) if _FLIGHT_RECORDER in actions else [])
        for suspect in asked[:MOST_ASKED_FOR_FILES]:
            for action in actions:
                self._request(case, finding, suspect, action)
        if is_blocking_incident(case):
            nodes: dict[str, Mapping[str, Any]] = {}
            for suspect in [*case.document["suspects"], *(asked if not suspects else ())]:
                nodes.setdefault(str(suspect.get("node") or ""), suspect)
            for suspect in list(nodes.values())[:MOST_ASKED_FOR_FILES]:
                self._request(case, finding, suspect, _KERNEL_LOG)

    def _request(self, case: Case, finding: Finding, suspect: Mapping[str, Any], action: str) -> None:
        rank = -1 if suspect.get("rank") is None else int(suspect["rank"])
        node = str(suspect.get("node") or finding.identity.node)
        whose = node if action == _KERNEL_LOG and node else rank
        # The id that JobOperator gives to the same wish: the agent answers once.
        request = f"{case.primary_key}/{action}/{whose}"
        if request in case.requested:
            return
        case.requested.append(request)
        identity = Identity(
            cluster=case.cluster, run=case.run, job=case.job, attempt=case.attempt, node=node, rank=rank
        )
        attributes = {"id": request, "action": action, "rank": rank, "node": node, "incident": case.id}
        event = Event(
            name=EventName.EVIDENCE_REQUEST, identity=identity, time_ns=finding.time_ns, attributes=attributes
        )
        self._emit(TOPIC_REQUESTS, node, event)

    def _emit(self, topic: str, key: str, payload: Incident | Event) -> None:
        self._ctx.emit(Record(topic=topic, key=key, stamp_ns=self._stamp_ns, payload=payload))

    def _load(self, job: str) -> list[Case]:
        row = self._jobs.get(job)
        cases = []
        for incident in json.loads(row) if row else []:
            packed = self._cases.get(incident)
            if packed is not None:
                cases.append(Case.unpack(packed))
                self._loaded[incident] = packed
        return cases

    def _save(self, job: str, cases: list[Case]) -> None:
        ended = [case for case in cases if _is_over(case)]
        for case in ended[: max(0, len(cases) - MAX_CASES_PER_JOB)]:
            cases.remove(case)
            self._cases.delete(case.id)
        for case in cases:
            packed = case.pack()
            if self._loaded.get(case.id) != packed:
                self._cases.put(case.id, packed)
                self._conditions.note_suspects(case)
        listed = json.dumps([case.id for case in cases]).encode()
        if self._jobs.get(job) != listed:
            self._jobs.put(job, listed)
        self._note_end(job, cases)

    def _note_end(self, job: str, cases: Sequence[Case]) -> None:
        if any(not _is_over(case) for case in cases):
            if self._ended.get(job) is not None:
                self._ended.delete(job)
        elif self._ended.get(job) is None:
            if next(self._ended.rows(), None) is None:
                self._ctx.set_timer(_FORGET, self._stamp_ns + KEPT_NS)
            self._ended.put(job, b"%d" % self._stamp_ns)


def _witnesses(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ranks that wait, as suspects would be named; nobody says on which node they are."""
    try:
        ranks = parse_ranks(str((document.get("victims") or {}).get("ranks") or ""))
    except ValueError:  # a document of another release
        return []
    return [{"rank": rank} for rank in ranks[:MOST_ASKED_FOR_FILES]]


def _register(ctx: Context) -> ConditionRegister:
    return ConditionRegister(*(ctx.state.table(name) for name in (_CONDITIONS, _CONCERNED, _SUSPECTED, _WATCHED)))


def _is_over(case: Case) -> bool:
    return bool(case.merged_into) or case.resolved_at is not None
