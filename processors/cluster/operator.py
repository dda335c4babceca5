"""ClusterOperator: alone opens, updates, merges, resolves and reopens incidents, from the findings of other operators.

Pure: findings in, incident revisions and evidence requests out. State: a row per incident, and per job the list of its
incidents, for a week after the last of them has ended. One page per cause; an incident's id is fixed when it opens.
Where the state was lost, what was published is given to it as incidents, before any finding: it goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...telemetry.incident import complete_document, incident_id
from ...telemetry.records import Event, Finding, Identity, Incident, Record
from ...telemetry.ring_layout import parse_ranks
from ...telemetry.topics import TOPIC_REQUESTS
from ...telemetry.vocabulary import Change, EventName, Kind
from ..operator import Context, Timer
from .accounting import Accounts
from .application import OF_PROGRAMS, SETTLES_S
from .case import Case, Contribution, change_of, compose_alone, has_grown, is_blocking_incident, published_documents
from .causes import Relation, kind_of, relate, suspect_ranks
from .condition_register import ConditionRegister
from .failures import FailureRegister
from .joining import cost_key, overlay
from .shared.desk import Decisions, Desk
from .shared.memory import Memory
from .shared.observers import clock_findings
from .shared.troubles import trouble_of

TOPIC_INCIDENTS = "whichrank.incidents"
#: Incidents kept per job; beyond that the oldest that ended are forgotten.
MAX_CASES_PER_JOB = 24
#: Cases that are held beside their rows, so that these need not be read again for each finding.
MAX_UNPACKED = 16_384
#: A job's incidents are forgotten so long after the last of them has ended.
KEPT_NS = 7 * 24 * 3_600_000_000_000
_FORGET = "forget"
#: Timers: until then faults of the suspects' nodes would have been told.
_SETTLED = "settled/"
#: Intervals of one moment come one by one: so long after the first one what an incident has cost is told.
_COST, COST_NS = "cost/", 2_000_000_000
#: How often it is asked which jobs' accounts become sums.
_FOLD, FOLD_NS, _NEXT_FOLD = "fold", 24 * 3_600_000_000_000, "next"
#: The timer at which incidents of all jobs are looked at together.
_SHARED = "shared"
#: Words of findings' bodies that tell of nodes and jobs, and of no incident.
_OF_ALL_JOBS = ("placement", "topology", "change", "load", "plan")
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
_ACCOUNTS, _SUMS, _FOLDING = "accounts", "account_sums", "folding"
_CONDITIONS, _CONCERNED, _SUSPECTED, _WATCHED = "conditions", "concerned", "suspected", "watched"
#: By run, what its attempts have failed of.
_FAILURES = "failures"


class ClusterOperator:
    """Incident life cycle for one cluster."""

    name = "cluster"

    def __init__(self, disabled: Collection[Kind] = (), *, asks_for_files: bool = False) -> None:
        """disabled: kinds of which no incident is opened; may be changed at any time. Open ones go on to their end.

        asks_for_files: where agents answer with files: log tails, last minutes and dumps of suspects, too.
        """
        self.disabled = frozenset(disabled)
        self._asks_for_files = asks_for_files
        self._memories: dict[str, Memory] = {}
        #: By incident: its row, and the case that it holds.
        self._unpacked: dict[str, tuple[bytes, Case]] = {}

    def key_of(self, record: Record) -> str | None:
        payload = record.payload
        if isinstance(payload, Finding):
            return payload.identity.cluster or UNKNOWN_CLUSTER
        if isinstance(payload, Incident):
            return str(payload.document.get("cluster") or UNKNOWN_CLUSTER)
        return None

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        for record in records:
            self._look_until(record.stamp_ns, ctx)
            docket = self._docket(ctx, record.stamp_ns)
            if isinstance(record.payload, Finding):
                docket.take(record.payload)
            elif isinstance(record.payload, Incident):
                docket.adopt(record.payload.document)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """A hang of which no fault was told is looked at again; incidents of jobs that are over are forgotten."""
        if timer.name == _SHARED:
            self._look_until(ctx.now, ctx)
            return
        if timer.name.startswith(_SETTLED):
            self._docket(ctx, ctx.now).settle(timer.name.removeprefix(_SETTLED))
            return
        if timer.name.startswith(_COST):
            self._docket(ctx, ctx.now).tell_cost(timer.name.removeprefix(_COST))
            return
        if timer.name == _FOLD:
            _fold(ctx)
            return
        ended, jobs, cases = (ctx.state.table(name) for name in (_ENDED, _JOBS, _INCIDENTS))
        conditions, failures = _register(ctx), FailureRegister(ctx.state.table(_FAILURES))
        left = []
        for job, row in list(ended.rows()):
            if ctx.now < int(row) + KEPT_NS:
                left.append(int(row) + KEPT_NS)
                continue
            _accounts(ctx).fold_job(job, _documents(ctx, job))
            for incident in json.loads(jobs.get(job) or b"[]"):
                if packed := cases.get(incident):
                    failures.forget(Case.unpack(packed).line, job)
                cases.delete(incident)
            jobs.delete(job)
            conditions.forget(job)
            ended.delete(job)
        if left:
            ctx.set_timer(_FORGET, min(left))

    def _look_until(self, stamp_ns: int, ctx: Context) -> None:
        """Takes each look that is due by then at its own time, whether a timer or the next record gets there first."""
        while 0 < (due_ns := self._memory(ctx).due_ns) <= stamp_ns:
            self._docket(ctx, due_ns).look()

    def _memory(self, ctx: Context) -> Memory:
        memory = self._memories[ctx.key] = Memory.current(self._memories.get(ctx.key), ctx)
        return memory

    def _docket(self, ctx: Context, stamp_ns: int) -> _Docket:
        if len(self._unpacked) > MAX_UNPACKED:
            self._unpacked.clear()
        return _Docket(
            ctx, stamp_ns, self.disabled, self._memory(ctx), self._unpacked, asks_for_files=self._asks_for_files
        )


class _Docket:
    """The incidents of one job while one finding is taken."""

    def __init__(
        self,
        ctx: Context,
        stamp_ns: int,
        disabled: Collection[Kind],
        memory: Memory,
        unpacked: dict[str, tuple[bytes, Case]],
        *,
        asks_for_files: bool,
    ) -> None:
        self._ctx = ctx
        self._stamp_ns = stamp_ns
        self._disabled = disabled
        self._asks_for_files = asks_for_files
        self._cases = ctx.state.table(_INCIDENTS)
        self._jobs = ctx.state.table(_JOBS)
        self._ended = ctx.state.table(_ENDED)
        self._conditions = _register(ctx)
        self._failures = FailureRegister(ctx.state.table(_FAILURES))
        self._accounts = Accounts(ctx.state.table(_ACCOUNTS), ctx.state.table(_SUMS))
        self._folding = ctx.state.table(_FOLDING)
        self._unpacked = unpacked
        self._touched: set[str] = set()
        self._memory = memory
        self._desk = Desk(memory)

    def take(self, finding: Finding) -> None:
        if "condition" in finding.body:
            self._take_condition(finding)
            return
        if "watch" in finding.body:
            self._conditions.take_watch(finding)
            return
        if "interval" in finding.body:
            self._charge(finding)
            return
        if any(word in finding.body for word in _OF_ALL_JOBS):
            self._take_of_all_jobs(finding)
            return
        if "label" in finding.body:
            self._take_label(finding)
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
            if case.id in self._touched:
                case.conditions = self._conditions.about(case)
                if case.watched is not None:
                    self._look_again(case)
                self._publish(case, finding)
        self._save(finding.identity.job, cases)

    def _take_condition(self, finding: Finding) -> None:
        """A node, a device or a mount has changed: it may explain what is known of jobs already."""
        condition = self._conditions.take(finding, self._stamp_ns)
        self._desk.take_condition(condition, self._now_s)
        self._set_shared_timer()
        for job in self._jobs_of(condition):
            cases = self._load(job)
            for case in cases:
                if not case.is_gone and (about := self._conditions.about(case)) != case.conditions:
                    case.conditions = about
                    self._touched.add(case.id)
                    self._publish(case, finding)
            self._save(job, cases)

    def _charge(self, finding: Finding) -> None:
        """An interval of a job: what of it is lost belongs to incidents. Told with their next revision, or soon."""
        try:
            account, causes = self._accounts.take(finding)
        except ValueError:
            return  # of a release that says it in other words
        if self._folding.get(_NEXT_FOLD) is None:
            self._folding.put(_NEXT_FOLD, b"")
            self._ctx.set_timer(_FOLD, self._stamp_ns + FOLD_NS)
        if not causes:
            return
        cases, leaders = self._load(finding.identity.job), set[str]()
        for case in cases:
            if not case.is_gone and any(case.find(cause) for cause in causes):
                gpu_ns = account.of_causes(contribution.key for contribution in case.contributions)
                case.gpu_ns = max(case.gpu_ns, gpu_ns) if case.adopted else gpu_ns
                self._touched.add(case.id)
                if not case.cost_due_ns and has_grown(case):
                    self._set_cost_timer(case)
                if leader := case.merged_into or case.charged_to:
                    leaders.add(leader)
        self._save(finding.identity.job, cases)
        for leader in sorted(leaders):
            self._charge_leader(leader)

    def _set_cost_timer(self, case: Case) -> None:
        case.cost_due_ns = self._stamp_ns + COST_NS
        self._ctx.set_timer(f"{_COST}{case.id}", case.cost_due_ns)

    def _charge_leader(self, incident: str) -> None:
        """What one of those that it leads has cost is part of what it has cost."""
        leader = self._case_of(incident)
        if leader is None or leader.cost_due_ns:
            return
        cases = self._load(leader.job)
        for case in cases:
            if case.id == incident:
                self._set_cost_timer(case)
                self._touched.add(case.id)
        self._save(leader.job, cases)

    def _costs_of_led(self, case: Case) -> dict[str, int]:
        """GPU-nanoseconds by attempt of the incidents that it leads."""
        found: dict[str, int] = {}
        for incident in case.joint.get("members", ()) if case.joint is not None else ():
            led = self._case_of(incident) if incident != case.id else None
            if led is None or (led.merged_into or led.charged_to or case.id) != case.id:
                continue
            if led.gpu_ns:
                key = cost_key(led.job, led.attempt)
                found[key] = found.get(key, 0) + led.gpu_ns
        return found

    def tell_cost(self, incident: str) -> None:
        """By now all intervals of the same moment are in."""
        packed = self._cases.get(incident)
        if packed is None:
            return
        job = Case.unpack(packed).job
        cases = self._load(job)
        for case in cases:
            if case.id == incident:
                case.cost_due_ns = 0
                self._touched.add(case.id)
                self._publish(case, None)
        self._save(job, cases)

    # --- what jobs share --------------------------------------------------------------------------------------------
    @property
    def _now_s(self) -> float:
        return self._stamp_ns / 1e9

    def _take_of_all_jobs(self, finding: Finding) -> None:
        """Where jobs run, how nodes stand, what was changed or planned. What cannot be read is counted."""
        try:
            self._desk.take(finding, self._now_s)
        except (KeyError, ValueError, TypeError, AttributeError):
            self._memory.note_problem("finding that cannot be read")
        for told in clock_findings(finding):
            self.take(told)
        self._set_shared_timer()

    def _take_label(self, finding: Finding) -> None:
        """A person's word: it stands in the incident, and in the history of whom it blames."""
        label = dict(finding.body["label"])
        incident = str(label.pop("incident", ""))
        self._desk.take_label(incident, label, self._now_s)
        self._set_shared_timer()
        trouble = self._memory.troubles.get(incident)
        if trouble is not None:
            cases = self._load(trouble.job)
            for case in cases:
                if case.id == incident:
                    case.label = label
                    self._publish(case, None)
            self._save(trouble.job, cases)

    def look(self) -> None:
        """Look at the incidents of all jobs together."""
        decisions, let_go = self._desk.look(self._now_s), list[str]()
        for incident in decisions.incidents:
            trouble = self._memory.troubles.get(incident)
            cases = self._load(trouble.job) if trouble is not None else []
            for case in cases:
                if case.id == incident:
                    let_go += [id_ for id_ in (case.joint or {}).get("members", ()) if case.id in decisions.joint]
                    _follow(case, decisions)
                    self._publish(case, None)
            if trouble is not None:
                self._save(trouble.job, cases)
        led = {id_ for joint in decisions.joint.values() if joint is not None for id_ in joint["members"]}
        for incident in sorted(set(let_go) - led - set(decisions.charged)):
            self._charge_to_nobody_else(incident)
        self._set_shared_timer()

    def _charge_to_nobody_else(self, incident: str) -> None:
        """The cause is no longer thought to explain it."""
        case = self._case_of(incident)
        if case is None or case.charged_to is None:
            return
        cases = self._load(case.job)
        for each in cases:
            if each.id == incident:
                each.charged_to = None
                self._publish(each, None)
        self._save(case.job, cases)

    def _set_shared_timer(self) -> None:
        if self._memory.due_ns:
            self._ctx.set_timer(_SHARED, self._memory.due_ns)

    def _note(self, case: Case, alone: Mapping[str, Any]) -> None:
        """What the incident's own job says of it, to where all jobs are looked at."""
        resolved = case.resolved_at
        if case.is_gone:
            resolved = resolved if resolved is not None else self._now_s
        trouble = trouble_of(alone, case.primary, self._now_s, resolved)
        until, because = self._desk.note(trouble, self._now_s, is_new=not case.document)
        if until:
            case.hold = {"until": until, "because": because}
        self._set_shared_timer()

    def settle(self, incident: str) -> None:
        """By now a fault of the suspects' nodes would have been told: what is seen of them says what silence means."""
        packed = self._cases.get(incident)
        if packed is None:
            return
        job = Case.unpack(packed).job
        cases = self._load(job)
        for case in cases:
            if case.id == incident and not case.is_gone and case.resolved_at is None:
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
            self._touched.add(case.id)
            self._failures.note(case.line, case.document)
            self._save(case.job, cases)

    def _holds(self, case: Case, finding: Finding) -> bool:
        if not self._is_of_attempt(case, finding) or case.is_gone:
            return False
        if case.adopted and case.id == incident_id(case.job, case.attempt, kind_of(finding.body), finding.key):
            case.recognise(finding.key)
            self._touched.add(case.id)
        return case.find(finding.key) is not None

    def _is_of_attempt(self, case: Case, finding: Finding) -> bool:
        """A job is stopped as a whole, whatever attempts of several worlds it consists of."""
        if case.attempt == finding.identity.attempt:
            return True
        if kind_of(finding.body) is not Kind.PLANNED_STOP or kind_of(case.primary) is not Kind.PLANNED_STOP:
            return False
        return case.resolved_at is None

    def _hear(self, case: Case, finding: Finding) -> None:
        """A finding that belongs to the case already has something new to say, or has ended."""
        known = case.find(finding.key)
        assert known is not None
        self._touched.add(case.id)
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
            if not self._is_of_attempt(case, finding) or case.is_gone:
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
            self._touched.add(case.id)
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
        self._touched.add(case.id)
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
            self._touched |= {first.id, second.id}
            return

    def _follow_the_job(self, finding: Finding, cases: list[Case]) -> None:
        """What a finding says of the job holds for all incidents of the job."""
        now = (finding.body.get("job") or {}).get("now")
        planned = finding.body["kind"] == Kind.PLANNED_STOP.value and not finding.cleared
        for case in cases:
            if case.is_gone:
                continue
            if case.attempt == finding.identity.attempt and now and now != case.job_now:
                case.job_now = now
                self._touched.add(case.id)
            if case.resolved_at is not None or not is_blocking_incident(case):
                continue
            if planned:
                case.ended = finding.time_ns / 1e9
                self._touched.add(case.id)

    def _publish(self, case: Case, finding: Finding | None) -> None:
        """finding: what has changed it; None where nothing did but time."""
        self._touched.add(case.id)
        case.shared_ns = self._costs_of_led(case)
        alone = compose_alone(case, self._failures.of(case.line))
        self._note(case, alone)
        document = complete_document(overlay(case, alone))
        change = change_of(case, document)
        if change is None:
            return
        document["revision"] = int(case.document.get("revision", 0)) + 1
        document["change"] = change.value
        case.document = document
        self._failures.note(case.line, alone)
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
        found = (self._case_of(incident) for incident in (json.loads(row) if row else ()))
        return [case for case in found if case is not None]

    def _case_of(self, incident: str) -> Case | None:
        packed = self._cases.get(incident)
        if packed is None:
            return None
        held = self._unpacked.get(incident)
        if held is None or held[0] != packed:  # it is not what the row says after the runner rolled back
            held = self._unpacked[incident] = packed, Case.unpack(packed)
        return held[1]

    def _save(self, job: str, cases: list[Case]) -> None:
        ended = [case for case in cases if _is_over(case)]
        for case in ended[: max(0, len(cases) - MAX_CASES_PER_JOB)]:
            cases.remove(case)
            self._cases.delete(case.id)
            self._unpacked.pop(case.id, None)
        for case in cases:
            if case.id in self._touched:
                packed = case.pack()
                self._cases.put(case.id, packed)
                self._unpacked[case.id] = packed, case
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


