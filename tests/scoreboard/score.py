"""What one line of the scoreboard is: files of the corpora, what is asked of them, and how many rows came out right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """``right`` of ``total``; a time-out, an abstention and a row that could not be read are wrong.

    wrong: a line for each wrong row, to be read by a person: which row, expected, said.
    measure: the figure that is held against the bar where it is not right / total (a macro-F1, a count of positives).
    changed: (right, total) after mechanical changes of the input, where they were made.
    """

    right: int
    total: int
    wrong: Sequence[str] = ()
    measure: float | None = None
    changed: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """``files``: paths or globs under the corpora's folder that this covers. ``bar``: of ``measure`` or right / total.

    at_most: the bar is an upper one (false positives).
    ask: the words of the issue.
    """

    name: str
    files: Sequence[str]
    ask: str
    bar: float
    score: Callable[[Path], Score]
    at_most: bool = False
