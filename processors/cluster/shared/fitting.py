"""Which rules of shared causes a trouble may be the work of at all, and whether enough of them were hit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from .memory import Memory
from .rules import Rule, load_shared_rules, rules_of
from .troubles import Trouble

_CRASHES = frozenset({"rank_died", "rank_raised"})


def rules_that_fit(trouble: Trouble) -> frozenset[str]:
    """Names of those under which the trouble may be a shared cause's work."""
    return frozenset(rule.name for rule in load_shared_rules().values() if rule.explains and fits(rule, trouble))


def sharing(memory: Memory) -> Callable[[Trouble], bool]:
    """Whether a trouble may be the work of what several jobs share at all, as things stand now."""
    idle = frozenset() if memory.is_anything_throttled() else frozenset(rule.name for rule in rules_of("throttle"))
    return lambda trouble: not memory.fitting(trouble, rules_that_fit) <= idle


def fits(rule: Rule, trouble: Trouble) -> bool:
    """Whether it may be the work of such a cause at all."""
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
    """Whether its error or its own condition names what the rule is about."""
    return speaks_of_its_errors(rule, trouble) or trouble.own.get("condition") in rule.symptoms


def speaks_of_its_errors(rule: Rule, trouble: Trouble) -> bool:
    """errors: what other programs say; how it ended is a field."""
    said = rule.errors is not None and rule.errors.search(trouble.said) is not None
    return said or not rule.ends.isdisjoint(trouble.hows)


def are_enough(rule: Rule, troubles: Collection[Trouble]) -> bool:
    """Jobs that were hit, or nodes that one of them has lost together."""
    return len({t.job for t in troubles}) >= rule.min_jobs or any(is_lone(rule, t) for t in troubles)


def is_lone(rule: Rule, trouble: Trouble) -> bool:
    """Whether it has lost so many nodes together that one job is evidence enough."""
    return 0 < rule.min_nodes <= trouble.lost_nodes
