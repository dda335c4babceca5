"""Whom a statement is about, besides who says it: the peer at the other end, ranks that did not come, a node, a device.

``targets.toml`` has the forms in which programs name them. Who reports that a peer is silent is not the one to look
at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ...telemetry.whole_numbers import whole_number
from ..alike import asked_once, kind_of, takes_digits_alike
from .log_tables import table

#: Of a statement this much is searched: names stand at its begin.
SEARCHED_CHARS = 2000
MOST_RANKS = 4096
#: An address, or a name that no sentence has as a word: with a digit, a dot or a dash in it.
ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}"
HOSTLIKE = rf"(?:{ADDRESS}|(?=[\w.-]*[\d.-])[A-Za-z][A-Za-z0-9]*(?:[-_.][A-Za-z0-9]+)*)"
ADDR = rf"(?:{ADDRESS}|[A-Za-z][A-Za-z0-9]*(?:[-_.][A-Za-z0-9]+)*)"
NODES = r"(?:[A-Za-z][\w.-]*\[[\d,-]+\]|" + ADDRESS + r"|[A-Za-z][\w.-]*[\w])"
RUN = re.compile(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?")
TASK = re.compile(r"/task:(\d{1,6})")
#: Horovod's newer form: "1: [gradient.0, gradient.1]" behind "Missing ranks:".
LISTED = re.compile(r"(?:^|\n|\s)(\d{1,6}): ?\[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a text names; nothing where it names nobody. ``node`` and ``rank``: of the subject, not of who says it."""

    peer: str | None = None
    peer_rank: int | None = None
    missing: tuple[int, ...] = ()
    node: str | None = None
    rank: int | None = None
    device: str | None = None

    @property
    def is_other(self) -> bool:
        """Whether a peer or missing ranks are named: the statement then points away from who says it."""
        return self.peer is not None or self.peer_rank is not None or bool(self.missing)


NOBODY = Target()


@dataclass(frozen=True, slots=True)
class _Form:
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    takes_digits_alike: bool


@cache
def forms() -> tuple[_Form, ...]:
    """Patterns of targets.toml, compiled, with the words that a text must have one of."""
    found = []
    for entry in table("targets.toml")["target"]:
        pattern = entry["pattern"]
        for name, part in (("{ADDRESS}", ADDRESS), ("{HOSTLIKE}", HOSTLIKE), ("{ADDR}", ADDR), ("{NODES}", NODES)):
            pattern = pattern.replace(name, part)
        compiled = re.compile(pattern, re.IGNORECASE)
        found.append(_Form(tuple(entry["words"]), compiled, takes_digits_alike(pattern)))
    return tuple(found)


def target_of(text: str) -> Target:
    """The peer, ranks, node and device that the text names besides its writer; of several names of a kind the first.

    NOBODY where it names none.
    """
    text = text[:SEARCHED_CHARS]
    low = text.lower()
    told: dict[str, str] = {}
    for form in _matching(text):
        if not (match := form.pattern.search(text)):
            continue
        for name, value in match.groupdict().items():
            if value and not _is_no_name(name, value):
                told.setdefault(name.rstrip("0123456789"), value)
    if not told and "ranks:" not in low:
        return NOBODY
    missing = _ranks(told.get("missing", ""))
    if "task" in told:
        missing = tuple(dict.fromkeys(int(task) for task in TASK.findall(text)))[:MOST_RANKS]
    elif not missing and ("missing ranks:" in low or "stalled ranks:" in low):
        missing = tuple(dict.fromkeys(int(rank) for rank in LISTED.findall(text)))[:MOST_RANKS]
    return Target(
        peer=told.get("peer"),
        peer_rank=int(told["peer_rank"]) if "peer_rank" in told else None,
        missing=missing,
        node=told.get("node"),
        rank=whole_number(told.get("rank", "")),
        device=told.get("device"),
    )


@asked_once
def _matching(text: str) -> tuple[_Form, ...]:
    """Forms that the text has; those that take digits for what they are may be in it."""
    low = text.lower()
    found: set[int] = set()
    for word, indices in _by_word():
        if word in low:
            found.update(indices)
    possible = (forms()[index] for index in sorted(found))
    return tuple(form for form in possible if not form.takes_digits_alike or form.pattern.search(text))


@cache
def _by_word() -> tuple[tuple[str, tuple[int, ...]], ...]:
    by_word: dict[str, tuple[int, ...]] = {}
    for index, form in enumerate(forms()):
        for word in map(kind_of, form.words):
            by_word[word] = (*by_word.get(word, ()), index)
    return tuple(by_word.items())


def _is_no_name(name: str, value: str) -> bool:
    return name.rstrip("0123456789") in ("peer", "node") and value.lower() in _no_names()


@cache
def _no_names() -> frozenset[str]:
    return frozenset(table("targets.toml")["no_names"])


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_each(text)))[:MOST_RANKS]


def _each(text: str) -> Iterator[int]:
    for low, high in RUN.findall(text):
        if int(high or low) - int(low) < MOST_RANKS:
            yield from range(int(low), int(high or low) + 1)
