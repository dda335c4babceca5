"""What is looked at together: the troubles of this moment, and the attempts that ran when they began."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from .fitting import are_enough, rules_that_fit
from .memory import Memory
from .placements import Attempt, Value
from .rules import Rule, load_shared_rules
from .troubles import Trouble

#: A suspect that stands elsewhere is there by chance.
ELSEWHERE = -3.0
MOST_OF_PLACE = 4.0
#: A job that is so young has not done anything that could be disturbed.
YOUNG_S = 30.0


class Scene:
    """What is looked at together: troubles of several jobs, and the attempts that ran when they began."""

    def __init__(self, memory: Memory, troubles: Sequence[Trouble], now: float) -> None:
        self.memory = memory
        self.now = now
        self.troubles = sorted(troubles, key=lambda t: (t.onset, t.id))
        self._fitting: dict[str, list[Trouble]] = {}
        for trouble in self.troubles:
            for name in memory.fitting(trouble, rules_that_fit):
                self._fitting.setdefault(name, []).append(trouble)

    @cached_property
    def attempts(self) -> dict[str, Attempt | None]:
        """By trouble (its id): the attempt that it is of, None where no placement was told."""
        return {t.id: self.memory.placements.of(t.job, t.attempt) for t in self.troubles}

    @cached_property
    def restarted(self) -> frozenset[str]:
        """Jobs with troubles of several attempts."""
        attempts: dict[str, set[str]] = {}
        for trouble in self.troubles:
            attempts.setdefault(trouble.job, set()).add(trouble.attempt)
        return frozenset(job for job, found in attempts.items() if len(found) > 1)

    @cached_property
    def running(self) -> dict[str, Attempt]:
        """By key, attempts that ran YOUNG_S before the first trouble began."""
        first = min((t.onset for t in self.troubles), default=self.now)
        return {a.key: a for a in self.memory.placements.running_at(first - YOUNG_S)}

    @cached_property
    def nodes(self) -> int:
        """How many nodes the fleet has, as far as is known; at least 1."""
        return max(len(self.memory.landscape.labels), len(self.memory.placements.by_node), 1)

    def fitting(self, rule: Rule) -> Sequence[Trouble]:
        """Troubles that may be the work of the rule's cause, in order of their onset."""
        return self._fitting.get(rule.name, ())

    def is_shared(self) -> bool:
        """Whether any rule has troubles of enough jobs, or of enough nodes of one, or of one where signs are enough."""
        rules, has_signs = load_shared_rules(), self.memory.signs.are_any
        return any(
            are_enough(rules[name], found) or (has_signs and rules[name].alone_with_sign)
            for name, found in self._fitting.items()
        )

    def counts(self, trouble: Trouble) -> Mapping[Value, int]:
        """How many nodes of the trouble's attempt have each value; {} where its placement is unknown."""
        attempt = self.attempts[trouble.id]
        return self.memory.landscape.counts(attempt) if attempt is not None else {}

    def place(self, trouble: Trouble, value: Value) -> float | None:
        """How much better the places of the trouble's suspects fit this value than chance does, as a log-likelihood
        ratio.

        None where its job has no node there, or its placement is unknown.
        """
        counts, attempt = self.counts(trouble), self.attempts[trouble.id]
        under = counts.get(value, 0)
        if attempt is None or not under:
            return None
        fits = math.log(len(attempt.nodes) / under)
        score = 0.0
        for node in trouble.nodes:
            score += fits if value in set(self.memory.landscape.values_of(node)) else ELSEWHERE
        return max(-2 * MOST_OF_PLACE, min(MOST_OF_PLACE, score))
