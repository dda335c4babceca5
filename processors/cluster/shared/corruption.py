"""Silent corruption: every job that ever held a node goes wrong in its numbers later. Pure over Memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from ....telemetry.incident_document import EvidenceRow
from ....telemetry.kind_sets import NUMERIC_KINDS
from .history import Verdict
from .memory import Memory
from .placements import KEPT_S
from .rules import the_rule
from .scoring import LEAST_GAIN, MOST_SURE, TEMPER, hit_or_not
from .troubles import Trouble

CORRUPTED_JOBS, CORRUPTION_P1 = 3, 0.7


def corruption(memory: Memory, troubles: Sequence[Trouble], _: Collection[str], now: float) -> Iterator[Verdict]:
    """At most one verdict: a node whose GPU computes wrongly, as jobs that ever held it go bad in their numbers later.

    troubles: open now; the memory's older ones count, too. now: Unix seconds.
    """
    members = [t for t in troubles if t.kind in NUMERIC_KINDS]
    if not members:
        return
    rule = the_rule("corruption")
    hit: dict[str, Trouble] = {}
    for trouble in memory.troubles.values():
        if trouble.kind in NUMERIC_KINDS and trouble.onset > now - KEPT_S and trouble.cause[:1] != ["same_place_again"]:
            hit.setdefault(trouble.job, trouble)
    if len(hit) < CORRUPTED_JOBS:
        return
    held, jobs = _holders(memory, hit, now), set(memory.placements.by_job)
    scores = _scores(held, hit, jobs)
    best = sorted(scores, key=lambda node: (-scores[node], node))
    if not best or scores[best[0]] <= LEAST_GAIN:
        return
    node = best[0]
    weights = {other: math.exp((scores[other] - scores[node]) / TEMPER) for other in best[:8]}
    whole = sum(weights.values()) + math.exp(-scores[node] / TEMPER)
    mine = [t for t in members if t.job in held[node]]
    if not mine:
        return
    inside, others = held[node] & set(hit), jobs - held[node]
    gpus = Counter(gpu for job in inside for gpu in hit[job].gpus)
    yield Verdict(
        rule=rule,
        value=node,
        probability=min(MOST_SURE, 1.0 / whole),
        decides=1.0 / whole >= 0.6,
        members=[t.id for t in mine],
        onset=min(t.onset for t in mine),
        rivals=[(rule.name, other, weights[other] / whole) for other in best[1:8] if weights[other] / whole > 0.02],
        jobs=[(job, hit[job].attempt, "victim") for job in sorted(inside)],
        words={
            "value": node,
            "count": len(inside),
            "held": len(held[node]),
            "others": len(others & set(hit)),
            "rest": len(others),
            "jobs": len(inside),
            "gpu": next((gpu for gpu, count in gpus.most_common(1) if count >= 2), ""),
        },
        evidence=[_row(hit[job], node) for job in sorted(inside)[:6]],
    )


def _holders(memory: Memory, hit: Mapping[str, Trouble], now: float) -> dict[str, set[str]]:
    """By node: jobs that held it before they were hit, or at all."""
    held: dict[str, set[str]] = {}
    for job, keys in memory.placements.by_job.items():
        until = hit[job].onset if job in hit else now
        for key in keys:
            attempt = memory.placements.attempts[key]
            if attempt.begin <= until and (attempt.end is None or attempt.end > now - KEPT_S):
                for node in attempt.nodes:
                    held.setdefault(node, set()).add(job)
    return held


def _scores(held: Mapping[str, set[str]], hit: Mapping[str, Trouble], jobs: set[str]) -> dict[str, float]:
    """By node that enough jobs held before they were hit: log-odds that it is the one."""
    penalty, scores = math.log(max(len(held), 1)), {}
    for node, holders in held.items():
        inside = holders & set(hit)
        if len(inside) < CORRUPTED_JOBS:
            continue
        others = jobs - holders
        base = min(0.5, max(0.02, (len(others & set(hit)) + 0.5) / (len(others) + 1.0)))
        named = sum(2.0 if node in hit[job].nodes else -3.0 for job in inside if hit[job].nodes)
        if base < CORRUPTION_P1:
            llr = hit_or_not(len(inside), len(holders - set(hit)), CORRUPTION_P1, base)
            scores[node] = llr + named - penalty
    return scores


def _row(trouble: Trouble, node: str) -> EvidenceRow:
    return EvidenceRow(
        signal="history.numbers",
        source=f"job {trouble.job}",
        time_s=trouble.onset,
        value=trouble.kind,
        shows=f"job {trouble.job} had held {node} before its numbers went wrong",
    )
