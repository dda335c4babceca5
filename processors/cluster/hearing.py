"""What a finding does to the cases of its job, before anything is published: it joins one, opens one, makes two one."""

from __future__ import annotations

import json
from dataclasses import replace

from ...telemetry.incident import incident_id
from ...telemetry.records import Finding
from ...telemetry.vocabulary import Kind
from ..told_finding import ToldFinding, read_told
from .case import Case, Contribution, is_blocking_incident
from .causes import Relation, relate, suspect_ranks
from .shared.desk import Decisions


def holds(case: Case, finding: Finding, told: ToldFinding, touched: set[str]) -> bool:
    """Whether the finding belongs to the case already. An adopted case is given the finding's key.

    touched: ids of cases that have changed; the case's id is added then, here as below.
    """
    if not _is_of_attempt(case, finding, told) or case.is_gone:
        return False
    if case.adopted and case.id == incident_id(case.job, case.attempt, told.kind, finding.key):
        case.recognise(finding.key)
        touched.add(case.id)
    return case.find(finding.key) is not None


def _is_of_attempt(case: Case, finding: Finding, told: ToldFinding) -> bool:
    """A job is stopped as a whole, whatever attempts of several worlds it consists of."""
    if case.attempt == finding.identity.attempt:
        return True
    if told.kind is not Kind.PLANNED_STOP or case.primary.kind is not Kind.PLANNED_STOP:
        return False
    return case.resolved_at is None


def hear(case: Case, finding: Finding, told: ToldFinding, touched: set[str]) -> None:
    """Puts what a finding says now in place of what it said before; ``holds`` must have been True for it.

    A finding that lasts again takes back that the case has ended.
    """
    known = case.find(finding.key)
    assert known is not None
    touched.add(case.id)
    if known.cleared and not finding.cleared:
        case.ended = None
    known.cleared = finding.cleared
    known.time = finding.time_ns / 1e9
    if not finding.cleared or told.evidence:
        known.body = told


def place(finding: Finding, told: ToldFinding, cases: list[Case], touched: set[str]) -> Case:
    """Adds a finding not heard before to the first case that it goes with, or to a new one in ``cases``; returns the
    case.
    """
    contribution = Contribution(
        key=finding.key, cleared=False, consequence=False, time=finding.time_ns / 1e9, body=told
    )
    for case in cases:
        if not _is_of_attempt(case, finding, told) or case.is_gone:
            continue
        relation = relate(case.primary, told, case.resolved_at, always=_was_always_so(case))
        if relation is Relation.UNRELATED:
            continue
        # What turns up about the past of an incident that has ended does not open it again, unless it was mistaken.
        is_past = case.resolved_at is not None and relation is not Relation.CORRECTION
        contribution.consequence = relation is Relation.CONSEQUENCE or is_past
        if relation in (Relation.ORIGIN, Relation.CORRECTION) and not contribution.consequence:
            for former in case.contributions:
                former.consequence = True
        case.add(contribution)
        touched.add(case.id)
        return case
    identity, ranks = finding.identity, suspect_ranks(told.suspects)
    case = Case(
        id=incident_id(identity.job, identity.attempt, told.kind, finding.key),
        cluster=identity.cluster,
        run=identity.run,
        job=identity.job,
        attempt=identity.attempt,
        contributions=[contribution],
        earlier_incidents=sum(1 for c in cases if suspect_ranks(c.primary.suspects) & ranks),
    )
    cases.append(case)
    touched.add(case.id)
    return case


def merge(changed: Case, cases: list[Case], touched: set[str]) -> None:
    """Joins ``changed`` with the first other open incident of its attempt that has the same cause, if there is one.

    The later in ``cases`` goes into the earlier; both ids are added to ``touched``.
    """
    for other in cases:
        if other is changed or other.attempt != changed.attempt or other.merged_into or changed.merged_into:
            continue
        if other.resolved_at is not None or changed.resolved_at is not None:
            continue
        if relate(other.primary, changed.primary, None, always=_was_always_so(other)) is not Relation.SAME_CAUSE:
            continue
        first, second = sorted((other, changed), key=cases.index)
        for contribution in second.contributions:
            first.add(contribution)
        second.merged_into = first.id
        touched |= {first.id, second.id}
        return


def give_up(case: Case, why: str, now_s: float, touched: set[str]) -> None:
    """Ends an open incident of which nothing will be heard any more; ``why`` is its last piece of evidence.

    now_s: Unix. A finding that comes again opens it again.
    """
    if case.is_gone or case.resolved_at is not None:
        return
    for contribution in case.contributions:
        contribution.cleared, contribution.time = True, now_s
    last = next(each for each in case.contributions if each.key == case.primary_key)
    said = json.loads(last.body.text)
    row = {"signal": "resolved", "source": f"job {case.job}", "time": now_s, "shows": why}
    last.body = read_told({**said, "evidence": [*(said.get("evidence") or ()), row]})
    touched.add(case.id)


def follow_the_job(finding: Finding, told: ToldFinding, cases: list[Case], touched: set[str]) -> None:
    """Notes in the job's cases whether the job runs; a planned stop ends those that block it."""
    now = told.job.now
    planned = told.kind is Kind.PLANNED_STOP and not finding.cleared
    for case in cases:
        if case.is_gone:
            continue
        if case.attempt == finding.identity.attempt and now and now != case.job_now:
            case.job_now = now
            touched.add(case.id)
        if case.resolved_at is not None or not is_blocking_incident(case):
            continue
        if planned:
            case.ended = finding.time_ns / 1e9
            touched.add(case.id)


def _was_always_so(case: Case) -> bool:
    """Whether all that is known to have caused it was so as long as the job is seen."""
    return all(contribution.body.always for contribution in case.causes)


def follow(case: Case, decisions: Decisions) -> None:
    """Writes into ``case`` what was decided for it across jobs.

    Its joint incident and when that ended, what it is merged into, whom it is charged to, the plan that explains it,
    its clock note; its hold is taken away where it is released, merged or joint.
    """
    id_ = case.id
    if id_ in decisions.joint:
        case.joint = decisions.joint[id_]
    if id_ in decisions.over and case.joint is not None:
        case.joint = replace(case.joint, resolved=decisions.over[id_])
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
