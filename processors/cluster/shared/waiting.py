"""How long an incident's page or ticket waits for what jobs share, and why. Pure over Memory.

What names hardware and may as well be what several jobs have is told at once, and held back for a moment: the first of
them cannot know that others come. Nobody is called for a node that a switch has cut off.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....telemetry.vocabulary import Severity
from .fitting import rules_that_fit
from .history import repeats_of
from .looking import shows_over_days
from .memory import Memory
from .placements import Value
from .rules import Rule, load_shared_rules
from .standing import standing
from .troubles import Trouble, lost_nodes

#: A page waits for the shared cause if another job's page was opened so shortly before, and for so long at most.
TOGETHER_S, HOLD_S = 10.0, 20.0
#: What the first page waits for others of its kind, and what a ticket does: paces are known some steps later or sooner.
FIRST_PAGE_S, TICKET_S = 5.0, 60.0
#: Families of rules under which hardware looks guilty in each job that something larger is guilty of.
_OF_PLACES = frozenset({"place", "throttle"})

Wait = tuple[float, str]
NOTHING: Wait = (0.0, "")


def wait_for(memory: Memory, trouble: Trouble, now: float, *, is_new: bool) -> Wait:
    """Until when (Unix seconds of the bus) the incident is held back, and why; ``NOTHING``: it is not.

    trouble: kept in memory. is_new: it has just been opened. Else it has just begun to name hardware.
    """
    is_page = trouble.is_urgent
    if trouble.is_planned or trouble.is_telemetry or (trouble.severity == Severity.INFO.value and not is_page):
        return NOTHING
    if is_new and is_page and (because := _why_a_page_waits(memory, trouble, now)):
        return now + HOLD_S, because
    if trouble.blames and _may_be_larger(memory, trouble):
        seconds = FIRST_PAGE_S if is_page else TICKET_S
        return now + seconds, f"others may have the same: it waits up to {seconds:.0f} s for their word"
    return NOTHING


def _why_a_page_waits(memory: Memory, trouble: Trouble, now: float) -> str:
    """Why a page that has just opened may be of a cause that others have, too; "": nothing speaks for that."""
    if any(at >= now - TOGETHER_S and job != trouble.job for at, job in memory.openings):
        return f"another job was hit at the same time: it waits up to {HOLD_S:.0f} s for what they share"
    if any(set(o.nodes).isdisjoint(trouble.nodes) for o in repeats_of(memory, trouble)):
        return "the same happened in an attempt before: it waits for what they have in common"
    if _is_of_a_known_place(memory, trouble):
        return "others on its node have a cause in common: it waits for whether that is its own, too"
    if _may_share_a_rule(memory, trouble):
        return f"what has hit other jobs may have hit it, too: it waits up to {HOLD_S:.0f} s for that"
    if shows_over_days(memory, trouble, now):
        return "with what other jobs had before it, it has a cause in common: it waits for that"
    return ""


def _may_share_a_rule(memory: Memory, trouble: Trouble) -> bool:
    """Whether a rule fits it and what another job has, or what its own had in an earlier attempt and others share."""
    attempt = memory.placements.of(trouble.job, trouble.attempt)
    rules = [rule for name in memory.fitting(trouble, rules_that_fit) if _is_at_work(memory, rule := _rule(name))]
    if attempt is None or not rules:
        return False
    values, widest_s = set(memory.landscape.counts(attempt)), max(rule.window_s for rule in rules)
    others = memory.began_within(trouble.onset - widest_s, trouble.onset + widest_s)
    for other in (*memory.of_run(trouble), *others):
        is_own = other.job == trouble.job
        if not other.is_open or (is_own and not (other.leader and other.words == trouble.words)):
            continue
        fits, where = memory.fitting(other, rules_that_fit), memory.placements.of(other.job, other.attempt)
        common = {attribute for attribute, _ in values.intersection(memory.landscape.counts(where) if where else ())}
        near = (rule for rule in rules if is_own or abs(other.onset - trouble.onset) <= rule.window_s)
        if any(rule.name in fits and rule.attribute in common for rule in near):
            return True
    return False


def _rule(name: str) -> Rule:
    return load_shared_rules()[name]


def _is_at_work(memory: Memory, rule: Rule) -> bool:
    return rule.family != "throttle" or memory.signs.is_anything_throttled()


def _may_be_larger(memory: Memory, trouble: Trouble) -> bool:
    """Whether something that explains it would also hit other jobs that run, or has hit several nodes of this one."""
    attempt = memory.placements.of(trouble.job, trouble.attempt)
    rules = [load_shared_rules()[name] for name in memory.fitting(trouble, rules_that_fit)]
    attributes = {rule.attribute for rule in rules if rule.family in _OF_PLACES}
    if attempt is None or not attributes:
        return False
    counts = memory.landscape.counts(attempt)
    values = {value for value in (_of_nodes(memory, trouble.nodes) or counts) if value[0] in attributes}
    others = (other for other in memory.placements.running.values() if other.job != trouble.job)
    if any(not values.isdisjoint(memory.landscape.counts(other)) for other in others):
        return True
    if lost_nodes(trouble) < 2 or not trouble.nodes:
        return False
    alone = {rule.attribute for rule in rules if 0 < rule.min_nodes <= lost_nodes(trouble)}
    first, *others_hit = (set(memory.landscape.values_of(node)) for node in trouble.nodes)
    common = first.intersection(*others_hit)
    return any(attribute in alone for attribute, _ in common)


def _is_of_a_known_place(memory: Memory, trouble: Trouble) -> bool:
    """Whether troubles on one of its nodes have joined an incident that is still open: a lemon, a switch, a rollout."""
    nodes, lasting = set(trouble.nodes), {leader.id for leader in standing(memory)}
    return any(
        not nodes.isdisjoint(memory.troubles[member].nodes)
        for leader, members in memory.joined.items()
        if leader in memory.open or leader in lasting
        for member in members
        if member in memory.troubles
    )


def _of_nodes(memory: Memory, nodes: Iterable[str]) -> set[Value]:
    return {value for node in nodes for value in memory.landscape.values_of(node)}
