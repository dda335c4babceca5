"""What a rank does in a step: a list of operations per pipeline stage, and an order in which they can be computed.

Work is in seconds of a sound, undisturbed GPU or core; sizes are bytes. Nothing here knows a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from ..telemetry.vocabulary import Op, Phase
from .mesh import Mesh


class Does(Enum):
    COMPUTE = "compute"  # a kernel
    COLLECTIVE = "collective"
    SEND = "send"  # to the peer stage; does not wait for the receiver
    RECV = "recv"
    INPUT = "input"  # the host waits for the next batch
    HOST = "host"  # the host works
    SYNC = "sync"  # the host waits until the device has done everything (loss.item())
    SAVE = "save"  # the host writes its part of a checkpoint
    EVALUATE = "evaluate"  # kernels without a training step


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOperation:
    """What a rank does at one place of its step. group: dimension of the mesh. peer: stage of a send or receive.

    may_differ: another branch of the code (process.other_branch) calls it with another size. may_swap: and another one
    (process.other_order) calls the next one first.
    """

    does: Does
    phase: Phase
    work_s: float = 0.0
    group: str = ""
    op: Op = Op.UNKNOWN
    nbytes: int = 0
    peer: int = -1
    may_differ: bool = False
    may_swap: bool = False

    @property
    def is_recorded(self) -> bool:
        """Whether c10d is called, which is what a ring records."""
        return self.does in (Does.COLLECTIVE, Does.SEND, Does.RECV)


@dataclass(frozen=True, kw_only=True)
class StepProgram:
    """The operations of a step. stages: those of each stage's ranks, in their order."""

    mesh: Mesh
    stages: tuple[tuple[ProgramOperation, ...], ...]

    @cached_property
    def order(self) -> tuple[tuple[int, int], ...]:
        """(stage, place in its list) of all operations, each after what it depends on.

        The world's collectives come once per stage, in a row. Raises ValueError for stages that wait for each other for
        ever.
        """
        return tuple(_in_order(self.stages))

    def recorded(self, stage: int) -> list[int]:
        """Places, in the stage's list, of operations that a rank's hooks see: calls of c10d."""
        return [place for place, operation in enumerate(self.stages[stage]) if operation.is_recorded]


