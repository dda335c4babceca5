"""Causes that show only over time: the same place again, a lemon, preemptions.

Each function looks at what is open now in the light of 28 days, and gives the verdicts that follow. Pure over Memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ....telemetry.incident_document import EvidenceRow, Value
from ....telemetry.vocabulary import Kind
from ...condition_document import ConditionReport
from .memory import Memory, step_key
from .placements import DAY_S, KEPT_S, Attempt
from .rules import Rule, the_rule
from .scoring import (
    MOST_SURE,
    failures_of_node,
    lemon_probability,
    rate_per_hour,
)
from .sums import Blame
from .troubles import Trouble

#: A node is a lemon from so many incidents on, of so many jobs, and when it is so sure.
LEMON_INCIDENTS, LEMON_JOBS, LEMON_SURE = 3, 2, 0.95
#: Before the name of what a check of the node has found; what that weighs, and all of them together at most.
CHECKED, WEIGHT_OF_CHECK, MOST_OF_CHECKS = "check ", 0.5, 1.0
#: Whom a starting job pushes out ends so shortly before its start, or at it.
PUSHED_OUT_S, STARTED_S = 180.0, 30.0
#: How much of an incident that suspects somebody on a node is the node's, where nothing else is known.
_SHARE_OF_NODE = {Kind.NODE_LOST.value: 1.0, Kind.RANK_SLOW.value: 0.25, Kind.NUMERIC_FIRST_RANK.value: 0.3}
_SHARE_OTHERWISE = 0.5
#: Sources of conditions that are a check's: whichrank's own, a site's.
CHECK_SOURCES = ("check.", "site.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A cause of several troubles. members: ids. rivals: (rule, value, probability) of causes that remain as well.

    jobs: those it concerns beside the members', as (job, attempt, role). innocent: who only looks guilty, and why.
    """

    rule: Rule
    value: str
    probability: float
    members: Sequence[str]
    onset: float
    decides: bool = True
    culprit: str = ""
    rivals: Sequence[tuple[str, str, float]] = ()
    jobs: Sequence[tuple[str, str, str]] = ()
    words: dict[str, Value] = field(default_factory=dict)
    evidence: Sequence[EvidenceRow] = ()
    innocent: Sequence[tuple[str, str, str]] = ()


# --- the same place again -------------------------------------------------------------------------------------------
def same_place_again(memory: Memory, troubles: Iterable[Trouble]) -> Iterator[Verdict]:
    """Verdicts on the program: the same rank at the same step with the same error, on another node each time."""
    rule, done = the_rule("again"), set[str]()
    for trouble in troubles:
        if trouble.id in done or not trouble.nodes or not trouble.ranks or trouble.own:
            continue
        alike = [trouble, *repeats_of(memory, trouble)]
        nodes: list[Trouble] = []
        for each in sorted(alike, key=lambda t: t.opened):
            if all(set(each.nodes).isdisjoint(other.nodes) for other in nodes):
                nodes.append(each)
        if len(nodes) < 2:
            continue
        done |= {t.id for t in alike}
        rank = trouble.ranks[0]
        yield Verdict(
            rule=rule,
            value=trouble.place or f"step {trouble.step} of rank {rank}",
            probability=0.95 if len(nodes) == 2 else MOST_SURE,
            members=[t.id for t in alike],
            onset=min(t.onset for t in alike),
            words={"rank": rank, "count": len(alike), "jobs": len({t.job for t in alike})},
            evidence=[
                EvidenceRow(
                    signal="history.same_place",
                    source=f"job {t.job}, attempt {t.attempt}",
                    time_s=t.onset,
                    value=t.step,
                    shows=f"rank {rank} failed at step {t.step} on {', '.join(t.nodes)}: {t.error or t.kind}",
                )
                for t in nodes[-6:]
            ],
            innocent=[
                (
                    f"node {node}",
                    f"rank {rank} failed there",
                    "the same rank failed at the same step on other nodes, too",
                )
                for t in nodes
                for node in t.nodes
            ],
        )


def repeats_of(memory: Memory, trouble: Trouble) -> list[Trouble]:
    """Troubles of other attempts that failed in the same way at the same step; [] where its cause or place is otherwise
    known.
    """
    if not trouble.nodes or not trouble.ranks or trouble.own:
        return []
    return [other for other in _at_the_step(memory, trouble) if _is_alike(memory, trouble, other)]


