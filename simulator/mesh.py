"""How a job's ranks are split into parallel groups: tensor within a node, then data (with experts), then pipeline.

rank = (stage x data + replica) x tensor + shard: the ranks of a stage are contiguous, so that everything about a
group's members is a reshape and never an index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

#: Group dimensions in the order of their rows in a rank's ring; the default group first.
DIMENSIONS = ("world", "tp", "dp", "ep", "pp")


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """How a job's ranks are split: tensor x data x pipeline, with experts within data. Raises ValueError for sizes that
    do not fit together.
    """

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    experts: int = 1

    def __post_init__(self) -> None:
        if min(self.tensor, self.data, self.pipeline, self.experts) < 1:
            raise ValueError("every size of a mesh is at least 1")
        if self.data % self.experts:
            raise ValueError(f"experts ({self.experts}) must divide data ({self.data})")

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tensor * self.data * self.pipeline

    @property
    def stage_size(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tensor * self.data

    def stage(self, stage: int) -> slice:
        """The ranks of pipeline stage ``stage``, which lie side by side, as a slice of all ranks."""
        return slice(stage * self.stage_size, (stage + 1) * self.stage_size)

    def size_of(self, dimension: str) -> int:
        """Members of one group of the dimension ("world", "tp", "dp", "ep", "pp"). Raises KeyError for another one."""
        sizes = {
            "world": self.world_size,
            "tp": self.tensor,
            "dp": self.data,
            "ep": self.experts,
            "pp": self.pipeline,
        }
        return sizes[dimension]

    @cached_property
    def dimensions(self) -> tuple[str, ...]:
        """Names of dimensions whose groups have more than one member; "world" always."""
        return tuple(name for name in DIMENSIONS if name == "world" or self.size_of(name) > 1)

    def group_of(self, dimension: str) -> NDArray[np.int64]:
        """By rank: the number of its group within the dimension."""
        ranks = np.arange(self.world_size)
        shard = ranks % self.tensor
        replica = ranks // self.tensor % self.data
        stage = ranks // self.stage_size
        if dimension == "world":
            return np.zeros(self.world_size, np.int64)
        if dimension == "tp":
            return np.asarray(stage * self.data + replica)
        if dimension == "dp":
            return np.asarray(stage * self.tensor + shard)
        if dimension == "ep":
            blocks = self.data // self.experts
            return np.asarray((stage * blocks + replica // self.experts) * self.tensor + shard)
        return np.asarray(replica * self.tensor + shard)  # pp

    def groups(self, dimension: str) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(number, members in ascending order) of each group of the dimension."""
        number = self.group_of(dimension)
        order = np.argsort(number, kind="stable")
        size = self.size_of(dimension)
        yield from enumerate(order.reshape(-1, size))

    def reduce(self, dimension: str, values: NDArray[np.float64], function: np.ufunc) -> NDArray[np.float64]:
        """``function`` over each group's members within one stage, broadcast back. values: (stage_size,), of any unit.

        Raises ValueError where groups of the dimension reach over stages.
        """
        size = values.size
        if dimension == "tp":
            shaped = values.reshape(-1, self.tensor)
            return np.broadcast_to(function.reduce(shaped, axis=1, keepdims=True), shaped.shape).reshape(size)
        if dimension == "dp":
            shaped = values.reshape(self.data, self.tensor)
            return np.broadcast_to(function.reduce(shaped, axis=0, keepdims=True), shaped.shape).reshape(size)
        if dimension == "ep":
            three = values.reshape(-1, self.experts, self.tensor)
            return np.broadcast_to(function.reduce(three, axis=1, keepdims=True), three.shape).reshape(size)
        raise ValueError(f"groups of {dimension} do not lie within a stage")


#: Ranks -> a mesh as such jobs have it; others: ``mesh_for``.
def mesh_for(ranks: int, *, pipeline: int = 1, tensor: int = 8) -> Mesh:
    """A mesh of so many ranks: tensor parallel within a node, the rest data parallel, in ``pipeline`` stages.

    Raises ValueError if that does not come out even.
    """
    tensor = min(tensor, ranks)
    data, rest = divmod(ranks, tensor * pipeline)
    if rest or not data:
        raise ValueError(f"{ranks} ranks cannot be split into {tensor} x {pipeline}")
    return Mesh(tensor=tensor, data=data, pipeline=pipeline)
