"""A step while it is made and after it: what it took, who stands in it, what it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.vocabulary import Op, Phase
from .noise import Draws
from .program import Does, StepProgram
from .propagate import StageTimes
from .rank_processes import Processes
from .recording import StagePlan, StepRecording

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditions:
    """What the next step meets by way of resources; by rank. Paces are times by those of a sound GPU or host.

    rate: bytes per second of its group, by dimension.
    """

    kernel_pace: Floats
    launch_pace: Floats
    input_s: Floats
    save_s: Floats
    rate: dict[str, Floats]
    differs: NDArray[np.bool_] | None
    swaps: NDArray[np.bool_] | None = None
    evaluation: Floats | None = None
    loss: Floats | None = None  # by that of a usual batch; nan: it overflows
    pauses: float = 0.0  # of a rank's steps, in which its interpreter cleans up


@dataclass(kw_only=True, eq=False)
class LiveStep:
    step: int
    program: StepProgram
    plans: list[StagePlan]
    draws: Draws
    conditions: Conditions
    begin_s: Floats
    device_s: Floats
    times: StageTimes
    recordings: list[StepRecording]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A step that all have ended: for the ledger. Times of the simulation, and what of it was spent on what.

    stalled_s, starting_s, straggler_s: by how much it would have been shorter with the same draws, had nothing stood
    still, had its kernels been warm, and had each rank's GPU and host been as fast as the job's fastest. save_s,
    evaluation_s, data_s: in the step that it would have been then, so that no second is in two of them.
    """

    step: int
    begin_s: float
    end_s: float
    save_s: float
    evaluation_s: float
    data_s: float
    stalled_s: float
    starting_s: float
    straggler_s: float


def length_s(program: StepProgram, times: StageTimes, phase: Phase, until_s: float = np.inf) -> float:
    """Seconds from when the last rank comes to this phase until the last one leaves it, or ``until_s``;
    0 without one.
    """
    begin_s, end_s = edges_s(program, times, phase)
    return max(0.0, min(end_s, until_s) - begin_s) if begin_s < until_s else 0.0


def edges_s(program: StepProgram, times: StageTimes, phase: Phase) -> tuple[float, float]:
    """When the last rank comes to this phase, and when the last one leaves it; (inf, inf) for a step without it."""
    begins, ends = [], []
    for stage, operations in enumerate(program.stages):
        places = [place for place, operation in enumerate(operations) if operation.phase is phase]
        if places:
            begins.append(float(times.called[stage][places[0]].max()))
            ends.append(float(times.ended[stage][places[-1]].max()))
    return (max(begins), max(ends)) if begins else (np.inf, np.inf)


def idle_from_s(live: LiveStep) -> float:
    """When all ranks have done what a script does between two steps (evaluate, save) and would begin the step's work.

    inf: never. Where it does nothing there, when the last one begins the step.
    """
    after = (
        edges_s(live.program, live.times, phase)[1] for phase in (Phase.EVAL, Phase.CHECKPOINT) if _has(live, phase)
    )
    return max(after, default=float(live.begin_s.max()))


def _has(live: LiveStep, phase: Phase) -> bool:
    return any(operation.phase is phase for operations in live.program.stages for operation in operations)


def stands_since_s(live: LiveStep, processes: Processes) -> float:
    """When the first rank came to stand for ever in this step while its process lived; inf: none does."""
    found_s = np.inf
    for stop in processes.active_stops().values():
        held = np.isfinite(stop.since_s) & np.isinf(stop.until_s) & (stop.since_s < processes.ended_s)
        for rank in np.flatnonzero(held).tolist():
            stage, inside = divmod(rank, live.program.mesh.stage_size)
            never = np.flatnonzero(np.isinf(live.times.ended[stage][:, inside]))
            if never.size:
                called_s = float(live.times.called[stage][never[0], inside])
                found_s = min(found_s, max(float(stop.since_s[rank]), called_s))
    return found_s


def call_sizes(
    plan: StagePlan, program: StepProgram, stage: int, differs: NDArray[np.bool_] | None, ranks: slice
) -> Ints | None:
    """Bytes, (calls of the plan, ranks), where another branch of the code makes some with another size; None: nowhere.

    differs: by rank of the job, whether it takes that branch; ranks: those of the stage.
    """
    if differs is None or not differs[ranks].any():
        return None
    sizes = np.array([[call.nbytes] for call in plan.calls]).repeat(differs[ranks].size, axis=1)
    for number, call in enumerate(plan.calls):
        if program.stages[stage][call.place].may_differ and call.op == int(Op.ALL_REDUCE):
            sizes[number, differs[ranks]] //= 2
    return sizes


def saved_steps(finished: Sequence[Finished], live: Sequence[LiveStep], now_s: float) -> int:
    """Steps made when the newest checkpoint that is whole by ``now_s`` began to be written; 0: none is."""
    saved = [each.step for each in finished if each.save_s > 0.0]
    saved += [each.step for each in live if edges_s(each.program, each.times, Phase.CHECKPOINT)[1] <= now_s]
    return max(saved, default=0)


def saves_of(live: LiveStep) -> tuple[Floats, Floats]:
    """By rank, when it begins to write its part of a checkpoint in this step, and when it has written
    it; inf: never.
    """
    began = np.full(live.program.mesh.world_size, np.inf)
    ended = began.copy()
    for stage, operations in enumerate(live.program.stages):
        for place, operation in enumerate(operations):
            if operation.does is Does.SAVE:
                ranks = live.program.mesh.stage(stage)
                began[ranks], ended[ranks] = live.times.began[stage][place], live.times.ended[stage][place]
    return began, ended


def saving_ranks(steps: Sequence[LiveStep], now_s: float) -> NDArray[np.bool_]:
    """By rank, whether it writes a checkpoint at ``now_s``. Without steps: an array of one False."""
    saving = np.zeros(steps[0].program.mesh.world_size if steps else 1, bool)
    for live in steps:
        if _has(live, Phase.CHECKPOINT):
            began, ended = saves_of(live)
            saving |= (began <= now_s) & (now_s < ended)
    return saving
