"""Who burdens a service that others wait for: by its share of all operations, and by how its bursts go before stalls.

Where the service's servers count by job, their count says whose share it is; else the clients' own counters do.

score = share of operations times the best overlap of its bursts with the victims' stalls, which come 0 to 60 s later,
averaged over the victims. Bursts that come again and again, each before stalls, say more than one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....telemetry.incident_document import CountedBy, EvidenceRow
from .job_names import job_of
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
#: Of what is no operation: unit, and words.
_UNITS = {"read_bytes": ("B", "bytes to read"), "write_bytes": ("B", "bytes to write")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A job that burdens a service. share: of all operations. since: Unix seconds at which its first burst began.

    job: in the server's words where nobody here knows whose it is. correlation: by trouble, 0 to 1, how well its stalls
    follow the bursts.
    """

    job: str
    service: str
    operation: str
    share: float
    since: float
    bursts: int
    correlation: Mapping[str, float]
    evidence: Sequence[EvidenceRow]
    counted_by: CountedBy

    @property
    def log_odds(self) -> float:
        """Log-odds that it is this job, by its share; several bursts that fit are several coincidences."""
        share = min(0.98, self.share)
        return min(4.0, math.log(share / (1.0 - share)) + 0.7 * (self.bursts - 1))

    def llr(self, trouble: str) -> float:
        """Log-likelihood ratio of a trouble (its id) under this actor: how well its stalls go with the bursts."""
        return math.log(max(0.05, self.correlation.get(trouble, 0.0)) / 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burden:
    """What one job asks of a service. spells: begin and end of each burst. rate: per second; whole: of all jobs."""

    job: str
    service: str
    operation: str
    spells: list[tuple[float, float]]
    rate: float
    whole: float
    counted_by: CountedBy
    named: str = ""


def actors_on(scene: Scene, rule: Rule, troubles: Sequence[Trouble]) -> Iterable[Actor]:
    """Jobs that ask a service for most of its operations, and whose bursts come before stalls of ``troubles``.

    A service whose servers count by job is not asked of its clients, nor is a job that a server names.
    """
    told = [actor for burden in _told_by_servers(scene, troubles) if (actor := _actor(scene, burden, troubles))]
    services, jobs = {actor.service for actor in told}, {actor.job for actor in told}
    yield from told
    for burden in _told_by_clients(scene, troubles):
        if burden.service not in services and burden.job not in jobs:
            actor = _actor(scene, burden, troubles)
            if actor is not None:
                yield actor


def _actor(scene: Scene, burden: _Burden, troubles: Sequence[Trouble]) -> Actor | None:
    job, service, spells = burden.job, burden.service, burden.spells
    share = min(1.0, burden.rate / burden.whole) if burden.whole > 0 else 0.0
    others = [t for t in troubles if t.job != job and _may_use(scene, t, service)]
    near = {t.id: c for t in others if (c := _correlation(spells, t, scene.now)) >= LEAST_CORRELATION}
    if share < LEAST_SHARE or not near:
        return None
    since = min(spell[0] for spell in spells)
    stalls = [at for t in troubles if t.id in near for at in ([b for b, _ in t.stalls] or [t.onset])]
    fitting = [s for s in spells if any(-SLACK_S <= at - s[0] <= LEAD_S + SLACK_S for at in stalls)]
    unit, words = _UNITS.get(burden.operation, ("", f"{burden.operation} operations"))
    by_server = f" (the server calls it {burden.named})" if burden.named not in ("", job) else ""
    counted = "by the server's count per job" if burden.counted_by is CountedBy.SERVER else "by its own nodes' counts"
    return Actor(
        job=job,
        service=service,
        operation=burden.operation,
        share=share,
        since=since,
        bursts=max(1, len(fitting)),
        correlation=near,
        counted_by=burden.counted_by,
        evidence=[
            EvidenceRow(
                signal=f"load.{burden.operation}",
                source=f"job {job}",
                time_s=since,
                value=f"{burden.rate:.0f}{unit}/s",
                shows=f"job {job}{by_server} asks {service} for {burden.rate:.0f} {words} a second, "
                f"{share:.0%} of all, since {min(stalls) - since:.0f} s before the first job waited"
                + (f", in {len(spells)} bursts" if len(spells) > 1 else "")
                + f"; {counted}",
            )
        ],
    )


def _may_use(scene: Scene, trouble: Trouble, service: str) -> bool:
    """Whether the trouble's job may use the service: not where labels say that it uses another."""
    if service not in scene.memory.landscape.values.get("storage", ()):
        return True
    return ("storage", service) in scene.counts(trouble)


def _told_by_servers(scene: Scene, troubles: Sequence[Trouble]) -> Iterable[_Burden]:
    first = min((t.onset for t in troubles), default=scene.now)
    for key, told in sorted(scene.memory.landscape.job_loads.items()):
        service, _, operation = key.partition("\t")
        spells: dict[str, list[tuple[float, float]]] = {}
        rates: dict[str, float] = {}
        names: dict[str, str] = {}
        wholes: dict[str, float] = {}
        for (server, name), bursts in sorted(told.items()):
            near = [
                (since, scene.now if until is None else until, rate, whole)
                for since, until, rate, whole in bursts
                if until is None or until >= first - 600.0
            ]
            if not near:
                continue
            job = job_of(name, scene.memory.placements, near[-1][0], near[-1][1]) or name
            spells.setdefault(job, []).extend(spell[:2] for spell in near)
            rates[job] = rates.get(job, 0.0) + max(spell[2] for spell in near)
            names[job] = name
            wholes[server] = max(wholes.get(server, 0.0), *(spell[3] for spell in near))
        for job, rate in sorted(rates.items()):
            yield _Burden(
                job=job, service=service, operation=operation, spells=_merged(spells[job]), rate=rate,
                whole=max(sum(wholes.values()), rate), counted_by=CountedBy.SERVER, named=names[job],
            )  # fmt: skip


def _told_by_clients(scene: Scene, troubles: Sequence[Trouble]) -> Iterable[_Burden]:
    for key, nodes in sorted(scene.memory.landscape.loads.items()):
        service, _, operation = key.partition("\t")
        bursts, usual = _by_job(scene, nodes, troubles)
        whole = sum(rate for _, rate in bursts.values()) + usual
        for job, (spells, rate) in sorted(bursts.items()):
            yield _Burden(
                job=job, service=service, operation=operation, spells=spells, rate=rate, whole=whole,
                counted_by=CountedBy.CLIENTS,
            )  # fmt: skip


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
