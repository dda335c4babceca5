"""Pages that nobody could have kept back: of faults that show only over several jobs, until they have shown. Pure.

A node that fails job after job is one fault, and each job that it ends is somebody's: until several have shown it, the
page for each of them is the first word that its owner gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .story import Story

#: Whether a story may answer a fault.
Concerns = Callable[[Mapping[str, Any], Story], bool]


def first_words(
    faults: Sequence[Mapping[str, Any]], answers: Sequence[Story | None], stories: Sequence[Story], concerns: Concerns
) -> frozenset[str]:
    """Ids of stories whose page was the first for a job that such a fault has struck, before it was told as one.

    answers: of the faults, in their order; they are no first words. Where a fault was never told as one, none counts.
    """
    found: set[str] = set()
    for fault in faults:
        shown = min((story.told.get(kind, math.inf) for story in stories for kind in fault["kinds"]), default=math.inf)
        if not fault.get("signs") or math.isinf(shown):
            continue
        jobs = {story.job for story in answers if story is not None}
        for story in _signs(fault, stories, concerns):
            if story.paged_at < shown and story.job not in jobs and all(story is not answer for answer in answers):
                jobs.add(story.job)
                found.add(story.id)
    return frozenset(found)


def _signs(fault: Mapping[str, Any], stories: Sequence[Story], concerns: Concerns) -> Iterator[Story]:
    """Pages of the fault's signs at its place, where it has one, in the order in which they were sent."""
    for story in sorted((story for story in stories if story.paged), key=lambda story: story.paged_at):
        nodes = {suspect.node for suspect in story.first_suspects}
        is_there = not fault["nodes"] or not nodes.isdisjoint(fault["nodes"])
        if story.paged_kind in fault["signs"] and is_there and concerns(fault, story):
            yield story