def _at_the_step(memory: Memory, trouble: Trouble) -> Iterator[Trouble]:
    if trouble.step < 0:
        yield from (o for o in memory.of_run(trouble) if o.step < 0 and o.ranks == trouble.ranks and o.place)
        return
    for id_ in memory.by_step.get(step_key(trouble), ()):
        yield memory.troubles[id_]


def _is_alike(memory: Memory, one: Trouble, other: Trouble) -> bool:
    if other.id == one.id or other.own or not other.nodes or (other.job, other.attempt) == (one.job, one.attempt):
        return False
    if other.kind != one.kind or other.error != one.error or (one.step < 0 and one.place != other.place):
        return False
    if (one.run and one.run == other.run) or one.job == other.job:
        return True
    first, second = (memory.placements.of(t.job, t.attempt) for t in (one, other))
    return bool(one.error and first and second and first.name and first.name == second.name and one.step > 0)


# --- a lemon --------------------------------------------------------------------------------------------------------
def blame_of(trouble: Trouble, *, is_shared: bool) -> dict[str, float]:
    """How much each node is to blame for a single incident, 0 to 1; {} where the cause is not of a
    node, or is shared.
    """
    if is_shared or trouble.is_telemetry or trouble.is_planned or not trouble.nodes:
        return {}
    own = trouble.own
    if own.get("domain") == "application" or own.get("device_kind") in ("code", "job"):
        return {}
    share = 1.0 if own and own.get("entity") in trouble.nodes else _SHARE_OF_NODE.get(trouble.kind, _SHARE_OTHERWISE)
    if own and own.get("entity") not in trouble.nodes:
        return {}
    return {node: share * trouble.confidence / len(trouble.nodes) for node in trouble.nodes}


def lemons(memory: Memory, troubles: Sequence[Trouble], nodes: Collection[str], now: float) -> Iterator[Verdict]:
    """Verdicts on nodes that fail more often than the fleet, under several jobs. nodes: those of which there is news.

    now: Unix seconds.
    """
    rule = the_rule("lemon")
    fleet: tuple[float, float] | None = None
    for node in sorted(nodes):
        failures, hours, blame = memory.sums.of(node, now)
        if len(blame) < LEMON_INCIDENTS:
            continue
        hours += sum((now - a.begin) / 3600.0 for a in memory.placements.at(node, now) if a.end is None)
        checks = {id_ for id_, entry in blame.items() if id_.startswith(CHECKED)}
        jobs = {entry[0] for id_, entry in blame.items() if id_ not in checks}
        if len(jobs) < LEMON_JOBS:
            continue
        fleet = fleet or _fleet(memory, now)
        others = max(0.0, fleet[0] - failures), max(1.0, fleet[1] - hours)
        elsewhere = _words_elsewhere(memory, node, now)
        programs: dict[str, list[tuple[float, bool]]] = {}
        for id_, (job, weight, *_) in blame.items():
            if id_ in checks:
                continue
            known = memory.troubles.get(id_)
            incident = weight, known is not None and known.words not in elsewhere
            programs.setdefault(memory.placements.program_of(job), []).append(incident)
        own = failures_of_node(programs.values(), hours, rate_per_hour(*others))
        # What a check finds needs no job to fail, and several findings may be of one fault.
        own += min(sum(blame[id_][1] for id_ in checks), MOST_OF_CHECKS)
        sure = lemon_probability(own, hours, *others)
        if sure <= LEMON_SURE:
            continue
        members = [t.id for t in troubles if t.nodes == [node]]
        if not members:
            continue
        yield Verdict(
            rule=rule,
            value=node,
            probability=min(MOST_SURE, sure),
            members=members,
            onset=min(memory.troubles[id_].onset for id_ in members),
            jobs=[
                (entry[0], memory.troubles[id_].attempt if id_ in memory.troubles else "", "victim")
                for id_, entry in sorted(blame.items(), key=lambda each: float(each[1][3]))
                if id_ not in checks
            ],
            words={
                "count": len(blame) - len(checks),
                "jobs": len(jobs),
                "programs": len(programs),
                "value": node,
                "hours": hours,
            },
            evidence=_lemon_evidence(node, blame),
        )