def _accounts(ctx: Context) -> Accounts:
    return Accounts(ctx.state.table(_ACCOUNTS), ctx.state.table(_SUMS))


def _documents(ctx: Context, job: str) -> list[Mapping[str, Any]]:
    """Last revisions of a job's incidents."""
    cases = ctx.state.table(_INCIDENTS)
    rows = [(incident, cases.get(incident)) for incident in json.loads(ctx.state.table(_JOBS).get(job) or b"[]")]
    return list(published_documents((incident, row) for incident, row in rows if row is not None))


def _fold(ctx: Context) -> None:
    """Jobs without incidents are forgotten as well."""
    accounts, jobs = _accounts(ctx), ctx.state.table(_JOBS)
    for job in accounts.unheard_since(ctx.now - KEPT_NS):
        if jobs.get(job) is None:
            accounts.fold_job(job, ())
    if accounts.are_there():
        ctx.set_timer(_FOLD, ctx.now + FOLD_NS)
    else:
        ctx.state.table(_FOLDING).delete(_NEXT_FOLD)


def _register(ctx: Context) -> ConditionRegister:
    return ConditionRegister(*(ctx.state.table(name) for name in (_CONDITIONS, _CONCERNED, _SUSPECTED, _WATCHED)))


def _follow(case: Case, decisions: Decisions) -> None:
    """What was decided over all jobs, for one of their incidents."""
    id_ = case.id
    if id_ in decisions.joint:
        case.joint = decisions.joint[id_]
    if id_ in decisions.over and case.joint is not None:
        case.joint = {**case.joint, "resolved": decisions.over[id_]}
    if id_ in decisions.into:
        leader = decisions.into[id_]
        case.merged_into, case.has_joined = leader or None, bool(leader)
        case.joint = None if leader else case.joint
    if id_ in decisions.charged:
        case.charged_to = decisions.charged[id_]
    elif case.merged_into is not None or case.joint is not None:
        case.charged_to = None
    if id_ in decisions.plans:
        case.plan = decisions.plans[id_]
    case.clock_note = decisions.notes.get(id_, case.clock_note)
    if id_ in decisions.released or case.merged_into is not None or case.joint is not None:
        case.hold = None


def _is_over(case: Case) -> bool:
    return case.is_gone or case.over_at is not None
