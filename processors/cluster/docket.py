"""What one finding, or one look, does to incidents: opens, updates, merges, resolves, charges and publishes them.

A docket lives while one record is taken. What jobs share is decided at the ``Desk``; here it is carried out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...telemetry.incident import complete_document
from ...telemetry.incident_document import IncidentDocument, IncidentHold
from ...telemetry.incident_reading import read_incident, read_label
from ...telemetry.incident_writing import write_incident
from ...telemetry.records import Event, Finding, Incident, Record
from ...telemetry.topics import TOPIC_INCIDENTS, TOPIC_REQUESTS
from ...telemetry.vocabulary import Change, Kind
from ..condition_document import ConditionReport
from ..doubts import SET_ASIDE, doubt_findings, unreadable, unreadable_incident
from ..operator import Context
from ..told_finding import read_told
from .application import MAYBE_OF_PROGRAM, SETTLES_S
from .case import Case, change_of, compose_alone, has_grown
from .case_book import CaseBook
from .case_row import case_of_document
from .condition_register import ConditionRegister
from .evidence_requests import wanted_evidence
from .failures import FAILURES, FailureRegister
from .folding import accounts_of, begin_folding
from .hearing import follow, follow_the_job, give_up, hear, holds, merge, place
from .joining import cost_key, overlay
from .shared.desk import Decisions, Desk
from .shared.memory import Memory
from .shared.observers import clock_findings
from .shared.same_end import repeat_row
from .shared.troubles import trouble_of
from .surplus import SurplusIncidents

#: Timers: until then faults of the suspects' nodes would have been told.
SETTLED = "settled/"
#: Intervals of one moment come one by one: so long after the first one what an incident has cost is told.
COST, COST_NS = "cost/", 2_000_000_000
#: The timer at which incidents of all jobs are looked at together.
SHARED = "shared"
_SET_ASIDE_BECAUSE = "the judge failed on a record of the job and began anew with it: whether it lasts is not known"
#: Words of findings' bodies that tell of nodes and jobs, and of no incident.
_OF_ALL_JOBS = ("placement", "topology", "change", "load", "plan")


class Docket:
    """The incidents of one job while one finding is taken."""

    def __init__(
        self,
        ctx: Context,
        stamp_ns: int,
        disabled: Collection[Kind],
        memory: Memory,
        book: CaseBook,
        conditions: ConditionRegister,
        *,
        asks_for_files: bool,
    ) -> None:
        self._ctx = ctx
        self._stamp_ns = stamp_ns
        self._disabled = disabled
        self._asks_for_files = asks_for_files
        self._book, self._conditions = book, conditions
        self._failures = FailureRegister(ctx.state.table(FAILURES))
        self._accounts = accounts_of(ctx)
        self._touched: set[str] = set()
        self._memory = memory
        self._desk = Desk(memory)
        self._surplus = SurplusIncidents(book, memory, self._failures, stamp_ns, self._publish, self._save)

    def take(self, finding: Finding) -> None:
        """Carries out what a finding says of incidents, nodes or jobs: opens, revises, merges, publishes, saves.

        A finding that says nothing of these is passed over.
        """
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
        if SET_ASIDE in finding.body:
            self._give_up(finding)
            return
        if "kind" not in finding.body or "bucket" not in finding.body:
            return  # not a conclusion about an incident
        try:
            told = read_told(finding.body)
        except (KeyError, TypeError, ValueError) as error:  # of another operator, a person or a later release
            self._desk.doubt(unreadable(finding, error))
            self._tell_doubts()
            return
        cases = self._book.of_job(finding.identity.job)
        owner = next((case for case in cases if holds(case, finding, told, self._touched)), None)
        if owner is not None:
            hear(owner, finding, told, self._touched)
        elif not finding.cleared and told.kind not in self._disabled:
            owner = place(finding, told, cases, self._touched)
        if owner is not None:
            merge(owner, cases, self._touched)
        follow_the_job(finding, told, cases, self._touched)
        for case in cases:
            if case.id in self._touched:
                case.conditions = self._conditions.about(case)
                if case.watched is not None:
                    self._look_again(case)
                self._publish(case, finding)
        self._save(finding.identity.job, cases)

    def _take_condition(self, finding: Finding) -> None:
        """A node, a device or a mount has changed: it may explain what is known of jobs already."""
        self._follow_condition(self._conditions.take(finding, self._stamp_ns), finding)

    def _follow_condition(self, condition: ConditionReport, finding: Finding) -> None:
        self._desk.take_condition(condition, self._now_s)
        self._set_shared_timer()
        for job in self._jobs_of(condition):
            cases = self._book.of_job(job)
            for case in cases:
                if not case.is_gone and (about := self._conditions.about(case)) != case.conditions:
                    case.conditions = about
                    self._touched.add(case.id)
                    self._publish(case, finding)
            if cases:  # a node may have ranks of a thousand jobs
                self._save(job, cases)

    def _give_up(self, finding: Finding) -> None:
        """What was known of a job or node was set aside: nothing else will say that what it has told is over."""
        identity = finding.identity
        if not identity.job:
            for condition in self._conditions.end_all(identity.node, self._now_s):
                self._follow_condition(condition, finding)
            return
        cases = self._book.of_job(identity.job)
        for case in cases:
            give_up(case, _SET_ASIDE_BECAUSE, self._now_s, self._touched)
            if case.id in self._touched:
                self._publish(case, finding)
        if cases:
            self._save(identity.job, cases)

    def _charge(self, finding: Finding) -> None:
        """An interval of a job: what of it is lost belongs to incidents. Told with their next revision, or soon."""
        try:
            account, causes = self._accounts.take(finding)
        except ValueError:
            return  # of a release that says it in other words
        begin_folding(self._ctx, self._stamp_ns)
        if not causes:
            return
        cases, leaders = self._book.of_job(finding.identity.job), set[str]()
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
        self._ctx.set_timer(f"{COST}{case.id}", case.cost_due_ns)

    def _charge_leader(self, incident: str) -> None:
        """What one of those that it leads has cost is part of what it has cost."""
        leader = self._book.get(incident)
        if leader is None or leader.cost_due_ns:
            return
        cases = self._book.of_job(leader.job)
        for case in cases:
            if case.id == incident:
                self._set_cost_timer(case)
                self._touched.add(case.id)
        self._save(leader.job, cases)

    def _costs_of_led(self, case: Case) -> dict[str, int]:
        """GPU-nanoseconds by attempt of the incidents that it leads."""
        found: dict[str, int] = {}
        for incident in case.joint.members if case.joint is not None else ():
            led = self._book.get(incident) if incident != case.id else None
            if led is None or (led.merged_into or led.charged_to or case.id) != case.id:
                continue
            if led.gpu_ns:
                key = cost_key(led.job, led.attempt)
                found[key] = found.get(key, 0) + led.gpu_ns
        return found

    def tell_cost(self, incident: str) -> None:
        """Publishes an incident anew if its cost is news, once all intervals of the same moment are in. Nothing for an
        unknown one.
        """
        known = self._book.get(incident)
        if known is None:
            return
        job = known.job
        cases = self._book.of_job(job)
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
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            self._desk.doubt(unreadable(finding, error))
        for told in clock_findings(finding):
            self.take(told)
        self._tell_doubts()
        self._set_shared_timer()

    def _tell_doubts(self) -> None:
        doubts, self._desk.doubts = self._desk.doubts, []
        for told in doubt_findings(doubts, self._ctx.key, self._stamp_ns):
            self.take(told)

    def _take_label(self, finding: Finding) -> None:
        """A person's word: it stands in the incident, and in the history of whom it blames."""
        said = dict(finding.body["label"])
        incident = str(said.pop("incident", ""))
        label = read_label(said)
        if label is None:
            return
        self._desk.take_label(incident, label, self._now_s)
        self._set_shared_timer()
        trouble = self._memory.troubles.get(incident)
        if trouble is not None:
            cases = self._book.of_job(trouble.job)
            for case in cases:
                if case.id == incident:
                    case.label = label
                    self._publish(case, None)
            self._save(trouble.job, cases)

    def look(self) -> None:
        """Looks at the incidents of all jobs together, and carries out what the desk decides; sets the timer for the
        next look.
        """
        self._carry_out(self._desk.look(self._now_s))

    def release(self, incident: str) -> None:
        """In place of a look that cannot be taken: what was held back for it goes out as it is."""
        self._carry_out(self._desk.release(incident))

    def _carry_out(self, decisions: Decisions) -> None:
        let_go: list[str] = []
        for incident in decisions.incidents:
            trouble = self._memory.troubles.get(incident)
            cases = self._book.of_job(trouble.job) if trouble is not None else []
            for case in cases:
                if case.id == incident:
                    if case.joint is not None and case.id in decisions.joint:
                        let_go += case.joint.members
                    follow(case, decisions)
                    self._publish(case, None)
            if trouble is not None:
                self._save(trouble.job, cases)
        led = {id_ for joint in decisions.joint.values() if joint is not None for id_ in joint.members}
        for incident in sorted(set(let_go) - led - set(decisions.charged)):
            self._charge_to_nobody_else(incident)
        self._tell_doubts()
        self._set_shared_timer()

    def _charge_to_nobody_else(self, incident: str) -> None:
        """The cause is no longer thought to explain it."""
        case = self._book.get(incident)
        if case is None or case.charged_to is None:
            return
        cases = self._book.of_job(case.job)
        for each in cases:
            if each.id == incident:
                each.charged_to = None
                self._publish(each, None)
        self._save(case.job, cases)

    def _set_shared_timer(self) -> None:
        if self._memory.due_ns:
            self._ctx.set_timer(SHARED, self._memory.due_ns)

    def _note(self, case: Case, alone: IncidentDocument) -> None:
        """What the incident's own job says of it, to where all jobs are looked at."""
        resolved = case.resolved_at
        if case.is_gone:
            resolved = resolved if resolved is not None else self._now_s
        trouble = trouble_of(alone, case.primary, self._now_s, resolved)
        until, because = self._desk.note(trouble, self._now_s, is_new=case.document is None)
        if until:
            case.hold = IncidentHold(until_s=until, because=because)
        if case.repeats is None and (known := self._memory.troubles.get(trouble.repeats)) is not None:
            case.repeats = repeat_row(known)
        self._set_shared_timer()

    def settle(self, incident: str) -> None:
        """To be called once faults of the suspects' nodes would have been told: publishes what is seen of these nodes.

        Nothing for an incident that is over or not known.
        """
        known = self._book.get(incident)
        if known is None:
            return
        job = known.job
        cases = self._book.of_job(job)
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

    def _jobs_of(self, condition: ConditionReport) -> list[str]:
        """Jobs with ranks where it is, as far as that is known, and those with a suspect there."""
        known = {rank.job for rank in (*condition.ranks, *condition.others)}
        return sorted(known | self._conditions.suspected_at(condition.entity))

    def adopt(self, published: Incident) -> None:
        """Takes an incident as it was published, unless it is known here. One of a release that has other kinds is
        counted and told once.
        """
        try:
            case = case_of_document(published.document)
        except (KeyError, TypeError, ValueError) as error:
            self._desk.doubt(unreadable_incident(str(published.document.get("id", "")), error))
            self._tell_doubts()
            return
        cases = self._book.of_job(case.job)
        if all(known.id != case.id for known in cases):
            cases.append(case)
            self._touched.add(case.id)
            self._failures.note(case.line, case.told, case.primary.steps_before)
            self._save(case.job, cases)

    def _publish(self, case: Case, finding: Finding | None) -> None:
        """finding: what has changed it; None where nothing did but time."""
        self._touched.add(case.id)
        case.shared_ns = self._costs_of_led(case)
        alone = compose_alone(case, self._failures.of(case.line))
        self._note(case, alone)
        incident = overlay(case, alone)
        change = change_of(case, incident)
        if change is None:
            return
        incident = replace(incident, revision=case.told.revision + 1, change=change)
        document = complete_document(write_incident(incident))
        case.document = read_incident(document)  # with its numbers as they were told
        self._failures.note(case.line, incident, case.primary.steps_before)
        self._emit(TOPIC_INCIDENTS, case.id, Incident(document=document))
        if case.primary.kind in MAYBE_OF_PROGRAM and not case.settles_ns:
            case.settles_ns = self._stamp_ns + int(SETTLES_S * 1e9)
            self._ctx.set_timer(f"{SETTLED}{case.id}", case.settles_ns)
        if finding is not None and change in (Change.OPENED, Change.UPDATED, Change.REOPENED):
            for request in wanted_evidence(case, finding, asks_for_files=self._asks_for_files):
                self._emit(TOPIC_REQUESTS, request.identity.node, request)

    def _emit(self, topic: str, key: str, payload: Incident | Event) -> None:
        self._ctx.emit(Record(topic=topic, key=key, stamp_ns=self._stamp_ns, payload=payload))

    def _save(self, job: str, cases: list[Case]) -> None:
        for case in self._book.save(job, cases, self._touched, self._stamp_ns):
            self._conditions.note_suspects(case)
        self._surplus.forget(self._book.surplus(), self._touched, self._now_s)
