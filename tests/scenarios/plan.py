"""What a scenario is, what is true about it, and the plan that a seed draws from it. Data only."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runner import Job


class Blame(enum.Enum):
    """Whom a right incident names."""

    GUILTY = "the guilty rank"
    DIVERGING = "the diverging rank, scope application; with two ranks, which have no majority, both"
    NOBODY = "nobody"
    NO_INNOCENT = "guilty ranks or nobody: what can be seen from outside may not decide it"


class Pace(enum.Enum):
    """How soon an incident is asked for."""

    INSTANT = "death, stop, exception, mismatch: p95 <= 1 s"
    HANG = "hang in a phase with history: p95 <= max(5 s, 3 steps)"
    STEPS = "straggler: within 10 steps"
    WITHIN = "within the seconds of its own truth, counted from when the others wait, where they say so"
    UNTIMED = "no time asked"


class Ending(enum.Enum):
    """How the job goes on after its fault, so that the runner knows what to wait for."""

    HANGS = "stands still until the runner ends it"
    CRASHES = "ends by itself, by error"
    EITHER = "hangs or crashes, as the backend likes"
    RUNS = "goes on to its normal end"
    TOLD = "ends because the runner asked it to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What happened, by the table in docs/verdicts.md. ``kind`` empty: nothing did, and no incident is right.

    kinds: others that are right too. silence: no incident is right too, and is never late.
    phases: where the suspect loses its time or stands; empty: not judged.
    leaves_stack: whether the guilty rank can still be asked where it is.
    onset_within: steps by which the incident's first bad step may miss the true one; -1: not judged.
    resolves: the fault ends in mid-run, and the incident must end with it.
    words: one of them must stand in the evidence, so that a person learns what ended the rank; empty: not judged.
    severities: what the incident must have been in turn, as its revisions say; empty: not judged.
    within_s: what Pace.WITHIN asks.
    causes: conditions of the node of which one must be named as the cause; empty: none may be.
    scopes: other scopes that are right too.
    incidents: how many there are, one per attempt that failed; each but the first knows of those before it.
    """

    bucket: str = ""
    kind: str = ""
    blame: Blame = Blame.NOBODY
    scope: str = ""
    phases: tuple[str, ...] = ()
    pace: Pace = Pace.UNTIMED
    leaves_stack: bool = False
    onset_within: int = -1
    resolves: bool = False
    words: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    silence: bool = False
    within_s: float = 0.0
    incidents: int = 1
    causes: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One fault, or one clean run, that real jobs are put through.

    fault: name in ``workloads/faults.py``; empty: none is injected inside the job; "slow": the course's own slow-down.
    points: places where it may bite, one is drawn. worlds, step_s: what may be drawn.
    options: as in ``workloads/course.py``; a tuple of values means one of them is drawn.
    guilty_among: ranks from which the guilty are drawn; empty: all. guilty_count: how many, where somebody is to blame.
    signal_to: the runner sends SIGTERM from outside at the drawn step to "launcher" or "run".
    everyone: the fault bites on all ranks.
    before_s, after_s: seconds of the job's past to draw from and of what follows; 0: as the truth's pace needs.
    tail_s: seconds of job after the fault at least, where nothing above asks for more.
    restarts: ``--max-restarts`` of torchrun: the job goes on after its fault, in another attempt.
    arguments, environment: more of both for the job's command. venv: whose torchrun it is, if not this environment's.
    job: another way to start it (two nodes, two jobs): makes a ``runner.Job``, given scenario, plan and folder.
    beside: runs in a thread beside the job, from its start until the event is set: whatever comes from outside
    (a busy neighbour, signals, a switch). It may stamp an onset with ``Job.stamp``.
    skip: why this machine cannot run it; empty: it can. A scenario left out is a demand not shown.
    alone: whether another job beside it could change what is measured (``draw.goes_alone``).
    repeats: how often it is run; 0: as often as the command says, clean runs once.
    sees_all: whether every step must be in the capture of a quiet run; False: the level is switched off now and then.
    twin: name of the scenario that this one, on the test process group, must be no worse than.
    """

    name: str
    truth: Truth
    ending: Ending
    workloads: tuple[str, ...]
    fault: str = ""
    points: tuple[str, ...] = ("forward",)
    worlds: tuple[int, ...] = (2, 3, 4, 5, 6)
    step_s: tuple[float, float] = (0.05, 4.0)
    options: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    clean_s: float = 0.0
    guilty_among: tuple[int, ...] = ()
    guilty_count: int = 1
    signal_to: str = ""
    alone: bool = True
    repeats: int = 0
    everyone: bool = False
    before_s: float = 0.0
    after_s: float = 0.0
    tail_s: float = 6.0
    restarts: int = 0
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    venv: str = ""
    job: Callable[[Scenario, Plan, Path], Job] | None = None
    beside: Callable[[Job, threading.Event], None] | None = None
    sees_all: bool = True
    twin: str = ""
    skip: Callable[[], str] = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run of a scenario, every choice made. ``guilty``: ranks on which the fault bites."""

    scenario: str
    repeat: int
    seed: int
    workload: str
    world_size: int
    guilty: tuple[int, ...]
    fault: str
    point: str
    onset_step: int
    steps: int
    step_s: float
    jitter: float
    jitter_seed: int
    options: dict[str, float]
