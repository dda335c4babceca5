"""What a rank's step is made of, and the words that different tools have for the same part. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class StepPhase(str, Enum):
    """A part of a step. WAIT: inside collectives, until the last member came. RESIDUAL: none of the others."""

    INPUT = "input"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    WAIT = "wait"
    RESIDUAL = "residual"


#: Names of columns without their unit, in lower case, that mean a phase.
WORDS: Mapping[str, StepPhase] = {
    "input": StepPhase.INPUT,
    "input_wait": StepPhase.INPUT,
    "data": StepPhase.INPUT,
    "data_wait": StepPhase.INPUT,
    "data_loading": StepPhase.INPUT,
    "dataloader": StepPhase.INPUT,
    "load": StepPhase.INPUT,
    "h2d": StepPhase.H2D,
    "to_device": StepPhase.H2D,
    "copy": StepPhase.H2D,
    "forward": StepPhase.FORWARD,
    "fwd": StepPhase.FORWARD,
    "backward": StepPhase.BACKWARD,
    "bwd": StepPhase.BACKWARD,
    "optimizer": StepPhase.OPTIMIZER,
    "optimizer_step": StepPhase.OPTIMIZER,
    "opt": StepPhase.OPTIMIZER,
    "checkpoint": StepPhase.CHECKPOINT,
    "ckpt": StepPhase.CHECKPOINT,
    "save": StepPhase.CHECKPOINT,
    "wait": StepPhase.WAIT,
    "comm_wait": StepPhase.WAIT,
    "sync": StepPhase.WAIT,
    "collective_wait": StepPhase.WAIT,
    "residual": StepPhase.RESIDUAL,
    "other": StepPhase.RESIDUAL,
}
#: Columns with the whole step.
STEP_WORDS = frozenset({"step_time", "step_duration", "duration", "total", "iteration_time", "iter_time"})


class Strategy(str, Enum):
    """Where ranks wait for each other: DDP in backward, FSDP in forward too, since it gathers parameters."""

    DDP = "ddp"
    FSDP = "fsdp"


class StragglerSeverity(str, Enum):
    INFO = "info"
    WARN = "warn"
    CRIT = "crit"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """One rank's typical step: seconds per phase; ``step_s`` the whole. A phase that is absent was not measured."""

    rank: int
    step_s: float
    phases_s: Mapping[StepPhase, float] = field(default_factory=dict)

    def of(self, phase: StepPhase) -> float:
        """Seconds of the phase; 0 for one that was not measured."""
        return self.phases_s.get(phase, 0.0)


class StepTimeCause(str, Enum):
    """What the times show. The first four name a rank, the others the job as a whole."""

    INPUT_STRAGGLER = "input_straggler"
    H2D_STRAGGLER = "h2d_straggler"
    COMPUTE_STRAGGLER = "compute_straggler"
    #: One rank comes late, and no measured phase says why.
    STRAGGLER = "straggler"
    #: A whole pipeline stage is slower than the others: the partitioning, not a device.
    STAGE_IMBALANCE = "stage_imbalance"
    #: Another rank is late in every step: pauses, garbage collection, uneven samples.
    WANDERING = "wandering"
    INPUT_BOUND = "input_bound"
    H2D_BOUND = "h2d_bound"
    RESIDUAL_BOUND = "residual_bound"
    COMPUTE_BOUND = "compute_bound"
    BALANCED = "balanced"
    #: Too few steps to say anything.
    WARM_UP = "warmup"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    """``score``: seconds lost over the step's. ``coverage``: share of the lost time that ``phase`` explains, at most 1.

    ``victim``: a typical rank among those that wait. None and "": does not apply, or nobody can tell.
    """

    cause: StepTimeCause
    severity: StragglerSeverity = StragglerSeverity.INFO
    culprit: int | None = None
    #: All that are slow, where it is more than one (a node's ranks); ``node``: where they are, if the rows say so.
    culprits: tuple[int, ...] = ()
    node: str = ""
    victim: int | None = None
    phase: str = ""
    score: float = 0.0
    coverage: float = 0.0
    text: str = ""
