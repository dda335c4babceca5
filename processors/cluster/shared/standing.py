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


def standing_leader(memory: Memory, verdict: Verdict) -> Trouble | None:
    """Who leads the incident of the verdict's cause that stands though all its jobs are over; None: there is none, or
    a person has called it wrong.
    """
    cause = [verdict.rule.name, verdict.value]
    denied = {id_ for id_, label in memory.told.items() if label.wrong} if memory.standing else frozenset()
    leaders = (memory.troubles[leader] for leader in memory.standing if leader not in denied)
    return next((leader for leader in leaders if leader.cause == cause), None)


def ended(memory: Memory, now: float) -> dict[str, float]:
    """Leaders whose incidents have stood long enough, and when the last of their jobs was over. now: Unix seconds."""
    return {leader: over for leader, over, until in _over(memory) if now >= until}


def next_end(memory: Memory) -> float | None:
    """When the next incident will have stood long enough (Unix seconds), as things are; None: none is over."""
    return min((until for _, _, until in _over(memory)), default=None)


def _over(memory: Memory) -> Iterator[tuple[str, float, float]]:
    """Leaders all of whose jobs are over, since when, and until when they stand."""
    for leader in memory.standing:
        rule = load_shared_rules().get((memory.troubles[leader].cause or [""])[0])
        resolved = [memory.troubles[id_].resolved for id_ in memory.joined.get(leader, ()) if id_ in memory.troubles]
        over = [at for at in resolved if at is not None]
        if len(over) == len(resolved):
            last = max(over, default=0.0)
            yield leader, last, last + (rule.stays_s if rule is not None else 0.0)
