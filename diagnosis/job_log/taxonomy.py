"""The classes of failure and what finds them: ``classes.toml``, ``rules/*.toml``, ``exceptions.toml``, ``frames.toml``.

A rule has words of which one must stand in the line (lower case), and a pattern that is tried only then. Files are read
in the order of their names and the first rule that matches decides; so traps come first and general words last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...telemetry.vocabulary import Action, Bucket, Scope
from ..alike import asked_once, kind_of, takes_digits_alike
from ..kernel_log.xid import xids_of_class
from .assertion import asserted
from .log_tables import table, tables_in
from .model import FailureClass, LineRole, Rank, Restart

#: Patterns see no more of a line than this: none is quadratic in so little.
MATCHED_CHARS = 2000
LETTERS = 3
#: A line that tells of an Xid of one of these codes, in the driver's words or a program's.
_XID_LINE = r"\bXid\b(?: ?\((?:PCI:)?[^)]{0,40}\))?(?: error)?[:=]? ?(?:code )?{codes}\b(?![:-]\w)"
COMMON = " etaoinsrlcdumpfg"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRule:
    """failure is None for context. ``unless``: a pattern that must not be in the line."""

    name: str
    failure: FailureClass | None
    role: LineRole
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRule:
    """A failure of a class in ``of``, raised below a frame that matches, is of class ``failure``."""

    of: frozenset[str]
    pattern: re.Pattern[str]
    failure: FailureClass


@dataclass(frozen=True, slots=True)
class _Plan:
    """For texts that differ in their digits only: rules to try on each of them, in order, and what else is the answer.

    asked: rules that take digits for what they are; with the words of which one has to stand in the text, none where
    one does anyway. is_sure: nothing in it is only supposed or advised.
    """

    asked: tuple[tuple[StatementRule, tuple[str, ...]], ...]
    answer: StatementRule | None
    is_sure: bool


class StatementRules:
    """Finds the rule of a text. Not for several threads at once: it remembers."""

    def __init__(self, rules: Sequence[StatementRule]) -> None:
        self.rules = tuple(rules)
        #: Bits of rules, by word; words with digits apart, with zeros for them.
        self._by_word: dict[str, int] = {}
        self._by_numbered_word: dict[str, int] = {}
        for index, rule in enumerate(self.rules):
            for word in rule.words:
                kind = kind_of(word)
                by_word = self._by_numbered_word if _has_digit(word) else self._by_word
                by_word[kind] = by_word.get(kind, 0) | 1 << index
        self._takes_digits_alike = tuple(_takes_digits_alike(rule) for rule in self.rules)
        #: Words by three letters of theirs, so that a line is asked for the few that it can hold.
        self._by_letters: dict[str, list[str]] = {}
        for word in {*self._by_word, *self._by_numbered_word}:
            self._by_letters.setdefault(_rarest(word), []).append(word)
        self._plan = asked_once(self._planned)

    def find(self, text: str) -> StatementRule | None:
        """The rule of the text; None where none speaks, or all that it finds is only supposed."""
        text = text[:MATCHED_CHARS]
        plan = self._plan(text)
        rule = _carried_out(plan, text)
        # What is only supposed or advised is no evidence; what explains or decorates is told from the whole.
        if rule is not None and not plan.is_sure and rule.role is not LineRole.CONTEXT:
            sure = asserted(text)
            rule = _carried_out(self._plan(sure), sure)
        return rule

    def _planned(self, kind: str) -> _Plan:
        low = kind.lower() + "\n"
        tried, numbered = self._rules_with_words_of(low)
        left = tried | numbered
        asked: list[tuple[StatementRule, tuple[str, ...]]] = []
        answer = None
        while left and answer is None:
            lowest = left & -left
            left ^= lowest
            index = lowest.bit_length() - 1
            rule = self.rules[index]
            if not tried & lowest:
                asked.append((rule, tuple(word for word in rule.words if kind_of(word) in low)))
            elif not self._takes_digits_alike[index]:
                asked.append((rule, ()))
            elif _matches(rule, kind):
                answer = rule
        return _Plan(tuple(asked), answer, asserted(kind) == kind)

    def _rules_with_words_of(self, low: str) -> tuple[int, int]:
        """Bits of the rules of which a word is in the text, and of those of which one is if the digits are the same."""
        tried = numbered = 0
        for letters in self._by_letters.keys() & {low[at : at + LETTERS] for at in range(len(low) - LETTERS + 1)}:
            for word in self._by_letters[letters]:
                if word in low:
                    tried |= self._by_word.get(word, 0)
                    numbered |= self._by_numbered_word.get(word, 0)
        return tried, numbered


def _carried_out(plan: _Plan, text: str) -> StatementRule | None:
    if plan.asked:
        low = text.lower() + "\n"
        for rule, words in plan.asked:
            if (not words or any(word in low for word in words)) and _matches(rule, text):
                return rule
    return plan.answer


def _matches(rule: StatementRule, text: str) -> bool:
    return rule.pattern.search(text) is not None and not (rule.unless and rule.unless.search(text))


def _takes_digits_alike(rule: StatementRule) -> bool:
    return takes_digits_alike(rule.pattern.pattern) and (rule.unless is None or takes_digits_alike(rule.unless.pattern))


def _has_digit(word: str) -> bool:
    return any(letter.isdigit() for letter in word)


def _rarest(word: str) -> str:
    """Its part that the fewest ordinary lines hold."""
    parts = [word[at : at + LETTERS] for at in range(len(word) - LETTERS + 1)]
    return max(parts, key=lambda part: sum(COMMON.find(letter) if letter in COMMON else len(COMMON) for letter in part))


@cache
def failure_classes() -> Mapping[str, FailureClass]:
    """Classes of failure by name, from classes.toml."""
    return {
        name: FailureClass(
            name=name,
            bucket=Bucket(entry["bucket"]),
            scope=Scope(entry["scope"]),
            action=Action(entry["action"]),
            restart=Restart(entry["restart"]),
            rank=Rank(entry["rank"]),
            says=entry["says"],
            advice=entry["advice"],
        )
        for name, entry in table("classes.toml").items()
    }


@cache
def rules() -> StatementRules:
    """The rules of statements from ``rules/*.toml``. Raises ValueError that names the rule if one is not sound."""
    return StatementRules(
        [_rule(name, entry) for name in tables_in("rules") for entry in table(f"rules/{name}")["rule"]]
    )


@cache
def exception_types() -> Mapping[str, str]:
    """Class of failure by type of exception (without its module), for those that no rule knows by their message."""
    return {kind: name for name, kinds in table("exceptions.toml")["class"].items() for kind in kinds}


@cache
def fallback_types() -> frozenset[str]:
    """Types of exceptions that code catches to try something else.

    What is raised while one of them is handled is the failure.
    """
    return frozenset(table("exceptions.toml")["fallback"])


@cache
def types_asked_first() -> frozenset[str]:
    """Types of exceptions of the network, raised where something is asked for that may be on the disk as well."""
    return frozenset(table("exceptions.toml")["asked_first"])


@cache
def frame_rules() -> tuple[FrameRule, ...]:
    """Which exceptions are told by a frame of their stack, from frames.toml."""
    return tuple(
        FrameRule(
            of=frozenset(entry["of"]), pattern=re.compile(entry["pattern"]), failure=failure_classes()[entry["class"]]
        )
        for entry in table("frames.toml")["frame"]
    )


@cache
def gate_words() -> tuple[str, ...]:
    """Words that a line must have one of to be read, from gate.toml; each once."""
    return tuple(dict.fromkeys(table("gate.toml")["words"]))


def _xid_line(which: str, failure_class: str) -> Mapping[str, Any]:
    """Words and pattern of a line with an Xid. which: "any", or those that ``xid.tsv`` has under this class."""
    codes = r"\d{1,3}" if which == "any" else "|".join(xids_of_class(failure_class))
    return {"literals": ["xid"], "pattern": _XID_LINE.replace("{codes}", f"(?:{codes})")}


def _rule(file: str, entry: Mapping[str, Any]) -> StatementRule:
    name = entry["name"]
    failure = failure_classes()[entry["class"]] if "class" in entry else None
    if "role" in entry:
        role = LineRole(entry["role"])
    elif failure is None:
        raise ValueError(f"{file}: rule {name} has neither class nor role")
    else:
        role = {Rank.CASCADE: LineRole.CASCADE, Rank.TEARDOWN: LineRole.TEARDOWN}.get(failure.rank, LineRole.INITIATING)
    entry = {**entry, **_xid_line(entry["xids"], entry.get("class", ""))} if "xids" in entry else entry
    words = tuple(entry["literals"])
    if not words or any(word != word.lower() or len(word) < LETTERS for word in words):
        raise ValueError(f"{file}: rule {name} needs words of {LETTERS} letters or more, in lower case")
    try:
        pattern = re.compile(entry["pattern"], re.IGNORECASE)
        unless = re.compile(entry["unless"], re.IGNORECASE) if "unless" in entry else None
    except re.error as error:
        raise ValueError(f"{file}: rule {name}: {error}") from None
    return StatementRule(name=name, failure=failure, role=role, words=words, pattern=pattern, unless=unless)
