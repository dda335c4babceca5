"""Lines that take minutes to measure, kept beside the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...simulator.scoring.summary import ScoreLine
from .kept_documents import NotKept, read_lines_of_table, write_lines
from .kept_runs import KeptRuns


def kept_lines(kept: KeptRuns, name: str) -> list[ScoreLine]:
    """The lines that were kept under this name; empty: they were not measured by this code."""
    found = kept.read(f"lines-{name}")
    try:
        return [] if found is None else read_lines_of_table(found)
    except NotKept:
        return []


def measured_lines(kept: KeptRuns, name: str, measure: Callable[[], Sequence[ScoreLine]]) -> list[ScoreLine]:
    """The lines as kept under this name, or measured now and kept.

    Raises OSError where nothing can be kept, and whatever ``measure`` raises.
    """
    lines = kept_lines(kept, name)
    if not lines:
        lines = list(measure())
        kept.write(f"lines-{name}", write_lines(lines))
    return lines
