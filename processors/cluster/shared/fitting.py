"""Which rules of shared causes a trouble may be the work of at all, and whether enough of them were hit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from .memory import Memory
from .rules import Rule, load_shared_rules, rules_of
from .troubles import Trouble, lost_nodes

_CRASHES = frozenset({"rank_died", "rank_raised"})


def rules_that_fit(trouble: Trouble) -> frozenset[str]:
    """Names of rules of shared causes that the trouble may be the work of."""
    return frozenset(rule.name for rule in load_shared_rules().values() if rule.explains and fits(rule, trouble))


def sharing(memory: Memory) -> Callable[[Trouble], bool]:
    """A function that says whether a trouble may be the work of what several jobs share, as things stand now."""
    idle = (
        frozenset() if memory.signs.is_anything_throttled() else frozenset(rule.name for rule in rules_of("throttle"))
    )
    return lambda trouble: not memory.fitting(trouble, rules_that_fit) <= idle


def fits(rule: Rule, trouble: Trouble) -> bool:
    """Whether the trouble may be the work of the rule's cause: by kind, own condition, phase and error."""
    if trouble.kind not in rule.explains:
        return False
    own = trouble.own
    if own and not {own["condition"], own["device_kind"]} & rule.symptoms:
        return False
    if rule.phases and trouble.phase and trouble.phase not in rule.phases:
        return False
    if rule.family == "init" and trouble.phase not in ("", "init"):
        return False
    if rule.family == "full" and not speaks_of(rule, trouble):
        return False
    if rule.attribute == "storage" and rule.family != "full" and any(speaks_of(r, trouble) for r in rules_of("full")):
        return False  # who finds no room has had an answer: it is not slow
    if trouble.kind in _CRASHES and rule.errors is not None:
        return speaks_of_its_errors(rule, trouble) or own.get("condition") in rule.conditions
    return True


def speaks_of(rule: Rule, trouble: Trouble) -> bool:
    """Whether the trouble's error or its own condition names what the rule is about."""
    return speaks_of_its_errors(rule, trouble) or trouble.own.get("condition") in rule.symptoms


def speaks_of_its_errors(rule: Rule, trouble: Trouble) -> bool:
    """Whether the trouble's error, or how it ended, is one that the rule names."""
    said = rule.errors is not None and rule.errors.search(trouble.said) is not None
    return said or not rule.ends.isdisjoint(trouble.hows)


def are_enough(rule: Rule, troubles: Collection[Trouble]) -> bool:
    """Whether the troubles are of enough jobs for the rule, or one of them has lost enough nodes at once."""
    return len({t.job for t in troubles}) >= rule.min_jobs or any(is_lone(rule, t) for t in troubles)


def is_lone(rule: Rule, trouble: Trouble) -> bool:
    """Whether the trouble's job has lost so many nodes together that this one job is evidence enough for the rule."""
    return 0 < rule.min_nodes <= lost_nodes(trouble)


def together(rule: Rule, troubles: Iterable[Trouble]) -> list[Trouble]:
    """Of troubles that fit the rule the first of each job, within the latest window in which the most jobs are hit."""
    fitting = sorted(troubles, key=lambda t: (t.onset, t.id))
    best: dict[str, Trouble] = {}
    for index, first in enumerate(fitting):
        window: dict[str, Trouble] = {}
        for trouble in fitting[index:]:
            if trouble.onset > first.onset + rule.window_s:
                break
            window.setdefault(trouble.job, trouble)
        if len(window) >= len(best):
            best = window
    return list(best.values())
