"""The steps of an attempt as time goes on: computed when they begin, and again when something happens within them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..telemetry.vocabulary import Phase
from .clock import to_ns
from .fabric import LATENCY_S
from .live_steps import Conditions, Finished, LiveStep, call_sizes, length_s, saves_of
from .mesh import Mesh
from .noise import Noise, draw, interpreter_pauses
from .numbers import NumericHealth
from .program import Does, Recipe, StepProgram
from .propagate import StageTimes, StepGiven, propagate
from .rank_processes import Processes
from .recording import StagePlan, StepRecording, record

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Time of the first step's kernels by that of a later one's: compiling, first calls, cold caches.
FIRST_STEP_PACE = 4.0
#: Finished steps that are kept: what they say of a rank (its last call) is asked for later.
_KEPT = 2


@dataclass(kw_only=True, eq=False)
class AttemptSteps:
    """The steps of an attempt. phase_before, since_ns: what the ranks do before the first step, and since when.

    begin_s: by rank, when it begins the first step. steps_only: calls are not recorded.
    """

    mesh: Mesh
    recipe: Recipe
    noise: Noise
    words: tuple[object, ...]
    begin_s: Floats
    phase_before: Phase
    since_ns: Ints
    look_offset_ns: Ints
    conditions: Callable[[int], Conditions]
    steps_only: bool = False
    live: list[LiveStep] = field(default_factory=list)
    numbers: NumericHealth = field(default_factory=NumericHealth)
    finished: list[Finished] = field(default_factory=list)
    _programs: dict[tuple[bool, bool], tuple[StepProgram, list[StagePlan]]] = field(default_factory=dict)

    @property
    def runs_ahead(self) -> bool:
        """Whether hosts return from calls before their devices make them, as with nccl."""
        return self.recipe.backend == "nccl"

    def extend(self, until_s: float, processes: Processes) -> None:
        """Computes all steps that some rank begins until ``until_s``."""
        while not self.live or bool((self.live[-1].times.host_s <= until_s).any()):
            if not self.live and not bool((self.begin_s <= until_s).any()):
                return
            self._begin(processes)

    def lay_out_first(self, processes: Processes) -> None:
        """Computes the first step, which says where ranks stand before it begins; nothing if any step is there."""
        if not self.live:
            self._begin(processes)

    def recompute(self, processes: Processes) -> None:
        """Computes all live steps again, as something has happened within them."""
        for place, live in enumerate(self.live):
            if place:
                live.begin_s, live.device_s = self.live[place - 1].times.host_s, self.live[place - 1].times.device_s
            self._compute(live, place, processes)

    def prune(self, before_ns: int, processes: Processes) -> None:
        """Moves steps that ended before ``before_ns`` from ``live`` to ``finished``; the last two always stay live."""
        while len(self.live) > _KEPT and max(rec.last for rec in self.live[0].recordings) < before_ns:
            self.finished.append(self.summary(self.live[0], processes))
            self.live.pop(0)

    def recordings(self) -> list[list[StepRecording]]:
        """By stage, the recordings of live steps, oldest first."""
        return [[live.recordings[stage] for live in self.live] for stage in range(self.mesh.pipeline)]

    def next_call_s(self, ranks: Ints, after_s: float) -> Floats:
        """By rank given, when its host next does anything after ``after_s``; ``after_s`` while it waits for its device.

        inf: never, in the steps computed so far.
        """
        found = np.full(ranks.size, np.inf)
        size = self.mesh.stage_size
        for live in self.live:
            for number, rank in enumerate(ranks.tolist()):
                stage, inside = divmod(rank, size)
                called = live.times.called[stage][:, inside]
                later = called[called > after_s]
                if later.size:
                    found[number] = min(found[number], float(later.min()))
                syncs = [place for place, op in enumerate(live.program.stages[stage]) if op.does is Does.SYNC]
                ended = live.times.ended[stage][:, inside]
                if any(called[place] <= after_s < ended[place] for place in syncs):
                    found[number] = after_s
        return found

    def first_call_s(self, rank: int, step: int) -> float:
        """When this rank's host first calls anything in this step of the attempt; inf: not yet known, or never."""
        stage, inside = divmod(rank, self.mesh.stage_size)
        called = [live.times.called[stage][:, inside] for live in self.live if live.step == step]
        return min((float(times.min()) for times in called), default=float("inf"))

    def saves(self) -> Iterator[tuple[int, Floats]]:
        """For each live step that writes a checkpoint: the step, and by rank when it begins to; inf: never."""
        for live in self.live:
            began, _ = saves_of(live)
            if np.isfinite(began).any():
                yield live.step, began

    def phase_at(self, rank: int, at_s: float) -> tuple[int, Phase]:
        """Step and phase that the rank is in at ``at_s``, by the recordings of live steps; step 0 before the first."""
        step, phase = -1, self.phase_before
        stage, inside = divmod(rank, self.mesh.stage_size)
        at_ns = round(at_s * 1e9)
        for live in self.live:
            recording = live.recordings[stage]
            if recording.begin[inside] <= at_ns:
                step = live.step
                for (_, word), times in zip(recording.plan.phases, recording.phase_at, strict=True):
                    if times[inside] <= at_ns:
                        phase = Phase(word)
        return max(step, 0), phase

    def waits_for_input(self, at_ns: Ints) -> NDArray[np.bool_]:
        """By rank, whether it fetches data or saves at ``at_ns``. at_ns: by rank, ns of the simulation."""
        waits = np.zeros(self.mesh.world_size, bool)
        if not self.live:
            return waits
        for stage in range(self.mesh.pipeline):
            ranks = self.mesh.stage(stage)
            for live in self.live:
                times = live.times
                for place, operation in enumerate(live.program.stages[stage]):
                    if operation.does in (Does.INPUT, Does.SAVE):
                        began = to_ns(times.began[stage][place])
                        ended = to_ns(times.ended[stage][place])
                        waits[ranks] |= (began <= at_ns[ranks]) & (at_ns[ranks] < ended)
        return waits

    def oldest_open_s(self, now_s: float) -> Floats:
        """By rank, since when its oldest collective is open at ``now_s``; inf: none is."""
        oldest = np.full(self.mesh.world_size, np.inf)
        for live in self.live:
            for stage in range(self.mesh.pipeline):
                places = live.program.recorded(stage)
                called, ended = live.times.called[stage][places], live.times.ended[stage][places]
                collective = [live.program.stages[stage][place].does is Does.COLLECTIVE for place in places]
                is_open = (called <= now_s) & (ended > now_s) & np.array(collective)[:, None]
                first = np.where(is_open, called, np.inf).min(axis=0)
                ranks = self.mesh.stage(stage)
                oldest[ranks] = np.minimum(oldest[ranks], first)
        return oldest

    # --- one step -----------------------------------------------------------------------------------------------------
    def _begin(self, processes: Processes) -> None:
        step = self.live[-1].step + 1 if self.live else 0
        recipe = self.recipe
        saves = recipe.saves(step)
        evaluates = bool(step and recipe.evaluates_every) and step % recipe.evaluates_every == 0
        program, plans = self._program(saves, evaluates)
        conditions = self.conditions(step)
        draws = draw(self.noise, program, step, *self.words)
        if conditions.pauses:
            more = interpreter_pauses(conditions.pauses, program, *self.words, step)
            draws = replace(draws, pauses=[*draws.pauses, *more])
        live = LiveStep(
            step=step,
            program=program,
            plans=plans,
            draws=self.numbers.after(draws, conditions.loss),
            conditions=conditions,
            begin_s=self.live[-1].times.host_s if self.live else self.begin_s,
            device_s=self.live[-1].times.device_s if self.live else self.begin_s,
            times=None,  # type: ignore[arg-type]
            recordings=[],
        )
        self.live.append(live)
        self._compute(live, len(self.live) - 1, processes)

    def _compute(self, live: LiveStep, place: int, processes: Processes) -> None:
        live.times = propagate(live.program, self._given(live, processes))
        live.recordings = [
            self._record(live, place, stage, processes.silent_from_ns) for stage in range(self.mesh.pipeline)
        ]

    def _given(
        self, live: LiveStep, processes: Processes, *, stands: bool = True, is_cold: bool = True, is_even: bool = False
    ) -> StepGiven:
        """What the step meets, or would meet if nothing stood still, its kernels were warm, all ranks equally fast."""
        given = live.conditions
        first = FIRST_STEP_PACE if live.step == 0 and is_cold else 1.0
        kernel_pace = np.full_like(given.kernel_pace, given.kernel_pace.min()) if is_even else given.kernel_pace
        launch_pace = np.full_like(given.launch_pace, given.launch_pace.min()) if is_even else given.launch_pace
        return StepGiven(
            host_s=live.begin_s,
            device_s=live.device_s,
            kernel_pace=kernel_pace * live.draws.pace * first,
            launch_pace=launch_pace * first,
            input_s=given.input_s,
            save_s=given.save_s,
            rate=given.rate,
            latency_s=LATENCY_S,
            jitter=live.draws.jitter,
            pauses=live.draws.pauses,
            stops=processes.active_stops() if stands else {},
            differs=given.differs,
            swaps=given.swaps,
            evaluation=given.evaluation,
            runs_ahead=self.runs_ahead,
            launch_share=self.recipe.launch_share,
        )

    def _record(self, live: LiveStep, place: int, stage: int, silent_from: Ints) -> StepRecording:
        ranks, plan = self.mesh.stage(stage), live.plans[stage]
        earlier = self.live[place - 1].recordings[stage] if place else None
        if earlier is not None:
            before, phase, since = earlier.after(), earlier.plan.phases[-1][1], earlier.phase_at[-1]
            started = earlier.started_after()
        elif live.recordings:
            old = live.recordings[stage]
            before, phase, since = old.before, old.phase_before, old.since
            started = old.started_before
        else:
            before, phase, since = {}, int(self.phase_before), self.since_ns[ranks]
            started = {}
        return record(
            live.times,
            stage,
            plan,
            step=live.step,
            begin_s=live.begin_s[ranks],
            end_s=self._ends(live, stage),
            look_offset_ns=self.look_offset_ns[ranks],
            silent_from=silent_from[ranks],
            before=before,
            started_before=started,
            phase_before=phase,
            since=since,
            loss=live.draws.loss[ranks],
            norm=live.draws.norm[ranks],
            nbytes=call_sizes(plan, live.program, stage, live.conditions.differs, ranks),
        )

    def _ends(self, live: LiveStep, stage: int) -> Floats:
        """A rank's step has ended when its host does not stand in it any more."""
        return live.times.host_s[self.mesh.stage(stage)]

    def _program(self, saves: bool, evaluates: bool) -> tuple[StepProgram, list[StagePlan]]:
        known = self._programs.get((saves, evaluates))
        if known is None:
            program = self.recipe.program(self.mesh, saves=saves, evaluates=evaluates)
            plans = [
                StagePlan.of(program, stage, on_device=self.runs_ahead, steps_only=self.steps_only)
                for stage in range(self.mesh.pipeline)
            ]
            known = self._programs[saves, evaluates] = program, plans
        return known

    def summary(self, live: LiveStep, processes: Processes) -> Finished:
        """What the time of a step that has ended was spent on: computed again without what slowed it down."""

        def again(**differs: bool) -> StageTimes:
            return propagate(live.program, self._given(live, processes, **differs))

        made = [live.times] * 4
        if processes.active_stops():
            made[1:] = [again(stands=False)] * 3
        if live.step == 0:
            made[2:] = [again(stands=False, is_cold=False)] * 2
        if np.ptp(live.conditions.kernel_pace) or np.ptp(live.conditions.launch_pace):
            made[3] = again(stands=False, is_cold=False, is_even=True)
        ends_s = [float(times.host_s.max()) for times in made]
        stalled_s, starting_s, straggler_s = (max(0.0, more - less) for more, less in pairwise(ends_s))
        return Finished(
            step=live.step,
            begin_s=float(live.begin_s.max()),
            end_s=ends_s[0],
            save_s=length_s(live.program, made[-1], Phase.CHECKPOINT),
            evaluation_s=length_s(live.program, made[-1], Phase.EVAL),
            data_s=length_s(live.program, made[-1], Phase.DATA),
            stalled_s=stalled_s,
            starting_s=starting_s,
            straggler_s=straggler_s,
        )
