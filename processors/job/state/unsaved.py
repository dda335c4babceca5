"""Which parts of a job have changed since its rows of state were written."""

from __future__ import annotations

from dataclasses import dataclass, field

from .rank_texts import RankTexts


@dataclass(slots=True)
class Unsaved:
    """facts, progress, steps: whether that row has to be written. revision: number of the last change that was.

    gathering: whether the row of gathered blocks holds something. lists: whether that of lists of groups has to be
    written. rank_texts: those of the ranks in the row of facts.
    """

    facts: bool = True
    progress: bool = True
    steps: bool = True
    revision: int = 0
    gathering: bool = False
    lists: bool = False
    rank_texts: RankTexts = field(default_factory=RankTexts)

    def change_all(self) -> None:
        """Marks facts, progress and steps as to be written."""
        self.facts = self.progress = self.steps = True
