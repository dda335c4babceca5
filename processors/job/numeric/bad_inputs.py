"""Who fed the first NaN into an operation, of ranks that check what they feed.

What a rank has got by an operation of another it feeds into its own later ones. So of all ranks that fed a NaN the
first are those that had called no operation before it into which another one had: an order of calls, no clocks
(happened-before, Lamport 1978).
"""

from __future__ import annotations

from ....telemetry.records import Event
from ..state.job_state import JobState
from ..state.rank_state import BadInput

#: Of a rank; it tells one for each step, and stops soon.
MOST_INPUTS = 16


def take_bad_input(job: JobState, event: Event) -> bool:
    """Keeps what a RANK_BAD_INPUT event tells, for its rank; whether that was new and could be read."""
    values = event.attributes
    group = job.groups.index_of(str(values.get("group", "")))
    seq, step, peer = values.get("seq"), values.get("step"), values.get("peer", -1)
    uids, newest = values.get("groups_before", ()), values.get("seqs_before", ())
    if group is None or not (isinstance(seq, int) and isinstance(step, int) and isinstance(peer, int)):
        return False
    if not isinstance(uids, tuple | list) or not isinstance(newest, tuple | list) or len(uids) != len(newest):
        return False
    before = tuple(
        (index, number)
        for uid, number in zip(uids, newest, strict=True)
        if (index := job.groups.index_of(str(uid))) is not None and isinstance(number, int)
    )
    found = BadInput(step, group, bool(values.get("point_to_point")), seq, peer, before)
    facts = job.facts(event.identity.rank)
    if len(facts.bad_inputs) >= MOST_INPUTS or any(known[:4] == found[:4] for known in facts.bad_inputs):
        return False
    facts.bad_inputs.append(found)
    job.unsaved.facts = True
    return True


def find_feeders(job: JobState, step: int) -> dict[int, BadInput]:
    """By rank, the first bad input of those that got it from nobody; empty where that cannot be said.

    Asks that all ranks check what they feed. step: whose numbers are bad, -1 in a loop without steps. What is fed in
    the step before shows in this one. A rank that fed a NaN earlier, while all numbers were good, does so by design.
    """
    if len(job.ranks) < max(job.world_size, 2) or not all(facts.checks_inputs for facts in job.ranks.values()):
        return {}
    first: dict[int, BadInput] = {}
    for rank, facts in job.ranks.items():
        if not facts.bad_inputs:
            continue
        found = min(facts.bad_inputs, key=lambda each: each.step)
        if step >= 0 and found.step < step - 1:
            return {}
        if step < 0 or found.step <= step:
            first[rank] = found
    feeders = {
        rank: mine
        for rank, mine in first.items()
        if not any(_explains(job, other, rank, mine) for peer, other in first.items() if peer != rank)
    }
    return feeders if len(feeders) < len(job.ranks) else {}


def _explains(job: JobState, other: BadInput, rank: int, mine: BadInput) -> bool:
    """Whether this rank may have had its NaN from that operation of another one."""
    if other.point_to_point:
        return other.peer == rank
    return rank in job.groups.members[other.group] and dict(mine.before).get(other.group, 0) >= other.seq
