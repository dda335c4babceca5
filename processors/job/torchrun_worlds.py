"""The worlds of one job: sets of ranks side by side, each with a rank 0 of its own. Two torchruns of one script, RL.

A world goes by the names that its launches have (where their ranks meet, ``identity.world``). A name never heard is the
next attempt of a world whose ranks have all ended (a script that runs one torchrun after the other), or, if there is
none, another world. What is said of the job as a whole is said to all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy

from ...telemetry.records import Block, Event, Flush
from ..operator import Context
from .state.job_state import JobState
from .state.state_rows import is_current, load_job, save_job

#: Of one job; more would only be a fault in how they are named.
MOST_WORLDS = 64
_NAMES = "worlds"


class Worlds:
    """The states of one job's worlds; a working copy of what the tables hold."""

    def __init__(self, job: str) -> None:
        self.states = [JobState(job=job)]
        self._names: dict[str, int] = {}
        self._names_changed = False
        #: Stamp of the last record; 0: none since this copy was made.
        self.heard_ns = 0

    @classmethod
    def load(cls, ctx: Context) -> Worlds:
        """The worlds in the rows of the context's job; one empty world where there are none."""
        worlds = cls(ctx.key)
        row = ctx.state.table(_NAMES).get("names")
        worlds._names = json.loads(row) if row else {}
        count = 1 + max(worlds._names.values(), default=0)
        worlds.states = [load_job(ctx.state.table(_table(n))) or JobState(job=ctx.key) for n in range(count)]
        for number, state in enumerate(worlds.states):
            state.ledger.world = number
        return worlds

    def are_current(self, ctx: Context) -> bool:
        """Whether this working copy is what the context's rows say; it is not after the runner rolled back.

        Each call saves the first state, so its rows tell for all worlds.
        """
        return is_current(self.states[0], ctx.state.table(_table(0)))

    def save(self, ctx: Context) -> None:
        """Writes what has changed of each world to the context's tables."""
        for number, state in enumerate(self.states):
            save_job(state, ctx.state.table(_table(number)))
        if self._names_changed:
            ctx.state.table(_NAMES).put("names", json.dumps(self._names).encode())
            self._names_changed = False

    @property
    def hold_only(self) -> bool:
        """Whether nothing has to be written but blocks that are held, whose row is put already."""
        return not self._names_changed and not any(
            state.unsaved.facts or (state.gathering.due_ns and not state.gathering.is_put) for state in self.states
        )

    def delete(self, ctx: Context) -> None:
        """Deletes all rows of the job."""
        for name in (_NAMES, *(_table(number) for number in range(len(self.states)))):
            table = ctx.state.table(name)
            for row, _ in list(table.rows()):
                table.delete(row)

    @property
    def due_ns(self) -> int:
        """When the next decision of any world is due, a bus stamp in Unix ns; 0 never."""
        states = self.states
        if len(states) == 1:  # asked of every record
            return states[0].next_due_ns()
        return min((due_ns for state in states if (due_ns := state.next_due_ns())), default=0)

    def look_until(self, stamp_ns: int, look: Callable[[JobState], None]) -> None:
        """Calls ``look`` with each world that is due up to ``stamp_ns``, in the order in which they are due.

        ``look`` has to move the world's due time on.
        """
        while 0 < self.due_ns <= stamp_ns:
            due_ns = self.due_ns
            look(next(state for state in self.states if state.next_due_ns() == due_ns))

    def of(self, payload: Block | Flush | Event) -> Sequence[JobState]:
        """The worlds that a record concerns: one, or all where it names no launch. A new name gets a world, free or
        new.
        """
        launch, name = payload.identity.attempt, payload.identity.world
        if not launch:
            return self.states
        for state in self.states:
            if launch in state.attempts.members or launch in state.attempts.past:
                return (state,)
        if name not in self._names:
            place = self._free_place()
            # Should the world that was there come back, it must not push out the one that is there now.
            self._names = {known: where for known, where in self._names.items() if where != place} | {name: place}
            self._names_changed = True
        return (self.states[self._names[name]],)

    def _free_place(self) -> int:
        for number, state in enumerate(self.states):
            if not state.alive():
                return number
        if len(self.states) >= MOST_WORLDS:
            return len(self.states) - 1
        self.states.append(_beside(self.states[0]))
        self.states[-1].ledger.world = len(self.states) - 1
        return len(self.states) - 1


def _table(number: int) -> str:
    return "job" if number == 0 else f"job.{number}"


def _beside(first: JobState) -> JobState:
    """Another world of the same job, which has heard what was said of the job as a whole."""
    state = JobState(cluster=first.cluster, run=first.run, job=first.job)
    state.name, state.judged_by, state.judge_left = first.name, first.judged_by, first.judge_left
    state.nodes.expected = first.nodes.expected
    ends = first.ends
    state.ends.signalled_ns, state.ends.finished_ns, state.ends.exit_code = (
        ends.signalled_ns,
        ends.finished_ns,
        ends.exit_code,
    )
    state.nodes.known = deepcopy(first.nodes.known)
    return state
