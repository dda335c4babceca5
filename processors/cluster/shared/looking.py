"""What incidents of all jobs are looked at together, and which causes are seen in them. Pure over Memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....telemetry.vocabulary import Kind
from .candidates import all_candidates
from .corruption import corruption
from .fitting import sharing
from .history import Verdict, lemons, preemptions, same_place_again
from .joint import verdict_of
from .memory import Memory
from .newcomers import newcomers
from .observers import blind_spots
from .plans import Plan, plan_for, plan_row
from .rollouts import rollouts
from .rules import the_rule
from .scene import Scene
from .scoring import choose
from .troubles import Trouble, lost_nodes

#: An incident that is over is looked at with others for so long.
LOOKED_AT_S = 900.0
#: Exposure goes on changing what is thought of an incident for so long.
SETTLES_S = 120.0
HORIZON_S = 3600.0
#: No rule looks at onsets that are further apart than this, but for those that look at days.
NEAR_S = 900.0
_PUSHED_OUT = frozenset({Kind.PLANNED_STOP.value})
#: What shows over days, first come first served.
_OF_DAYS = (rollouts, corruption, lemons)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCauses:
    """What a look has found. planned: by trouble, the plan that explains it. may_be_shared: any rule has several jobs
    that fit it.
    """

    verdicts: list[Verdict]
    planned: dict[str, Plan]
    may_be_shared: bool


def pool_of(memory: Memory, now: float) -> list[Trouble]:
    """Troubles to be looked at together, in order of onset. now: Unix seconds.

    What has changed, has begun lately, is held or joined; and what may be of one cause with any of them, by the time at
    which it began.
    """
    oldest, horizon = now - LOOKED_AT_S, now - HORIZON_S

    def is_near(trouble: Trouble) -> bool:
        return trouble.resolved is None or (trouble.resolved > oldest and trouble.onset >= horizon)

    news = [memory.troubles[id_] for id_ in (*memory.fresh, *memory.held)]
    found = {t.id: t for t in (*news, *memory.opened_since(now - SETTLES_S)) if is_near(t)}
    for leader, members in list(memory.joined.items()):
        joined = [memory.troubles[id_] for id_ in members if id_ in memory.troubles]
        is_alive = leader in memory.troubles and any(t.is_open for t in joined)
        found |= {t.id: t for t in joined if is_alive or is_near(t)}
    may_share = sharing(memory)
    sharers = sorted(t.onset for t in found.values() if t.is_telemetry or may_share(t))
    if memory.plans:
        sharers = sorted(t.onset for t in found.values())
    until = -math.inf
    for onset in sharers:
        for trouble in memory.began_within(max(onset - NEAR_S, until), onset + NEAR_S):
            if is_near(trouble) and (memory.plans or trouble.is_telemetry or may_share(trouble)):
                found.setdefault(trouble.id, trouble)
        until = onset + NEAR_S
    return sorted(found.values(), key=lambda t: (t.onset, t.id))


def look_over(memory: Memory, pool: Sequence[Trouble], now: float) -> SeenCauses:
    """Which causes are seen in the pool. Each takes its troubles away from those that follow:

    who looks, what was planned, the program, what is shared now, what shows over time.
    """
    may_be_shared = False
    verdicts = list(blind_spots([t for t in pool if t.is_telemetry]))
    if any(t.kind in _PUSHED_OUT for t in pool):
        # Whoever was pushed out is over soon: a cascade is seen over a day.
        stops = [t for t in memory.troubles.values() if t.kind in _PUSHED_OUT and t.onset > now - 86_400.0]
        verdicts += preemptions(memory, stops, now)
    left = _without([t for t in pool if not t.is_telemetry and not t.is_planned], verdicts)
    planned = _planned(memory, left, now)
    left = [t for t in left if t.id not in planned]
    verdicts += _maintenance(memory, planned, pool)
    verdicts += same_place_again(memory, [t for t in left if t.is_open and (t.is_fresh or t.leader)])
    left = _without(left, verdicts)
    if len({t.job for t in left}) > 1 or any(lost_nodes(t) > 1 for t in left) or (left and memory.signs.are_any):
        scene = Scene(memory, left, now)
        may_be_shared = scene.is_shared()
        chosen = choose(all_candidates(scene), {t.id: t.job for t in left})
        verdicts += [verdict_of(choice) for choice in chosen]
        left = _without(left, verdicts)
    verdicts += _over_time(memory, left, now)
    return SeenCauses(verdicts=verdicts, planned=planned, may_be_shared=may_be_shared)


def _over_time(memory: Memory, left: Sequence[Trouble], now: float) -> list[Verdict]:
    """What shows over days is looked for when an incident is news; all that are open may be its work."""
    news = [t for t in left if t.is_open and (t.is_fresh or t.leader)]
    if not news:
        return []
    known = {t.id for t in left}
    others = [t for t in memory.open.values() if not t.leader and not t.is_telemetry and not t.is_planned]
    wider = [*(t for t in left if t.is_open), *(t for t in others if t.id not in known)]
    nodes = {node for t in news for node in t.nodes}
    verdicts: list[Verdict] = []
    for look in (*_OF_DAYS, newcomers):
        verdicts += look(memory, _without(wider, verdicts), nodes, now)
    return verdicts


def shows_over_days(memory: Memory, trouble: Trouble, now: float) -> bool:
    """Whether it is, with what jobs had before it, the work of a rollout, of a GPU that computes wrongly or of a lemon.

    trouble: open, and kept in memory. now: Unix seconds.
    """
    verdicts = (verdict for look in _OF_DAYS for verdict in look(memory, [trouble], set(trouble.nodes), now))
    return any(trouble.id in verdict.members for verdict in verdicts)


def _planned(memory: Memory, troubles: Iterable[Trouble], now: float) -> dict[str, Plan]:
    found: dict[str, Plan] = {}
    if not memory.plans:
        return {}
    for trouble in troubles:
        attempt = memory.placements.of(trouble.job, trouble.attempt)
        counts = memory.landscape.counts(attempt) if attempt is not None else {}
        # What was over in time stays explained.
        plan = plan_for(memory.plans.values(), trouble, attempt, counts, min(now, trouble.resolved or now))
        if plan is not None:
            found[trouble.id] = plan
    return found


def _maintenance(memory: Memory, planned: dict[str, Plan], pool: Sequence[Trouble]) -> list[Verdict]:
    """One incident for all that one plan brings about."""
    by_plan: dict[str, list[Trouble]] = {}
    for trouble in pool:
        if trouble.id in planned:
            by_plan.setdefault(planned[trouble.id].key, []).append(trouble)
    verdicts = []
    for key, members in sorted(by_plan.items()):
        plan = memory.plans[key]
        if len({t.job for t in members}) > 1:
            value = f"{plan.what} ({plan.by or 'announced'})"
            verdicts.append(
                Verdict(
                    rule=the_rule("maintenance"),
                    value=value,
                    probability=0.9,
                    members=[t.id for t in members],
                    onset=min(t.onset for t in members),
                    words={"jobs": len({t.job for t in members})},
                    evidence=[plan_row(plan)],
                )
            )
    return verdicts


def _without(troubles: Iterable[Trouble], verdicts: Iterable[Verdict]) -> list[Trouble]:
    explained = {id_ for verdict in verdicts for id_ in verdict.members}
    return [trouble for trouble in troubles if trouble.id not in explained]
