"""Which operators a stage runs, and which later ones it hands on to."""

from __future__ import annotations

from collections.abc import Collection

from ...telemetry.vocabulary import Kind
from ..cluster.operator import ClusterOperator
from ..entity.operator import EntityOperator
from ..job.operator import JobOperator
from ..operator import Operator
from .stage_elements import Stage


def stage_operators(stage: Stage, disabled: Collection[Kind] = ()) -> list[Operator]:
    """The stage's own operator, then those of later stages in their order. disabled: kinds that are not opened."""
    operators: list[Operator] = [
        JobOperator(listens=True),
        EntityOperator(),
        ClusterOperator(disabled, asks_for_files=True),
    ]
    return operators[(Stage.JOBS, Stage.ENTITIES, Stage.CLUSTERS).index(stage) :]
