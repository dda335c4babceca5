"""What a site does not let off its nodes, by name: loss, gradient norm, stacks, lines of logs. Standard library only.

What stays possible: that a number is NaN or infinite is told with its step and rank, the number itself never is; a
hang names rank, phase and operation, no line of code; an exception its type and message; a log's lines are not read.
Evidence that would hold what is withheld (rings, dumps, log tails) is refused. Copies on the node itself stay there.
"""

from __future__ import annotations

from collections.abc import Collection

LOSS, GRADIENT_NORM, STACKS, LOG_LINES = "loss", "gradient_norm", "stacks", "log_lines"
NAMES = (LOSS, GRADIENT_NORM, STACKS, LOG_LINES)
#: Kinds of evidence, and what of these they hold: a ring has numbers, and the stack that its rank wrote down.
_HOLDS = {
    "ring": {LOSS, GRADIENT_NORM, STACKS},
    "history": {LOSS, GRADIENT_NORM},
    "flight_recorder": {STACKS},
    "stack": {STACKS},
    "log_tail": {LOG_LINES},
    "kernel_log": {LOG_LINES},
}
#: Attributes of events that are a stack, or a place that was read off one.
STACK_ATTRIBUTES = frozenset({"stack", "file", "line", "function"})


def names_of(words: str) -> frozenset[str]:
    """The set of names in ``words``, which has commas between. Raises ValueError for one that cannot be withheld."""
    names = frozenset(word.strip() for word in words.split(",") if word.strip())
    if unknown := sorted(names - set(NAMES)):
        raise ValueError(f"{', '.join(unknown)}: cannot be withheld; there are {', '.join(NAMES)}")
    return names


def is_refused(action: str, withheld: Collection[str]) -> bool:
    """Whether evidence of this ``action`` (a request's) would hold something that is withheld."""
    return not _HOLDS.get(action, set()).isdisjoint(withheld)
