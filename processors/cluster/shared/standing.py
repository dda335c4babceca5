"""Joint incidents that outlast their jobs: a node's fault does not go away with the job that met it. Pure over Memory.

Until somebody has had the time to take the node out, the next job that it harms belongs to the incident that people
know, and pages nobody again.
"""

from __future__ import annotations

from collections.abc import Iterator

from .history import Verdict
from .memory import Memory
from .rules import load_shared_rules
from .troubles import Trouble


def standing(memory: Memory) -> list[Trouble]:
    """Leaders of incidents that outlast their jobs."""
    leaders = (memory.troubles.get(leader) for leader in memory.joined)
    return [leader for leader in leaders if leader is not None and leader.stands]


def let_stand(memory: Memory, leader: Trouble, *, stands: bool) -> None:
    """Keeps whether the incident that ``leader`` leads outlasts its jobs."""
    if leader.stands != stands:
        leader.stands = stands
        memory.put(leader)


def standing_leader(memory: Memory, verdict: Verdict) -> Trouble | None:
    """Who leads the incident of the verdict's cause that stands though all its jobs are over; None: there is none, or
    a person has called it wrong.
    """
    cause = [verdict.rule.name, verdict.value]
    for leader in standing(memory):
        label = memory.told.get(leader.id)
        if leader.cause == cause and not (label is not None and label.wrong):
            return leader
    return None


def ended(memory: Memory, now: float) -> dict[str, float]:
    """Leaders whose incidents have stood long enough, and when the last of their jobs was over. now: Unix seconds."""
    return {leader: over for leader, over, until in _over(memory) if now >= until}


def next_end(memory: Memory) -> float | None:
    """When the next incident will have stood long enough (Unix seconds), as things are; None: none is over."""
    return min((until for _, _, until in _over(memory)), default=None)


def _over(memory: Memory) -> Iterator[tuple[str, float, float]]:
    """Leaders all of whose jobs are over, since when, and until when they stand."""
    for leader in standing(memory):
        rule = load_shared_rules().get((leader.cause or [""])[0])
        resolved = [memory.troubles[id_].resolved for id_ in memory.joined[leader.id] if id_ in memory.troubles]
        over = [at for at in resolved if at is not None]
        if len(over) == len(resolved):
            last = max(over, default=0.0)
            yield leader.id, last, last + (rule.stays_s if rule is not None else 0.0)