def _lemon_evidence(node: str, blame: Mapping[str, Blame]) -> list[EvidenceRow]:
    """The last incidents and failed checks that count against the node."""
    return [
        EvidenceRow(
            signal="history.incidents",
            source=node,
            time_s=entry[3],
            value=round(entry[1], 3),
            shows=f"a check of the node: {id_.removeprefix(CHECKED)}"
            if id_.startswith(CHECKED)
            else f"incident {id_} of job {entry[0]} began there",
        )
        for id_, entry in sorted(blame.items(), key=lambda each: float(each[1][3]))[-6:]
    ]


def _words_elsewhere(memory: Memory, node: str, now: float) -> set[tuple[str, str]]:
    """In which words jobs failed on other nodes: what comes there too is of something that those have in common."""
    lately = (t for t in memory.troubles.values() if t.onset > now - KEPT_S)
    return {t.words for t in lately if t.nodes and node not in t.nodes and not t.is_telemetry and not t.is_planned}


def _fleet(memory: Memory, now: float) -> tuple[float, float]:
    """Failures and node-hours of all nodes, up to now."""
    failures, hours = memory.sums.of_fleet(now)
    return failures, hours + sum((now - a.begin) / 3600.0 * len(a.nodes) for a in memory.placements.running.values())


def note_check(memory: Memory, condition: ConditionReport) -> None:
    """Counts a failed check of a node, once a day and device; it is not taken back when the check is passed later: a
    fault that comes and goes is what makes a lemon.
    """
    if condition.entity_kind != "node" or condition.until is not None or condition.severity not in ("error", "fatal"):
        return
    if not condition.source.startswith(CHECK_SOURCES) or condition.domain == "service":
        return
    day = int(condition.since // DAY_S)
    name = f"{CHECKED}{condition.name}{' of ' + condition.device if condition.device else ''}"[:120] + f", day {day}"
    weights = {condition.entity: WEIGHT_OF_CHECK}
    if not memory.sums.has_blame(condition.entity, name):
        memory.sums.blame(name, "", weights, {}, condition.since)


# --- preemption -----------------------------------------------------------------------------------------------------
def preemptions(memory: Memory, stops: Sequence[Trouble], now: float) -> Iterator[Verdict]:
    """Verdicts on jobs that start again and again and push others out each time. stops: planned stops; now: Unix
    seconds.
    """
    if len({t.job for t in stops}) < 2:
        return
    rule = the_rule("preemption")
    ended = [(t, memory.placements.of(t.job, t.attempt)) for t in stops]
    for job, keys in sorted(memory.placements.by_job.items()):
        starts = [memory.placements.attempts[key] for key in keys]
        starts = sorted((a for a in starts if a.begin > now - DAY_S), key=lambda a: a.begin)
        if len(starts) < 2:
            continue
        pushed = [(start, t) for start in starts for t, own in ended if own is not None and _pushes(start, own, t)]
        victims = {t.job for _, t in pushed}
        if len(victims) < 2 or len({start.key for start, _ in pushed}) < 2:
            continue
        roots = [t for t in memory.open.values() if t.job == job and not t.is_planned and not t.is_telemetry]
        yield Verdict(
            rule=rule,
            value=job,
            probability=0.9,
            members=[*(t.id for t in roots if t.words == roots[0].words), *dict.fromkeys(t.id for _, t in pushed)],
            onset=min(t.onset for _, t in pushed),
            culprit=job,
            words={"value": job, "jobs": len(victims), "count": len({s.key for s, _ in pushed})},
            evidence=[
                EvidenceRow(
                    signal="placement",
                    source=f"job {job}",
                    time_s=start.begin,
                    value=len(start.nodes),
                    shows=f"attempt {start.attempt} of job {job} began on nodes of job {t.job}, "
                    f"{max(0.0, start.begin - t.onset):.0f} s after that was stopped",
                )
                for start, t in pushed[:8]
            ],
        )


def _pushes(start: Attempt, own: Attempt, stop: Trouble) -> bool:
    if own.job == start.job or not start.begin - PUSHED_OUT_S <= stop.onset <= start.begin + STARTED_S:
        return False
    is_gone = own.end is not None and own.end <= start.begin + STARTED_S
    return is_gone and not set(own.nodes).isdisjoint(start.nodes)
