"""Who burdens a service that others wait for: by its share of all operations, and by how its bursts go before stalls.

score = share of operations times the best overlap of its bursts with the victims' stalls, which come 0 to 60 s later,
averaged over the victims. Bursts that come again and again, each before stalls, say more than one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....telemetry.incident_document import EvidenceRow
from .landscape import NodeLoad
from .rules import Rule
from .scene import Scene
from .troubles import Trouble

#: So long after a burst has begun its victims stall.
LEAD_S = 60.0
#: Clocks of nodes, and looks ten seconds apart.
SLACK_S = 15.0
LEAST_SHARE = 0.5
LEAST_CORRELATION = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A job that burdens a service. share: of all operations. since: Unix seconds at which its first burst began.

    correlation: by trouble, 0 to 1, how well its stalls follow the bursts.
    """

    job: str
    service: str
    operation: str
    share: float
    since: float
    bursts: int
    correlation: Mapping[str, float]
    evidence: Sequence[EvidenceRow]

    @property
    def log_odds(self) -> float:
        """Log-odds that it is this job, by its share; several bursts that fit are several coincidences."""
        share = min(0.98, self.share)
        return min(4.0, math.log(share / (1.0 - share)) + 0.7 * (self.bursts - 1))

    def llr(self, trouble: str) -> float:
        """Log-likelihood ratio of a trouble (its id) under this actor: how well its stalls go with the bursts."""
        return math.log(max(0.05, self.correlation.get(trouble, 0.0)) / 0.3)


def actors_on(scene: Scene, rule: Rule, troubles: Sequence[Trouble]) -> Iterable[Actor]:
    """Jobs that ask a service for most of its operations, and whose bursts come before stalls of ``troubles``."""
    for key, nodes in sorted(scene.memory.landscape.loads.items()):
        service, _, operation = key.partition("\t")
        bursts, usual = _by_job(scene, nodes, troubles)
        whole = sum(rate for _, rate in bursts.values()) + usual
        for job, (spells, rate) in sorted(bursts.items()):
            share = rate / whole if whole > 0 else 0.0
            correlation = {t.id: c for t in troubles if t.job != job and (c := _correlation(spells, t, scene.now)) > 0}
            near = {id_: c for id_, c in correlation.items() if c >= LEAST_CORRELATION}
            if share < LEAST_SHARE or not near:
                continue
            since = min(spell[0] for spell in spells)
            stalls = [at for t in troubles if t.id in near for at in ([b for b, _ in t.stalls] or [t.onset])]
            fitting = [s for s in spells if any(-SLACK_S <= at - s[0] <= LEAD_S + SLACK_S for at in stalls)]
            yield Actor(
                job=job,
                service=service,
                operation=operation,
                share=share,
                since=since,
                bursts=max(1, len(fitting)),
                correlation=near,
                evidence=[
                    EvidenceRow(
                        signal=f"load.{operation}",
                        source=f"job {job}",
                        time_s=since,
                        value=f"{rate:.0f}/s",
                        shows=f"job {job} asks {service} for {rate:.0f} {operation} operations a second, "
                        f"{share:.0%} of all, since {min(stalls) - since:.0f} s before the first job waited"
                        + (f", in {len(spells)} bursts" if len(spells) > 1 else ""),
                    )
                ],
            )


def _by_job(
    scene: Scene, nodes: Mapping[str, NodeLoad], troubles: Sequence[Trouble]
) -> tuple[dict[str, tuple[list[tuple[float, float]], float]], float]:
    """By job its bursts (begin, end) and their rate together, and the usual rate of all nodes that have none.

    The rate of nodes whose usual rate was not told is taken to be that of the median node.
    """
    first = min((t.onset for t in troubles), default=scene.now)
    jobs: dict[str, list[tuple[float, float]]] = {}
    rates: dict[str, float] = {}
    loaded: set[str] = set()
    for node, known in sorted(nodes.items()):  # after a restart in the same order
        for since, until, rate in known.spells:
            end = scene.now if until is None else until
            if end < first - 600.0:
                continue
            for attempt in scene.memory.placements.at(node, max(since, 0.0)):
                jobs.setdefault(attempt.job, []).append((since, end))
                if node not in loaded:
                    rates[attempt.job] = rates.get(attempt.job, 0.0) + rate
                loaded.add(node)
                break
    usual = sorted(known.usual for known in nodes.values() if known.usual is not None)
    median = usual[len(usual) // 2] if usual else 0.0
    others = sum((known.usual or median) for node, known in nodes.items() if node not in loaded)
    return {job: (_merged(spells), rates[job]) for job, spells in jobs.items()}, others


def _merged(spells: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of several nodes of one job: what overlaps is one burst."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spells):
        if merged and begin <= merged[-1][1] + SLACK_S:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _correlation(spells: Sequence[tuple[float, float]], trouble: Trouble, now: float) -> float:
    """How well its stalls go with the bursts: the mean of the best overlaps; 0 where a stall came first."""
    if trouble.stalls:
        return sum(_overlap(spells, begin, end, now) for begin, end in trouble.stalls) / len(trouble.stalls)
    return _overlap(spells, trouble.onset, trouble.resolved, now)


def _overlap(spells: Sequence[tuple[float, float]], stalled: float, until: float | None, now: float) -> float:
    """The best overlap of a burst with a stall, moved back by 0 to ``LEAD_S``. until: None: it lasts."""
    stall = (stalled, until if until is not None else now)
    best = 0.0
    for begin, end in spells:
        lead = stall[0] - begin
        if not -SLACK_S <= lead <= LEAD_S + SLACK_S:
            continue
        if end >= now and until is None:
            return 1.0  # both last: how long is not known yet
        shift = min(LEAD_S, max(0.0, lead))
        moved = (stall[0] - shift, max(stall[1] - shift, stall[0] - shift + 1.0))
        burst = (begin, max(end, begin + 1.0))
        overlap = max(0.0, min(moved[1], burst[1]) - max(moved[0], burst[0]))
        best = max(best, overlap / math.sqrt((moved[1] - moved[0]) * (burst[1] - burst[0])))
    return min(1.0, best)
