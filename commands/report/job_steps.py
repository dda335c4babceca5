"""Blocks of one job, in the order of the bus, into a grid of ranks and steps. Memory is bounded; nothing is read twice.

A step is measured once every rank has passed it by some more: ends of calls are told later than steps. The step in
which an attempt stopped is never told as a step: progress tells who waited in it and who did not.
"""

from __future__ import annotations

import numpy as np

from ...telemetry.records import Block
from .attempt import AttemptRows
from .grid import Column, Grid
from .measure import measure_steps

#: So many steps after a step its calls' ends have been told.
SETTLE_STEPS = 4
#: Who is further behind than this holds up nobody.
FURTHEST_BEHIND = 64
#: Steps that are measured at once, and rows at which it is done earlier: 80 bytes each.
STEPS_AT_ONCE = 16
ROWS_AT_ONCE = 2_000_000
#: More rows than these without any step that could be measured: the oldest go, and are counted.
MOST_ROWS = 6_000_000


class JobSteps:
    """``take`` blocks of one job; ``finish`` at the end; then ``grid``."""

    def __init__(self) -> None:
        self.grid = Grid()
        #: Unix seconds at which each attempt was first heard of.
        self.attempts: list[float] = []
        self.rows_left_out = 0
        self._launches: dict[str, tuple[int, int]] = {}  # a number of ours, and its attempt
        self._nodes: dict[str, int] = {}
        self._now: AttemptRows | None = None
        self._looked_at = -1

    def take(self, block: Block) -> None:
        """Takes in a block of the job; steps that are complete go into the grid.

        Late words of an attempt that is over are passed over.
        """
        if not block.rows.size:
            return
        now = self._attempt(block)
        if now is None:  # late words of an attempt that is over
            return
        now.take(block)
        newest = now.newest_step()
        due = newest - now.measured >= STEPS_AT_ONCE + SETTLE_STEPS
        if newest > self._looked_at and (due or now.rows() > ROWS_AT_ONCE):
            self._looked_at = newest
            self._measure(now, now.horizon(FURTHEST_BEHIND) - SETTLE_STEPS)
            while len(now.calls) > 1 and now.rows() > MOST_ROWS:  # jobs without steps have calls all the same
                self.rows_left_out += now.calls.pop(0).size

    def end_rank(self, launch: str, rank: int, at_s: float) -> None:
        """Notes that a rank's process was gone at ``at_s`` (Unix seconds), if its launch is of the present attempt."""
        known = self._launches.get(launch)
        if known is not None and self._now is not None and known[1] == self._now.number:
            self._now.end_rank(rank, at_s)

    def finish(self) -> None:
        """Ends the present attempt: what is left of it goes into the grid, as far as it was told."""
        now, self._now, self._looked_at = self._now, None, -1
        if now is None:
            return
        self._measure(now, now.newest_step())
        standing = now.standing()
        if standing is not None:
            step = standing.step
            column = Column(
                attempt=now.number, first_step=step, last_step=step, begin_s=standing.begin_s, unfinished=True
            )
            self.grid.add(column, standing.ranks, standing.own_s, standing.waited_s)

    def _attempt(self, block: Block) -> AttemptRows | None:
        """That of this launch. A launch whose ranks another one of the same attempt has already is of the next one."""
        word, ranks = block.identity.attempt, np.unique(block.rows["rank"])
        known = self._launches.get(word)
        if known is None:
            launch = len(self._launches)
            if self._now is None or self._now.has_others(ranks, launch):
                self.finish()
                self._now = AttemptRows(number=len(self.attempts))
                self.attempts.append(block.time_ns / 1e9)
            known = self._launches[word] = (launch, self._now.number)
        if self._now is None or known[1] != self._now.number:
            return None
        self._now.belongs(ranks, known[0], self._nodes.setdefault(block.identity.node, len(self._nodes)))
        return self._now

    def _measure(self, now: AttemptRows, horizon: int) -> None:
        """Every step up to the horizon."""
        if horizon <= now.measured:
            return
        steps, calls, sums = now.split_off(horizon)
        for each in measure_steps(steps, calls, sums, now.shape(), now.device_groups()):
            begin_s = now.begin_s.get(each.step, 0.0)
            column = Column(attempt=now.number, first_step=each.step, last_step=each.step, begin_s=begin_s)
            self.grid.add(column, each.ranks, each.own_s, each.waited_s)
        now.begin_s = {step: begin_s for step, begin_s in now.begin_s.items() if step > horizon}
