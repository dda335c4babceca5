"""One fault from its beginning to the comparison: waits for the job, does it, waits for the verdict, has it undone.

What judges the job learns nothing of it. The run's incidents are read, as anybody could, and set beside what was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.response_outcomes import Outcome
from ..run_folder.run_directory import INCIDENTS_FILE, RunDirectory, Unusable
from ..support.verdict_check import differences, incidents_of_faults, last_revisions, seconds_until_seen
from .injected_kinds import FACTS, InjectedKind
from .injection_trail import InjectionTrail
from .signal_faults import Injection
from .target_job import TargetJob
from .undo_guard import UndoGuard

LOOK_S = 0.1
#: A verdict has to stand so long: a first word may be followed by a better one, or by a second incident.
STANDS_S = 3.0
#: So long after the run's end its last words may still come.
AFTER_END_S = 2.0


class Answer(str, Enum):
    """What the comparison says."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_TOLD = "not told"


@dataclass(slots=True, kw_only=True)
class GameDay:
    """What was done, and what came of it. done_s: Unix seconds; None: the rank never came to the place of the fault.

    wrong: what does not fit. undone: whether it was put back; None where nothing can be.
    """

    kind: InjectedKind
    rank: int | None
    target: str
    run: Path
    step: int = -1
    done_s: float | None = None
    undone: bool | None = None
    verdict: IncidentDocument | None = None
    wrong: list[str] = field(default_factory=list)

    @property
    def answer(self) -> Answer:
        """Right, wrong, or not told."""
        if not self.wrong:
            return Answer.RIGHT
        return Answer.NOT_TOLD if self.verdict is None else Answer.WRONG

    @property
    def seen_after_s(self) -> float | None:
        """From the fault to the verdict, in seconds."""
        return seconds_until_seen(self.verdict, self.done_s)


def play(
    day: GameDay,
    fault: Injection,
    job: TargetJob,
    *,
    seconds: float,
    make_trail: Callable[[], InjectionTrail],
    has_ended: Callable[[], bool] = lambda: False,
) -> None:
    """Does the fault to the job for so many seconds at most, and fills in what came of it.

    It ends earlier once the verdict is right and has stood for a while. has_ended: whether the job's run is over.
    Raises Unusable, OSError where it cannot be done. Whatever is raised, it is undone.
    """
    guard = UndoGuard(fault.undo)
    trail: InjectionTrail | None = None
    try:
        trail = make_trail()
        facts = FACTS[day.kind]
        undoing = f"{seconds:g} s at most, then {facts.undone}" if facts.undone else "it cannot be undone"
        trail.write(Outcome.BEGUN, day.kind.value, day.target, f"injects {day.kind.value}: {day.target}; {undoing}")
        try:
            fault.begin()
            _wait(day, fault, job, seconds, has_ended)
        finally:
            fault.halt()
            day.done_s, day.step = fault.done_s, fault.step
            _end(day, guard, trail)
        _compare(day, job)
        day.verdict = day.verdict if day.done_s is not None else None
    finally:
        guard.close()
        if trail is not None:
            trail.close()


def _wait(day: GameDay, fault: Injection, job: TargetJob, seconds: float, has_ended: Callable[[], bool]) -> None:
    """Until the time is over, the verdict is right and stands, or the run has ended and said its last word."""
    until_s = time.monotonic() + seconds
    right_since_s: float | None = None
    while time.monotonic() < until_s:
        time.sleep(LOOK_S)
        fault.tend()
        day.done_s = fault.done_s
        if day.done_s is None:
            continue
        _compare(day, job)
        if day.wrong:
            right_since_s = None
        elif right_since_s is None:
            right_since_s = time.monotonic()
        if right_since_s is not None and time.monotonic() - right_since_s >= STANDS_S:
            return
        if has_ended() or _is_over(job):
            until_s = min(until_s, time.monotonic() + AFTER_END_S)


def _is_over(job: TargetJob) -> bool:
    try:
        return RunDirectory(job.run).read_run().ended is not None
    except Unusable:
        return False


def _end(day: GameDay, guard: UndoGuard, trail: InjectionTrail) -> None:
    """Has it undone, and writes that down."""
    is_undone = guard.close()
    facts = FACTS[day.kind]
    day.undone = is_undone if facts.undone else None
    if not is_undone:
        text = f"{day.kind.value}: {day.target}: it could NOT be undone: look at it yourself"
        trail.write(Outcome.FAILED, day.kind.value, day.target, text)
    elif day.done_s is None:
        text = f"{day.kind.value}: {day.target}: never done"
        trail.write(Outcome.FAILED, day.kind.value, day.target, text)
    else:
        what = facts.undone or "done; it cannot be undone"
        trail.write(Outcome.DONE, day.kind.value, day.target, f"{day.kind.value}: {day.target}: {what}")


def _compare(day: GameDay, job: TargetJob) -> None:
    """Sets the verdict and what is wrong with it."""
    if day.done_s is None:
        day.wrong = ["the fault was never done: the rank did not come to its place in time"]
        return
    facts = FACTS[day.kind]
    named = incidents_of_faults(last_revisions(job.run / INCIDENTS_FILE).values(), since_s=day.done_s)
    day.verdict = named[0] if named else None
    day.wrong = differences(named, facts.kinds, day.rank, several=not facts.of_rank)
    if day.kind is InjectedKind.kernel_line and day.verdict is not None and day.verdict.cause is None:
        day.wrong.append("no cause instead of what the kernel's line says")
