"""What if: a step's operations replayed with ideal durations, all of them or some, to say what slows the job. Pure.

Ideal is the mean over comparable operations for compute and the median of the transfer for communication (A8).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .pipeline_operations import Node, OpKind, PipelineOperation, graph_of, rule_of

#: A job is slow when its steps take that many times the ideal ones.
SLOW = 1.1
#: That share of the loss must vanish with the suspects' slowness.
EXPLAINS = 0.5
#: The slowest workers that a bad device could be among.
WORST_WORKERS_SHARE = 0.03
#: Forward and backward of a microbatch this much alike mean that the samples decide, not the devices.
SAMPLES_CORRELATION = 0.9
MIN_SPREAD = 0.05

Key = TypeVar("Key", int, str)


@dataclass(frozen=True, slots=True)
class Keep:
    """Which operations keep their real duration: those whose ``field`` is (or is not) among the values."""

    field: str
    values: frozenset[int | str]
    is_among: bool = True

    def keeps(self, operation: PipelineOperation) -> bool:
        """Whether this operation keeps its measured duration."""
        return (getattr(operation, self.field) in self.values) is self.is_among


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """``slowdown``: steps over ideal steps. ``removal_*``: share of the loss that goes away if those alone were ideal.

    ``only_*``: slowdown if only those were as they are, the worst first.
    """

    steps: int
    slowdown: float
    per_step: Mapping[int, float]
    gap_slowdown: float
    removal_workers: float
    removal_last_stage: float
    only_stage: tuple[tuple[int, float], ...]
    only_data_rank: tuple[tuple[int, float], ...]
    only_name: tuple[tuple[str, float], ...]
    worst_workers: tuple[int, ...]
    correlation: float
    verdict: str
    text: str


def what_if(operations: Sequence[PipelineOperation]) -> Slowdown:
    """How much slower the steps were than with ideal durations, and which workers, stages or operations make the loss.

    Raises ValueError without an operation that takes time.
    """
    if not operations:
        raise ValueError("no operations")
    by_step: dict[int, list[PipelineOperation]] = defaultdict(list)
    for operation in operations:
        by_step[operation.step].append(operation)
    graphs = {step: graph_of(each) for step, each in by_step.items()}
    ideal = _ideal(node for graph in graphs.values() for node in graph)
    stages = sorted({operation.stage for operation in operations})
    data_ranks = sorted({operation.data_rank for operation in operations})
    names = sorted({operation.name for operation in operations})
    workers = sorted({operation.worker for operation in operations})
    everything, nothing = Keep("step", frozenset(), False), Keep("step", frozenset())
    choices = [everything, nothing, Keep("stage", frozenset({stages[-1]}), False)]
    parts: list[tuple[str, Sequence[int | str]]] = [
        ("stage", stages),
        ("data_rank", data_ranks),
        ("name", names),
        ("worker", workers),
    ]
    choices += [Keep(field, frozenset({value})) for field, values in parts for value in values]
    lengths_s = {step: _lengths(graph, ideal, choices) for step, graph in graphs.items()}
    actual_s, ideal_s, without_last_s, *alone_s = np.mean(list(lengths_s.values()), axis=0).tolist()
    if not ideal_s > 0:
        raise ValueError("no operation takes any time")
    alone = iter([seconds / ideal_s for seconds in alone_s])
    only_stage = _worst({stage: next(alone) for stage in stages})
    only_data_rank = _worst({rank: next(alone) for rank in data_ranks})
    only_name = _worst({name: next(alone) for name in names})
    only_worker = _worst({worker: next(alone) for worker in workers})
    count = max(1, math.ceil(WORST_WORKERS_SHARE * len(workers)))
    worst = frozenset(worker for worker, _ in only_worker[:count])
    spared = [Keep("worker", frozenset(worst), False)]
    without_worst_s = float(np.mean([_lengths(graph, ideal, spared)[0] for graph in graphs.values()]))
    loss_s = actual_s - ideal_s
    with_gaps_s = sum(_with_gaps(graph) for graph in graphs.values()) / len(graphs)
    found = Slowdown(
        steps=len(graphs),
        slowdown=actual_s / ideal_s,
        per_step={step: float(each[0] / each[1]) for step, each in lengths_s.items() if each[1] > 0},
        gap_slowdown=with_gaps_s / actual_s if actual_s > 0 else 1.0,
        removal_workers=(actual_s - without_worst_s) / loss_s if loss_s > 0 else 0.0,
        removal_last_stage=(actual_s - without_last_s) / loss_s if loss_s > 0 and len(stages) > 1 else 0.0,
        only_stage=only_stage,
        only_data_rank=only_data_rank,
        only_name=only_name,
        worst_workers=tuple(sorted(worst)),
        correlation=_correlation(operations),
        verdict="",
        text="",
    )
    return _judged(found, stages)


def _judged(found: Slowdown, stages: Sequence[int]) -> Slowdown:
    name = found.only_name[0][0]
    if found.slowdown <= SLOW:
        verdict, text = "healthy", f"steps take {found.slowdown:.2f} times the ideal ones: nothing to find"
    elif found.removal_workers >= EXPLAINS and found.removal_workers > found.removal_last_stage:
        who = ", ".join(map(str, found.worst_workers))
        verdict, text = "worker", f"{found.removal_workers:.0%} of the loss is the work of {who} alone: a bad worker"
    elif found.removal_last_stage >= EXPLAINS:
        verdict = "last_stage"
        text = f"the last stage ({stages[-1]}) makes up the loss: uneven partitioning, not a bad worker"
    elif found.correlation >= SAMPLES_CORRELATION:
        verdict = "sequence_length"
        text = f"forward and backward of the same samples are long together ({found.correlation:.2f}): uneven samples"
    elif rule_of(name).kind is not OpKind.COMPUTE:
        verdict, text = "communication", f"{name} alone slows the steps {found.only_name[0][1]:.2f} times"
    else:
        verdict = "stage" if len(stages) > 1 and found.only_stage[0][1] >= SLOW else "compute"
        text = f"{name} alone slows the steps {found.only_name[0][1]:.2f} times; no single worker or stage explains it"
    return replace(found, verdict=verdict, text=text)


def _lengths(graph: list[Node], ideal: Mapping[str, float], choices: Sequence[Keep]) -> NDArray[np.float64]:
    """Length of the step in seconds for each choice, without the gaps between operations."""
    ends = np.zeros((len(graph), len(choices)))
    for at, node in enumerate(graph):
        # What a group does together is real if any of its members keeps its duration.
        is_real = [any(choice.keeps(operation) for operation in node.operations) for choice in choices]
        seconds = np.where(is_real, node.seconds, ideal[_kind_name(node)])
        ends[at] = (ends[list(node.before)].max(axis=0) if node.before else 0.0) + seconds
    longest: NDArray[np.float64] = ends.max(axis=0)
    return longest


def _with_gaps(graph: list[Node]) -> float:
    ends: list[float] = []
    for node in graph:
        ends.append(max((ends[each] for each in node.before), default=0.0) + node.gap_s + node.seconds)
    return max(ends, default=0.0)


def _ideal(nodes: Iterable[Node]) -> dict[str, float]:
    seconds: dict[str, list[float]] = defaultdict(list)
    shared: set[str] = set()
    for node in nodes:
        seconds[_kind_name(node)].append(node.seconds)
        if node.is_shared:
            shared.add(_kind_name(node))
    return {name: float(np.median(values) if name in shared else np.mean(values)) for name, values in seconds.items()}


def _kind_name(node: Node) -> str:
    """Comparable operations: of one name, a send with its receive."""
    rule = rule_of(node.operations[0].name)
    return f"{rule.stream}-p2p" if rule.kind in (OpKind.SEND, OpKind.RECV) else node.operations[0].name


def _correlation(operations: Sequence[PipelineOperation]) -> float:
    """Of forward and backward durations of the same microbatch and worker, each over its worker's own mean."""
    times: dict[str, dict[tuple[int, int, int], float]] = {"forward-compute": {}, "backward-compute": {}}
    for operation in operations:
        if operation.name in times:
            times[operation.name][operation.worker, operation.step, operation.sequence] = operation.duration_s
    keys = sorted(set(times["forward-compute"]) & set(times["backward-compute"]))
    if len(keys) < 8:
        return 0.0
    pairs = np.array([[times["forward-compute"][key], times["backward-compute"][key]] for key in keys])
    workers = np.array([key[0] for key in keys])
    for worker in np.unique(workers):
        pairs[workers == worker] /= np.maximum(pairs[workers == worker].mean(axis=0), 1e-12)
    # Where all samples are alike, what is left is noise, and its correlation means nothing.
    if pairs.std(axis=0).min() < MIN_SPREAD:
        return 0.0
    return float(np.corrcoef(pairs.T)[0, 1])


def _worst(values: Mapping[Key, float]) -> tuple[tuple[Key, float], ...]:
    return tuple(sorted(values.items(), key=lambda each: -each[1]))
