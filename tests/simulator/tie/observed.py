"""What the operators make of a run's capture, real or simulated: incidents, and each step's times as they compute them.

The same code reads both: a real run's folder as ``whichrank run`` leaves it, and a simulated one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichrank.commands.embedded.embedded_operators import INPUT_TOPICS, make_operators, wanted_metrics
from whichrank.commands.run_folder.run_directory import RunDirectory
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.operator import Context, Timer
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.records import Incident, Record
from whichrank.transport.embedded import EmbeddedBus

#: Time that passes after the last message, so that what is held back is told.
AFTERMATH_NS = 3_000_000_000
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepsSeen:
    """Plain steps in order, as the operator closed them; nanoseconds.

    steps, begin_ns, duration_ns: (n,); self_ns: (n, ranks); phase_self_ns: (n, ranks, phases). begin_ns is Unix time.
    """

    steps: Ints
    begin_ns: Ints
    duration_ns: Ints
    self_ns: Ints
    phase_self_ns: Ints

    @property
    def wait_ns(self) -> Ints:
        """(n, ranks): what is left of the step, as ``straggler`` has it."""
        return np.asarray(np.maximum(0, self.duration_ns[:, None] - self.self_ns), np.int64)

    def between(self, first: int, last: int) -> StepsSeen:
        """Of steps first to last, both included."""
        chosen = (self.steps >= first) & (self.steps <= last)
        return StepsSeen(
            steps=self.steps[chosen],
            begin_ns=self.begin_ns[chosen],
            duration_ns=self.duration_ns[chosen],
            self_ns=self.self_ns[chosen],
            phase_self_ns=self.phase_self_ns[chosen],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """revisions: of all incidents."""

    revisions: Sequence[Mapping[str, Any]]
    steps: StepsSeen


class WatchedJobOperator(JobOperator):
    """The operator itself; the steps that it has closed are kept, also those that it forgets later."""

    def __init__(self, *, listens: bool) -> None:
        super().__init__(listens=listens)
        self._seen: dict[int, tuple[int, int, Ints, Ints]] = {}

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        super().process(records, ctx)
        self._note(ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        super().on_timer(timer, ctx)
        self._note(ctx)

    def _note(self, ctx: Context) -> None:
        for state in self._jobs[ctx.key].states if ctx.key in self._jobs else ():
            self._note_steps(state)

    def _note_steps(self, state: JobState) -> None:
        times = state.steps.times
        kept = times.phase_self_ns.shape[0]  # phases are kept of the newest steps only
        for place in range(-min(kept, times.steps.size), 0):
            step = int(times.steps[place])
            if step not in self._seen:
                self._seen[step] = (
                    int(times.begin_ns[place]),
                    int(times.duration_ns[place]),
                    times.self_ns[place].copy(),
                    times.phase_self_ns[place].copy(),
                )

    def steps_seen(self) -> StepsSeen:
        """Raises ValueError where none was closed."""
        if not self._seen:
            raise ValueError("the operator has closed no plain step of this run")
        steps = sorted(self._seen)
        rows = [self._seen[step] for step in steps]
        return StepsSeen(
            steps=np.array(steps),
            begin_ns=np.array([row[0] for row in rows]),
            duration_ns=np.array([row[1] for row in rows]),
            self_ns=np.stack([row[2] for row in rows]),
            phase_self_ns=np.stack([row[3] for row in rows]),
        )


def observe(folder: Path) -> Observed:
    """folder: of a run. Raises Unusable for one without a description, OSError and ValueError for an empty one."""
    directory = RunDirectory(folder)
    description = directory.read_run()
    listens = description.listens
    watched = WatchedJobOperator(listens=listens)
    operators = [
        watched if isinstance(operator, JobOperator) else operator for operator in make_operators(listens=listens)
    ]
    revisions: list[Mapping[str, Any]] = []

    def collect(record: Record) -> None:
        if isinstance(record.payload, Incident):
            revisions.append(dict(record.payload.document))

    bus = EmbeddedBus(directory.capture, read_only=True)
    runner = EmbeddedRunner(
        bus,
        None,
        operators,
        collect,
        live=False,
        input_topics=INPUT_TOPICS,
        metrics=wanted_metrics(),
    )
    runner.drain()
    if description.ended is None:
        runner.let_time_pass(AFTERMATH_NS)
    runner.close()
    bus.close()
    return Observed(revisions=revisions, steps=watched.steps_seen())
