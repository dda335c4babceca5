"""What is remembered of a text holds for all that differ in their digits only."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from whichrank.diagnosis import alike
from whichrank.diagnosis.alike import asked_once, takes_digits_alike
from whichrank.diagnosis.job_log import details, log_prefix, log_progress, statements, targets, tracebacks, ways
from whichrank.diagnosis.job_log.assertion import asserted, hedges
from whichrank.diagnosis.job_log.carriers import PATTERNS
from whichrank.diagnosis.job_log.model import LineRole
from whichrank.diagnosis.job_log.taxonomy import MATCHED_CHARS, StatementRule, StatementRules, rules

LOGS = Path(__file__).parents[1] / "outside" / "second_set" / "job_logs"
DIGIT = re.compile(r"\d")
#: Patterns that a question asked once per kind is answered by.
ASKED_ONCE = (
    *(pattern for _, pattern in PATTERNS),
    *(pattern.pattern for pattern in (ways.TAG_WITHIN, ways.REPEATED, ways.PLACE_BEHIND, ways.ACTOR_RANK)),
    *(pattern.pattern for pattern in (ways.ACTOR_ADDRESS, ways.GROUP_MARKS, ways.LOGGER_AFTER, ways.NCCL_HEAD)),
    *(pattern.pattern for pattern in (log_prefix.RANK_IN_TEXT, log_prefix.RANK_AND_NODE, log_prefix.NODE_IN_TEXT)),
    *(pattern.pattern.decode() for pattern in (log_progress.HINT, log_progress.SAVED, log_progress.STEP)),
    *(pattern.pattern.decode() for pattern in (log_progress.NOT_PROGRESS, log_progress.OTHER_WORK)),
    *(pattern.pattern for pattern in (hedges().suppose, hedges().lists, hedges().advise)),
    *(pattern.pattern for pattern in statements.BEGINNING_PATTERNS),
    *(pattern.pattern for pattern in details.LOOSER),
    tracebacks.BARE.pattern,
)


def texts() -> Iterator[str]:
    """Lines of logs, and the same with other digits in the same places."""
    draw = random.Random(5)
    for path in sorted(LOGS.glob("*.log")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if DIGIT.search(line):
                yield line
                yield DIGIT.sub(lambda _: str(draw.randrange(10)), line)


@pytest.mark.parametrize("pattern", ASKED_ONCE)
def test_what_is_asked_once_takes_digits_alike(pattern: str) -> None:
    assert takes_digits_alike(pattern)


@pytest.mark.parametrize("pattern", ["signal 9", r"mlx[45]_\d", r"[1-9]\d*", r"0*1\b", r"(\w)\1", r"\[0-9", "[+-3]"])
def test_what_tells_digits_apart_is_known(pattern: str) -> None:
    assert not takes_digits_alike(pattern)


@pytest.mark.parametrize("pattern", [r"\d{1,3}", "[0-9a-f]{4}", "[A-Za-z0-9]", "(?P<p2>x)", r"x{,3}y{2,}", r"\w+"])
def test_what_does_not_is_known(pattern: str) -> None:
    assert takes_digits_alike(pattern)


def plainly(table: StatementRules, text: str) -> StatementRule | None:
    low = text.lower() + "\n"
    for rule in table.rules:
        is_tried = any(word in low for word in rule.words)
        if is_tried and rule.pattern.search(text) and not (rule.unless and rule.unless.search(text)):
            return rule
    return None


def test_rules_are_found_as_by_trying_each() -> None:
    """One table for all texts: what it remembers of one is asked for the next."""
    found = 0
    for text in texts():
        text = text[:MATCHED_CHARS]
        expected = plainly(rules(), text)
        if expected is not None and expected.role is not LineRole.CONTEXT and asserted(text) != text:
            expected = plainly(rules(), asserted(text))
        assert rules().find(text) is expected, text
        found += expected is not None
    assert found > 1000


def test_carriers_are_taken_off_as_by_walking_through_them() -> None:
    told = 0
    for text in texts():
        line = ways.stripped(ways.NOBODY_KNOWN, 1, text)
        assert line == ways.along(ways.way_of(text), ways.NOBODY_KNOWN, 1, text)
        told += line.rank is not None
    assert told > 1000


def test_targets_are_found_as_by_trying_each_form(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = [(text, targets.target_of(text)) for text in texts()]
    monkeypatch.setattr(targets, "_matching", lambda text: targets.forms())
    assert sum(target != targets.NOBODY for _, target in remembered) > 100
    for text, target in remembered:
        words = {word for form in targets.forms() for word in form.words if word in text.lower()}
        if target == targets.NOBODY and not words:
            continue
        assert targets.target_of(text) == target, text


def test_many_kinds_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "KINDS", 3)
    asked = []
    ask = asked_once(lambda text: asked.append(text) or len(text))  # type: ignore[func-returns-value]
    assert [ask(text) for text in ("a1", "a2", "\ud800b", "\ud800b", "cc", "dd", "a3")] == [2, 2, 2, 2, 2, 2, 2]
    assert asked == ["a0", "\ud800b", "cc", "dd", "a0"]
