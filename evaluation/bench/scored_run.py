"""What a run of the bench was worth, and what a chunk of days without a fault: as both are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...simulator.ground_truth import Truth
from ...simulator.scoring.run_score import RunScore
from .one_run import AskedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A run, as it is kept. score: None where it could not be laid out. memory_bytes, wall_s: of its process.

    truth: the faults, harmless ones too. said: last revisions of its incidents, a line of JSON each, as the detector
    wrote them; not read again. is_late: it was not done in time, so that another try may come out otherwise.
    """

    asked: AskedRun
    score: RunScore | None
    simple: RunScore | None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    rank_hours: float = 0.0
    memory_bytes: int = 0
    problem: str = ""
    truth: Sequence[Truth] = ()
    said: Sequence[bytes] = ()
    is_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """What came of a chunk. steps: of all its ranks. said: kinds of all incidents, pages first.

    is_late: as of ``Scored``.
    """

    gpu_days: float
    pages: int
    rank_steps: int
    wall_s: float
    said: tuple[str, ...] = ()
    problem: str = ""
    is_late: bool = False
