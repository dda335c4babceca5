"""A rollout: failures follow a version over nodes and jobs, within a day of each node's change. Pure over Memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from ....telemetry.incident_document import EvidenceRow
from ....telemetry.kind_sets import SPEED_KINDS
from .history import Verdict
from .memory import Memory
from .placements import DAY_S
from .rules import Rule, the_rule
from .scoring import LEAST_GAIN, MOST_SURE, TEMPER, hit_or_not
from .troubles import Trouble

#: Failures follow a change within a day, at so many times the rate, on so many nodes.
ROLLOUT_S, ROLLOUT_RATIO, ROLLOUT_NODES = DAY_S, 3.0, 3
ROLLOUT_EXPECTED_RATIO = 10.0
#: By node: when it was changed (Unix seconds), and what it had before.
_Changed = Mapping[str, tuple[float, str]]
#: By job and node.
_Failures = dict[tuple[str, str], Trouble]


def rollouts(memory: Memory, troubles: Sequence[Trouble], fresh: Collection[str], now: float) -> Iterator[Verdict]:
    """At most one verdict: failures follow a version over nodes and jobs, each after the change on its node.

    fresh: nodes of which there is news. now: Unix seconds.
    """
    rule = the_rule("rollout")
    changed: dict[tuple[str, str], dict[str, tuple[float, str]]] = {}
    for node, what, new, time, old in memory.landscape.changes(now - 2 * ROLLOUT_S):
        changed.setdefault((what, new), {})[node] = (time, old)
    best: tuple[float, Verdict] | None = None
    for (what, new), nodes in sorted(changed.items()):
        if len(nodes) < ROLLOUT_NODES or nodes.keys().isdisjoint(fresh):
            continue
        scored = _rollout(memory, rule, what, new, nodes, len(changed), troubles, now)
        if scored is not None and (best is None or scored[0] > best[0]):
            best = scored
    if best is not None:
        yield best[1]


def _rollout(
    memory: Memory,
    rule: Rule,
    what: str,
    new: str,
    nodes: _Changed,
    changes: int,
    troubles: Sequence[Trouble],
    now: float,
) -> tuple[float, Verdict] | None:
    begin = min(time for time, _ in nodes.values()) - ROLLOUT_S
    after, elsewhere = _failures(memory, rule, nodes, begin)
    known = set(memory.landscape.labels) | set(memory.placements.by_node) | set(nodes)
    exposed_s = sum(min(ROLLOUT_S, now - time) for time, _ in nodes.values())
    other_s = max(1.0, len(known) * (now - begin) - exposed_s)
    if len({node for _, node in after}) < ROLLOUT_NODES or len({job for job, _ in after}) < 2 or exposed_s <= 0:
        return None
    ratio = ((len(after) + 0.5) / exposed_s) / ((elsewhere + 0.5) / other_s)
    if ratio < ROLLOUT_RATIO:
        return None
    share = exposed_s / (exposed_s + other_s)
    expected = ROLLOUT_EXPECTED_RATIO * exposed_s / (ROLLOUT_EXPECTED_RATIO * exposed_s + other_s)
    gain = hit_or_not(len(after), elsewhere, expected, share) - math.log(max(1, changes))
    # That so many fail within a day of their change at all, and not one before: the more nodes, the less by chance.
    if gain <= LEAST_GAIN - 1.0:
        return None
    members = [t.id for t in troubles if any(key[1] in t.nodes for key in after) and (t.job, t.nodes[0]) in after]
    return (gain, _verdict(rule, what, new, nodes, after, members, gain, ratio)) if members else None


def _failures(memory: Memory, rule: Rule, nodes: _Changed, begin: float) -> tuple[_Failures, int]:
    """Those within a day of the change of their node, and how many others there were since ``begin``."""
    after: _Failures = {}
    elsewhere: set[tuple[str, str]] = set()
    for trouble in memory.troubles.values():
        is_slow_by_itself = trouble.kind in SPEED_KINDS and bool(trouble.own)
        if trouble.onset < begin or trouble.is_telemetry or trouble.is_planned or is_slow_by_itself:
            continue
        if trouble.cause and trouble.cause[0] not in (rule.name, "lemon"):
            continue
        for node in trouble.nodes[:1]:
            changed_at = nodes.get(node, (math.inf, ""))[0]
            if changed_at <= trouble.onset <= changed_at + ROLLOUT_S:
                after[(trouble.job, node)] = trouble
            else:
                elsewhere.add((trouble.job, node))
    return after, len(elsewhere)


def _verdict(
    rule: Rule,
    what: str,
    new: str,
    nodes: _Changed,
    after: _Failures,
    members: Sequence[str],
    gain: float,
    ratio: float,
) -> Verdict:
    hit_nodes, hit_jobs = {node for _, node in after}, {job for job, _ in after}
    old = Counter(old for _, old in nodes.values()).most_common(1)[0][0]
    first = sorted(after.values(), key=lambda t: t.onset)
    return Verdict(
        rule=rule,
        value=new,
        probability=min(MOST_SURE, 1.0 / (1.0 + math.exp(-(gain + 1.0) / TEMPER))),
        members=members,
        onset=min(t.onset for t in after.values()),
        jobs=[(t.job, t.attempt, "victim") for t in first],
        words={"what": what, "value": new, "count": len(after), "ratio": ratio, "jobs": len(hit_jobs), "old": old},
        evidence=[
            EvidenceRow(
                signal=f"change.{what}",
                source=node,
                time_s=nodes[node][0],
                value=new,
                shows=f"{what} {old or '?'} -> {new} on {node}, {(t.onset - nodes[node][0]) / 60:.0f} min before "
                f"job {t.job} failed there",
            )
            for (_, node), t in sorted(after.items(), key=lambda each: each[1].onset)[:8]
        ],
        innocent=[
            (
                f"node {node}",
                "a job failed there",
                f"so it did on {len(hit_nodes)} nodes, each within a day of the change",
            )
            for node in sorted(hit_nodes)[:8]
        ],
    )
