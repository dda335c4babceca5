"""The step of a small data-parallel job (``DistributedDataParallel``), as one finds it in a script of fifty lines.

Batch, forward, backward with the gradients' exchange behind its kernels, optimizer, and the mean loss of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..telemetry.vocabulary import Op, Phase
from .mesh import Mesh
from .program import Does, ProgramOperation, Recipe


@dataclass(frozen=True, kw_only=True)
class DdpRecipe(Recipe):
    """forward_s, backward_s, optimizer_s: kernels. between_s: what the script does after its optimizer.

    bucket_bytes: of each exchange of gradients, the last one at the end of backward. metrics_groups: dimensions in
    whose groups a number is summed up afterwards, one after the other.
    Raises ValueError for a mesh that is more than data-parallel.
    """

    forward_s: float = 0.5
    backward_s: float = 1.0
    optimizer_s: float = 0.05
    between_s: float = 0.005
    bucket_bytes: tuple[int, ...] = (25 << 20,)
    metrics_groups: tuple[str, ...] = ("world",)
    prefetches: bool = False

    def _stage(self, mesh: Mesh, stage: int, *, saves: bool, evaluates: bool) -> Iterator[ProgramOperation]:
        if mesh.data != mesh.world_size:
            raise ValueError("this program is data-parallel only")
        # A step ends with its optimizer: the mean loss of the last one is called for in this one.
        yield ProgramOperation(does=Does.HOST, phase=Phase.OTHER, work_s=self.between_s)
        last = len(self.metrics_groups) - 1
        for place, group in enumerate(self.metrics_groups):
            yield replace(_all_reduce(4, Phase.OTHER), group=group, may_differ=True, may_swap=place < last)
        yield ProgramOperation(does=Does.SYNC, phase=Phase.OTHER)
        yield from self._between_steps(saves=saves, evaluates=evaluates)
        yield ProgramOperation(does=Does.INPUT, phase=Phase.DATA, work_s=self.input_s)
        yield ProgramOperation(does=Does.COMPUTE, phase=Phase.FORWARD, work_s=self.forward_s)
        for nbytes in self.bucket_bytes:
            yield ProgramOperation(
                does=Does.COMPUTE, phase=Phase.BACKWARD, work_s=self.backward_s / len(self.bucket_bytes)
            )
            yield _all_reduce(nbytes, Phase.BACKWARD)
        yield ProgramOperation(does=Does.COMPUTE, phase=Phase.OPTIMIZER, work_s=self.optimizer_s)


def _all_reduce(nbytes: int, phase: Phase) -> ProgramOperation:
    return ProgramOperation(does=Does.COLLECTIVE, phase=phase, group="world", op=Op.ALL_REDUCE, nbytes=nbytes)