def _in_order(stages: Sequence[Sequence[ProgramOperation]]) -> Iterator[tuple[int, int]]:
    at = [0] * len(stages)
    sent: dict[tuple[int, int], int] = {}  # (from, to) -> sends that are done
    taken: dict[tuple[int, int], int] = {}
    left = sum(map(len, stages))
    while left:
        moved = 0
        for stage, operations in enumerate(stages):
            while at[stage] < len(operations):
                operation = operations[at[stage]]
                if operation.does is Does.RECV:
                    way = (operation.peer, stage)
                    if sent.get(way, 0) <= taken.get(way, 0):
                        break
                    taken[way] = taken.get(way, 0) + 1
                elif operation.does is Does.COLLECTIVE and operation.group == "world":
                    break
                elif operation.does is Does.SEND:
                    way = (stage, operation.peer)
                    sent[way] = sent.get(way, 0) + 1
                yield stage, at[stage]
                at[stage] += 1
                moved += 1
        ready = [place < len(ops) and ops[place].group == "world" for place, ops in zip(at, stages, strict=True)]
        if all(ready):
            for stage in range(len(stages)):
                yield stage, at[stage]
                at[stage] += 1
                moved += 1
        if not moved:
            raise ValueError(f"the stages of this program wait for each other for ever, at {at}")
        left -= moved


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training program of the design's reference load: steps of ``step_s``, 20 calls of c10d per rank and step.

    saves_every, evaluates_every: after so many steps, 0 never. microbatches: of a pipeline, 0: as few as keep it busy.
    launch_share: of its kernels' time that the host takes to launch them. prefetches: a batch is fetched while the last
    one is worked on, else when it is asked for. first_evaluates: rank 0 does, and the others wait for it. guards: rank
    0 ends the job when the gradient norm is no number.
    """

    step_s: float = 2.0
    input_s: float = 0.4
    prefetches: bool = True
    microbatches: int = 0
    tensor_bytes: int = 128 << 20
    data_bytes: int = 2_000_000_000
    stage_bytes: int = 64 << 20
    launch_share: float = 0.4
    saves_every: int = 0
    save_bytes_per_rank: int = 2_000_000_000
    evaluates_every: int = 0
    evaluation_s: float = 20.0
    input_bytes: int = 4_000_000
    backend: str = "nccl"
    timeout_s: float = 600.0
    first_step_s: float = 8.0
    first_evaluates: bool = False
    guards: bool = False

    def saves(self, step: int) -> bool:
        """Whether this step of an attempt (from 0) comes with a checkpoint; step 0 never."""
        return bool(step and self.saves_every) and step % self.saves_every == 0

    def program(self, mesh: Mesh, *, saves: bool = False, evaluates: bool = False) -> StepProgram:
        """The operations of a step over this mesh. saves: with a checkpoint; evaluates: with an evaluation."""
        stages = tuple(
            tuple(self._stage(mesh, stage, saves=saves, evaluates=evaluates)) for stage in range(mesh.pipeline)
        )
        return StepProgram(mesh=mesh, stages=stages)

    def _stage(self, mesh: Mesh, stage: int, *, saves: bool, evaluates: bool) -> Iterator[ProgramOperation]:
        # A step ends with its optimizer (``trackers/step_counter.py``): what a script does after it is the next one's.
        yield from self._between_steps(saves=saves, evaluates=evaluates)
        yield ProgramOperation(does=Does.INPUT, phase=Phase.DATA, work_s=self.input_s)
        # Exchange and input take their own time; what is left of a step is kernels.
        work_s = 0.75 * self.step_s
        if mesh.pipeline == 1:
            yield from self._plain(mesh, work_s)
        else:
            yield from self._pipelined(mesh, stage, work_s)
        yield ProgramOperation(does=Does.COMPUTE, phase=Phase.OPTIMIZER, work_s=0.04 * work_s)
        # Where no layer is shared, another branch of the code can only show in what all ranks do.
        summed = _collective("world", Op.ALL_REDUCE, 8, Phase.OPTIMIZER, may_differ=mesh.tensor == 1)
        yield replace(summed, may_swap=mesh.data > 1)
        if mesh.data > 1:
            yield _collective("dp", Op.ALL_GATHER, self.data_bytes, Phase.OPTIMIZER)
        yield ProgramOperation(does=Does.SYNC, phase=Phase.OPTIMIZER)
        yield ProgramOperation(does=Does.HOST, phase=Phase.OTHER, work_s=0.005)

    def _between_steps(self, *, saves: bool, evaluates: bool) -> Iterator[ProgramOperation]:
        if evaluates:
            yield ProgramOperation(does=Does.EVALUATE, phase=Phase.EVAL, work_s=self.evaluation_s)
            yield ProgramOperation(does=Does.SYNC, phase=Phase.EVAL)
            if self.first_evaluates:
                yield _collective("world", Op.BARRIER, 0, Phase.OTHER)
        if saves:
            yield ProgramOperation(does=Does.SAVE, phase=Phase.CHECKPOINT, nbytes=self.save_bytes_per_rank)
            yield _collective("world", Op.BARRIER, 0, Phase.CHECKPOINT)
            yield ProgramOperation(does=Does.SYNC, phase=Phase.CHECKPOINT)

    def _plain(self, mesh: Mesh, work_s: float) -> Iterator[ProgramOperation]:
        """Six layers' worth each way, tensor parallel within, gradients scattered as they come."""
        for _ in range(6):
            yield ProgramOperation(does=Does.COMPUTE, phase=Phase.FORWARD, work_s=0.32 * work_s / 6)
            yield from self._shared(mesh, Phase.FORWARD)
        for _ in range(6):
            yield ProgramOperation(does=Does.COMPUTE, phase=Phase.BACKWARD, work_s=0.64 * work_s / 6)
            yield from self._shared(mesh, Phase.BACKWARD)
            if mesh.data > 1:
                yield _collective("dp", Op.REDUCE_SCATTER, self.data_bytes, Phase.BACKWARD)

    def _pipelined(self, mesh: Mesh, stage: int, work_s: float) -> Iterator[ProgramOperation]:
        """One forward, one backward (1F1B)."""
        last = mesh.pipeline - 1
        count = self.microbatches or max(2, mesh.pipeline)
        share_s = work_s / (count + last)
        ahead = min(last - stage, count)
        for microbatch in range(count + ahead):
            if microbatch < count:
                if stage:
                    yield _p2p(Does.RECV, stage - 1, self.stage_bytes, Phase.FORWARD)
                yield ProgramOperation(does=Does.COMPUTE, phase=Phase.FORWARD, work_s=0.32 * share_s)
                yield from self._shared(mesh, Phase.FORWARD)
                if stage < last:
                    yield _p2p(Does.SEND, stage + 1, self.stage_bytes, Phase.FORWARD)
            if microbatch >= ahead:
                if stage < last:
                    yield _p2p(Does.RECV, stage + 1, self.stage_bytes, Phase.BACKWARD)
                yield ProgramOperation(does=Does.COMPUTE, phase=Phase.BACKWARD, work_s=0.64 * share_s)
                yield from self._shared(mesh, Phase.BACKWARD)
                if stage:
                    yield _p2p(Does.SEND, stage - 1, self.stage_bytes, Phase.BACKWARD)
        if mesh.data > 1:  # as much as without stages: a rank holds as much of the larger model
            for _ in range(2):
                yield _collective("dp", Op.REDUCE_SCATTER, 3 * self.data_bytes, Phase.BACKWARD)

    def _shared(self, mesh: Mesh, phase: Phase) -> Iterator[ProgramOperation]:
        if mesh.tensor > 1:
            yield _collective("tp", Op.ALL_REDUCE, self.tensor_bytes, phase, may_differ=phase is Phase.FORWARD)
        if mesh.experts > 1:
            yield _collective("ep", Op.ALL_TO_ALL, self.stage_bytes, phase)


def _collective(group: str, op: Op, nbytes: int, phase: Phase, *, may_differ: bool = False) -> ProgramOperation:
    return ProgramOperation(does=Does.COLLECTIVE, phase=phase, group=group, op=op, nbytes=nbytes, may_differ=may_differ)


def _p2p(does: Does, peer: int, nbytes: int, phase: Phase) -> ProgramOperation:
    op = Op.SEND if does is Does.SEND else Op.RECV
    return ProgramOperation(does=does, phase=phase, group="pp", op=op, nbytes=nbytes, peer=peer)
