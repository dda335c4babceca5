"""A prefix that no carrier of ours is, and that most lines of a log share: learnt from the log itself.

Somebody's own launcher or logger puts it there; behind it stand the same tracebacks and messages as everywhere. Only
its numbers may change from line to line. Plain functions over a sample of lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

#: A log of fewer lines has no habits. This share of them has to have it.
FEWEST_LINES = 3
SHARE = 0.75
#: Of a line this much can be its prefix.
LONGEST = 80
#: What such a prefix ends with.
END = re.compile(r"(?:[\])>}|]:?|::|\u00bb|=>|-->|~)[ \t]")
#: What is no prefix, but what the line is about: a step, a level, a sample.
NO_PREFIX = re.compile(
    r"\b(?:step|iter\w*|epoch|loss|batch|error|warn\w*|fail\w*|exception|traceback|usage|ok|passed|killed|sample|prompt|"
    r"question|answer|nan|inf)\b|%\|",
    re.IGNORECASE,
)
NUMBER = re.compile(r"\d+")
RANK = re.compile(r"\brank[\s:=#_-]{0,2}(\d{1,6})(?!\d)", re.IGNORECASE)
WORD = re.compile(r"\W*([^\W\d]\w*)?")


@dataclass(frozen=True, slots=True)
class UnknownPrefix:
    """is_writer: its numbers tell who writes; else they change from line to line, as clocks do."""

    pattern: re.Pattern[str]
    is_writer: bool


def learnt(bodies: Sequence[str]) -> UnknownPrefix | None:
    """The longest prefix that enough of these lines share, known carriers taken off; None if they share none."""
    bodies = [body for body in bodies if body]
    if len(bodies) < FEWEST_LINES:
        return None
    counted: Counter[str] = Counter()
    for body in bodies:
        counted.update(_shapes(body))
    shared = [shape for shape, count in counted.items() if count >= SHARE * len(bodies)]
    if not shared:
        return None
    pattern = re.compile(r"\d+".join(re.escape(part) for part in max(shared, key=len).split("\0")))
    matches = [(match[0], body[match.end() :]) for body in bodies if (match := pattern.match(body))]
    words = {WORD.match(rest)[1] for _, rest in matches}  # type: ignore[index]
    if len(words) < 2:
        # All say the same thing: that is a table, and its first columns are no prefix.
        return None
    return UnknownPrefix(pattern, is_writer=2 * len({prefix for prefix, _ in matches}) <= len(matches))


def _shapes(body: str) -> set[str]:
    """Beginnings of the line that could be a prefix, numbers replaced."""
    found = set()
    for end in END.finditer(body[:LONGEST]):
        prefix = body[: end.end()]
        if NO_PREFIX.search(prefix):
            break
        if any(letter.isalnum() for letter in prefix):
            found.add(NUMBER.sub("\0", prefix))
    return found
