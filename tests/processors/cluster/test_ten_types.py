"""Stories of the ten failure types, told to the operators: the last word is the same in whatever order they come."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.processors.cluster.stage import Signal, Stage
from tests.processors.cluster.stories import ALL, STORIES, Story
from whichrank.processors.cluster.advice import EVICTING
from whichrank.telemetry.records import Event
from whichrank.telemetry.vocabulary import Action


def in_turn(signals: Sequence[Signal], choose: Callable[[int], int]) -> Iterator[Signal]:
    """Each source tells in its own order; which of them is heard next ``choose(how many)`` says."""
    sources: dict[tuple[str, str], list[Signal]] = {}
    for node, payload in signals:
        what = payload.name.value if isinstance(payload, Event) else type(payload).__name__
        sources.setdefault((node, what), []).append((node, payload))
    left = list(sources.values())
    while left:
        source = left[choose(len(left))]
        yield source.pop(0)
        left = [source for source in left if source]


def last_word(story: Story, choose: Callable[[int], int]) -> dict[str, Any]:
    stage = Stage()
    for signal in in_turn([signal for teller in story.signals for signal in teller(stage)], choose):
        stage.hear(signal)
    (document,) = stage.court.pages
    return {name: value for name, value in document.items() if name not in ("revision", "change")}


def first(sources: int) -> int:
    return 0


def last(sources: int) -> int:
    return sources - 1


@pytest.mark.parametrize("of_type", STORIES)
def test_each_type_has_a_story_and_a_control(of_type: str) -> None:
    """A control tells the signal of a cause that is none: it is ruled out, or is nobody's business here."""
    assert len(STORIES) == 10
    stories = STORIES[of_type]
    assert any(story.cause for story in stories)
    assert any(not story.cause and len(story.signals) > 1 for story in stories)


@pytest.mark.parametrize("story", ALL, ids=lambda story: story.name)
def test_each_type_is_told_apart_from_its_neighbours(story: Story) -> None:
    document = last_word(story, first)
    cause = document.get("cause") or {}
    assert (cause.get("condition", ""), document["scope"]) == (story.cause, story.scope.value)
    assert (document["bucket"], document["kind"]) == (story.bucket.value, story.kind.value)
    advised = Action(document["advice"]["action"])
    assert advised is story.action if story.action else advised not in EVICTING
    if story.cause:
        assert cause["entity"] == story.entity
        assert story.device in ("", cause["device"])
        assert [row for row in document["evidence"] if row.get("condition") == story.cause]
    else:
        assert not [row for row in document["evidence"] if "condition" in row]


@pytest.mark.parametrize("story", [story for story in ALL if len(story.signals) > 1], ids=lambda story: story.name)
def test_the_last_word_is_the_same_in_whatever_order_the_signals_come(story: Story) -> None:
    words = last_word(story, first)
    assert last_word(story, last) == words
    for seed in range(6):
        assert last_word(story, random.Random(seed).randrange) == words
