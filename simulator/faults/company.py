"""What a fault is surrounded by in life: harmless anomalies on other nodes, and collectors that do not watch.

Drawn for every fault alike, whatever it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ground_truth import Truth
from ..jobs import JobSpec
from ..resources import ParameterChange
from .fault import FaultSite, Planned
from .harmless import OF_ANY_NODE, OF_IDLE_NODES

#: Beside each fault; and so long before or after it at most.
ANOMALIES = 2
WITHIN_S = 20.0


def anomalies(site: FaultSite, struck: Sequence[str]) -> list[Planned]:
    """ANOMALIES harmless faults of different kinds on different nodes, within WITHIN_S of ``site.at_s``, by chance.

    struck: names of nodes that faults are on, which are spared. Raises ValueError where too few nodes are left.
    """
    topology, random = site.topology, site.random
    used = {node for job in site.jobs for node in (*job.nodes, *_later_nodes(job))}
    free = [node for node in range(topology.nodes) if topology.node_name(node) not in set(struck)]
    if len(free) < ANOMALIES:
        raise ValueError(f"{ANOMALIES} anomalies need as many nodes beside those that faults are on")
    planned: list[Planned] = []
    kinds = {*OF_ANY_NODE, *OF_IDLE_NODES}
    for place in random.choice(len(free), ANOMALIES, replace=False).tolist():
        node = free[place]
        fit = sorted(kinds if node not in used else kinds & {*OF_ANY_NODE}, key=lambda kind: kind.name)
        kind = fit[int(random.integers(0, len(fit)))]
        kinds.discard(kind)
        at_s = max(site.at_s + float(random.uniform(-WITHIN_S, WITHIN_S)), 1.0)
        planned.append(kind.plan(replace(site, node=node, at_s=at_s)))
    return planned


def _later_nodes(job: JobSpec) -> Sequence[int]:
    """Of a job that gets other nodes at each start: what is harmless on an idle one is not when it runs there."""
    return job.spares if job.launcher.moves else ()


def blinded(truth: Truth, nodes: Sequence[str]) -> tuple[Truth, tuple[ParameterChange, ...]]:
    """The truth of a run in which the collectors that tell the fault do not watch, and changes that switch them off.

    Unchanged, with (), where none tells it. nodes: all names, in the order of their numbers. Of a link the place shows
    by no other sign than its collectors': only the one that tells ``condition`` is missing, and only where another one
    tells of the link.
    """
    missing = truth.told_by
    if truth.scope == "link":
        missing = missing[:1] if len(missing) > 1 else ()
    places = tuple(nodes.index(name) for name in truth.nodes)
    if not missing or not places:
        return truth, ()
    changes = tuple(ParameterChange(at_s=0.0, family="agent", name=name, value=0.0, places=places) for name in missing)
    return replace(truth, blind=True), changes
