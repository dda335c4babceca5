"""A job's life: its attempts one after the other, what the scheduler and its checkpoints make of it, and its ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..telemetry.vocabulary import Phase
from . import errors
from .cluster_topology import Topology
from .fabric import Flows
from .ground_truth import GroundTruth, TimeUse
from .jobs import JobSpec, State
from .live_steps import Conditions, Finished, idle_from_s, length_s, saved_steps, stands_since_s
from .node_agents import NodeClocks
from .simulated_attempt import Ships, SimulatedAttempt

Says = Callable[[float, int, str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadStep:
    """A step of the run that goes wrong at a rank whenever it is made.

    what: "raises", "access" (a kernel reads where it may not), "numbers" (its loss is ``factor`` times a usual one).
    """

    rank: int
    step: int
    what: str
    factor: float = 1.0


class RunningJob:
    def __init__(
        self,
        spec: JobSpec,
        *,
        seed: int,
        topology: Topology,
        clocks: NodeClocks,
        conditions: Callable[[int], Conditions],
        says: Says,
        ledger: GroundTruth,
        is_usable: Callable[[int], bool],
        begins: Callable[[RunningJob], None],
        joins: Callable[[], NDArray[np.float64]],
        moves: Callable[[], NDArray[np.float64]],
        flush_s: float,
    ) -> None:
        """Opens the job in ``ledger``; it is queued.

        clocks: by node of the cluster. is_usable: whether the scheduler finds nothing wrong with a node. begins: lets a
        new attempt meet what is down already. joins: by node of the cluster, whether what starts there finds the
        others. moves: whether its next launch brings its ranks to its nodes in another order.
        """
        self.state = State.QUEUED
        self.attempt: SimulatedAttempt | None = None
        self.granted = True
        self._seed, self._topology, self._conditions, self._says = seed, topology, conditions, says
        self._clocks, self._is_usable, self._begins, self._ledger = clocks, is_usable, begins, ledger
        self._joins, self._moves = joins, moves
        self._flush_s = flush_s
        self._place(spec)
        self.starts_s = spec.start_s
        self._launches = 0
        self._bad_steps: list[BadStep] = []
        self._saved = 0  # steps of the whole run that a checkpoint holds
        self._booked = 0  # finished steps of this attempt that stand in the ledger
        self._was_taken = self._was_pushed = False  # its nodes were, since its last launch; by another job
        self._done_s = np.inf  # when it had made all of its steps
        ledger.open(spec.name, spec.asked_s, gpus=spec.mesh.world_size)

    @property
    def is_running(self) -> bool:
        """Whether it has an attempt, also one that has ended but whose agents have not told everything yet."""
        return self.attempt is not None

    def is_due(self, until_s: float) -> bool:
        """Whether it is to be launched before ``until_s``: granted, not ended, and without an attempt."""
        waits = self.attempt is None and self.state is not State.ENDED and self.granted
        return waits and self.starts_s < until_s

    def holds(self, node: int) -> bool:
        """Whether nobody else can have this node (its number in the cluster): the job runs on it, or restarts and keeps
        it.
        """
        if node not in self.spec.nodes:
            return False
        between = self.state is State.RESTARTING and self.granted and not self.spec.launcher.requeues
        return self.attempt is not None or (between and not self._was_pushed)

    def preempt(self, at_s: float) -> None:
        """Ends its attempt at ``at_s``, for a job that comes first; it begins again when its nodes are free."""
        self._was_taken = self._was_pushed = True
        if self.attempt is not None:
            self.attempt.terminate(at_s)

    def advance(self, until_s: float) -> None:
        """Launches the job if it is due and its nodes are usable, then lets all happen that happens by itself until
        ``until_s``.
        """
        if self.attempt is None:
            if not self.is_due(until_s):
                return
            if not self._replace_nodes():
                self.starts_s = until_s
                return
            self._launch()
        assert self.attempt is not None
        self.attempt.advance(until_s)
        for bad in self._bad_steps:
            if bad.what == "raises":
                errors.in_step(self.attempt, bad.rank, bad.step)
            elif bad.what == "access":
                errors.bad_access_in_step(self.attempt, bad.rank, bad.step)
        if self.spec.steps and not self._is_done:
            self._finish_if_done(until_s)

    def have_bad_step(self, rank: int, at_s: float, what: str, factor: float = 1.0) -> None:
        """The step that comes next goes wrong at this rank, whenever it is made. The job must have an attempt.

        what, factor: as in ``BadStep``.
        """
        assert self.attempt is not None
        steps = self.attempt.steps
        steps.extend(at_s, self.attempt.processes)
        step = steps.live[-1].step + 1 if steps.live else 0
        bad = BadStep(rank=rank, step=self.attempt.steps_before + step, what=what, factor=factor)
        self._bad_steps.append(bad)

    def loss_of_batches(self, step: int) -> NDArray[np.float64]:
        """By rank, the loss of its batch by that of a usual one. step: of this attempt."""
        loss = np.ones(self.gpus.size)
        before = self.attempt.steps_before if self.attempt is not None else 0
        for bad in self._bad_steps:
            if bad.what == "numbers" and bad.step == before + step:
                loss[bad.rank] = bad.factor
        return loss

    def tell_of_agent(self, node: int, at_s: float) -> None:
        """The agent of a node (its number in the cluster) is told to end at ``at_s``. Nothing where the job is not on
        it.
        """
        if self.attempt is not None and node in self.spec.nodes:
            self.attempt.end_agent(self.spec.nodes.index(node), at_s)

    def ship(self, from_s: float, until_s: float, ships: Ships, heard_until_s: NDArray[np.float64]) -> None:
        """Gives ``ships`` what the job's agents send in this window of seconds; ends the attempt once they have told
        everything.

        heard_until_s: by node of the job, when its agent ends, in seconds.
        """
        if self.attempt is None:
            return
        self.attempt.ship(from_s, until_s, ships, heard_until_s)
        self._book()
        if self.attempt.ended_s + 1.5 < from_s:  # its agents have told everything
            self._end_attempt()

    def settle(self, until_s: float) -> None:
        """Books what is still under way at ``until_s``, where the run ends, as what it is by now."""
        name, number = self.spec.name, max(self._launches - 1, 0)
        if self.attempt is not None:
            self._book()
            first_end_s = float(self.attempt.processes.ended_s.min())
            self._book_live(until_s)
            goes_on = any(live.times.host_s.max() < np.inf for live in self.attempt.steps.live[-1:])
            goes_on = goes_on or np.isinf(self.attempt.first_step_s)
            if goes_on and first_end_s > until_s:  # in the middle of a step
                bucket = TimeUse.PRODUCTIVE if self.attempt.first_step_s < until_s else self._start
                step = self.attempt.steps_before + self.attempt.steps.live[-1].step
                self._ledger.add(name, number, bucket, until_s, step)
            self._ledger.add(name, number, TimeUse.STALLED, min(first_end_s, until_s))
            self._ledger.add(name, number, TimeUse.SHUTDOWN, min(self.attempt.ended_s, until_s))
        waits = TimeUse.RESTARTING if self.state is State.RESTARTING else TimeUse.QUEUED
        if self.state is not State.ENDED:
            is_planned = bool(self._launches) and (self._was_taken or not self.granted)
            self._ledger.add(name, number, TimeUse.PLANNED if is_planned else waits, until_s)

    def grant(self, granted: bool, at_s: float) -> None:
        """The scheduler takes the job's nodes away at ``at_s``, which ends its attempt, or gives them back, which lets
        it start.
        """
        if self.attempt is not None and not granted:
            self.attempt.terminate(at_s)
        if granted and not self.granted and not self._launches:
            self.starts_s = max(self.starts_s, at_s)
        elif granted and not self.granted:
            self.starts_s = max(self.starts_s, at_s + self.spec.launcher.restart_s)
            self._was_taken = True
        self.granted = granted

    # --- where it runs ------------------------------------------------------------------------------------------------
    def _place(self, spec: JobSpec) -> None:
        self.spec = spec
        self.gpus: NDArray[np.int64] = spec.gpus(self._topology)
        self.node_of_rank = np.repeat(np.array(spec.nodes), spec.ranks_per_node)
        self.flows = Flows(spec.name, spec.mesh, self.gpus, self._topology)

    def _replace_nodes(self) -> bool:
        """Spare nodes for those that the scheduler would not use again. False: there are too few."""
        if (
            self.spec.launcher.moves or self._moves()[0]
        ) and self._launches:  # another allocation: every rank on another node
            there = [*self.spec.nodes[1:], *self.spec.spares, self.spec.nodes[0]]
            count = len(self.spec.nodes)
            self._place(replace(self.spec, nodes=tuple(there[:count]), spares=tuple(there[count:])))
        spares = [node for node in self.spec.spares if self._is_usable(node)]
        nodes = list(self.spec.nodes)
        for place, node in enumerate(nodes):
            if not self._is_usable(node):
                if not spares:
                    return False
                nodes[place] = spares.pop(0)
        if tuple(nodes) != self.spec.nodes:
            left = tuple(node for node in self.spec.spares if node not in nodes)
            self._place(replace(self.spec, nodes=tuple(nodes), spares=left))
        return True

    # --- attempts -----------------------------------------------------------------------------------------------------
    def _launch(self) -> None:
        waited = TimeUse.QUEUED if not self._launches else TimeUse.PLANNED if self._was_taken else TimeUse.RESTARTING
        self._was_taken = self._was_pushed = False
        self._ledger.add(self.spec.name, max(self._launches - 1, 0), waited, self.starts_s)
        self.attempt = SimulatedAttempt(
            self.spec,
            number=self._launches,
            began_s=self.starts_s,
            steps_before=self._saved,
            seed=self._seed,
            cluster=self._topology.cluster,
            node_names=[self._topology.node_name(node) for node in self.spec.nodes],
            clocks=NodeClocks(
                mono_ns=self._clocks.mono_ns[list(self.spec.nodes)], wall_ns=self._clocks.wall_ns[list(self.spec.nodes)]
            ),
            conditions=self._conditions,
            says=self._says,
            joins=self._joins()[self.node_of_rank] > 0,
            flush_s=self._flush_s,
        )
        self._launches += 1
        self._booked = 0
        self._begins(self)
        self.state = State.RUNNING

    def _end_attempt(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        name, number = self.spec.name, attempt.number
        ended_s = attempt.ended_s
        first_end_s = float(attempt.processes.ended_s.min())
        saved = saved_steps(attempt.steps.finished, attempt.steps.live, first_end_s)
        self._book_live(first_end_s)
        if not self._is_done:
            self._ledger.lose(name, number, attempt.steps_before + saved)
        self._book_unfinished(first_end_s)
        if saved:
            self._saved = attempt.steps_before + saved
        self._ledger.add(name, number, TimeUse.STALLED, first_end_s)
        self._ledger.add(name, number, TimeUse.SHUTDOWN, ended_s)
        self.attempt = None
        if self._is_done or (self._launches > self.spec.launcher.most_restarts and not self._was_taken):
            self.state = State.ENDED
            return
        self.state = State.RESTARTING
        self.starts_s = ended_s + self.spec.launcher.restart_s

    def _book(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        finished = attempt.steps.finished
        for each in finished[self._booked :]:
            self._book_step(each)
        self._booked = len(finished)

    def _book_live(self, until_s: float) -> None:
        """Steps that had ended by then, and are not forgotten yet."""
        attempt = self.attempt
        assert attempt is not None
        for live in attempt.steps.live:
            has_gone_on = self._is_done and live.step + attempt.steps_before >= self.spec.steps
            if float(live.times.host_s.max()) <= until_s and not has_gone_on:
                self._book_step(attempt.steps.summary(live, attempt.processes))

    def _book_step(self, each: Finished) -> None:
        attempt = self.attempt
        assert attempt is not None
        if each.step == 0:
            self._book_start(each.begin_s)
        at_s = each.begin_s
        for bucket, spent_s in (
            (TimeUse.EVALUATION, each.evaluation_s),
            (TimeUse.SAVE, each.save_s),
            (TimeUse.DATA_STALL, each.data_s),
            (self._start, each.starting_s),
            (TimeUse.STALLED, each.stalled_s),
            (TimeUse.STRAGGLER, each.straggler_s),
        ):
            at_s = min(at_s + spent_s, each.end_s)
            self._ledger.add(self.spec.name, attempt.number, bucket, at_s)
        total = attempt.steps_before + each.step
        self._ledger.add(self.spec.name, attempt.number, TimeUse.PRODUCTIVE, each.end_s, total)

    @property
    def _start(self) -> TimeUse:
        return TimeUse.RESTARTING if self._launches > 1 else TimeUse.STARTING

    def _book_start(self, until_s: float) -> None:
        """From the launch until the first step begins, or nothing more comes."""
        attempt = self.attempt
        assert attempt is not None
        name, number = self.spec.name, attempt.number
        if attempt.restored:
            self._ledger.add(name, number, self._start, min(attempt.restores_s, until_s))
            self._ledger.add(name, number, TimeUse.RESTORE, until_s)
        else:
            self._ledger.add(name, number, self._start, until_s)

    def _book_unfinished(self, first_end_s: float) -> None:
        """The step that never ended: what was saved or evaluated in it, and its work until something stood still.

        After the job's last step there is no work in it.
        """
        attempt = self.attempt
        assert attempt is not None
        name, number = self.spec.name, attempt.number
        live = next((live for live in attempt.steps.live if live.times.host_s.max() > first_end_s), None)
        if live is None or float(live.begin_s.max()) >= first_end_s:
            if not attempt.steps.finished and (live is None or not live.step):
                self._book_start(first_end_s)
            return
        if live.step == 0:
            self._book_start(float(live.begin_s.max()))
        stands_s = min(stands_since_s(live, attempt.processes), first_end_s)
        at_s = float(live.begin_s.max())
        for bucket, phase in ((TimeUse.EVALUATION, Phase.EVAL), (TimeUse.SAVE, Phase.CHECKPOINT)):
            at_s += length_s(live.program, live.times, phase, stands_s)
            self._ledger.add(name, number, bucket, at_s)
        self._ledger.add(name, number, TimeUse.SHUTDOWN if self._is_done else TimeUse.REWORK, stands_s)

    @property
    def _is_done(self) -> bool:
        return self._done_s < np.inf

    def _finish_if_done(self, until_s: float) -> None:
        """All steps are made: what the script does after the last one, and its end."""
        attempt = self.attempt
        assert attempt is not None
        for live in attempt.steps.live:
            if attempt.steps_before + live.step == self.spec.steps and (done_s := idle_from_s(live)) <= until_s:
                self._done_s = done_s
                attempt.finish(done_s)
                return
