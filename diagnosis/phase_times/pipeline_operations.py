"""Single operations of a pipeline-parallel step, and what of them depends on what: a graph that can be replayed.

An operation follows what its rank had finished when it began; one that ranks do together ends when the last of them
has come and the data are over. Pure. Kinds are known by name (``operations.toml``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from ..data_file import read_toml

#: Clocks of one rank's own records; what ends so shortly after another began is taken to have ended before.
_SLACK_S = 2e-5


class OpKind(str, Enum):
    COMPUTE = "compute"
    SEND = "send"
    RECV = "recv"
    COLLECTIVE = "collective"


class Members(str, Enum):
    DATA = "data"
    ENDS = "ends"
    WORLD = "world"
    ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRule:
    words: tuple[str, ...]
    kind: OpKind
    stream: str
    members: Members = Members.ALONE
    #: The stage that it goes to or comes from is so much further (+1: forward).
    to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOperation:
    """One operation of one worker in one step. ``sequence`` counts operations of its name there."""

    worker: int
    data_rank: int
    stage: int
    step: int
    name: str
    start_s: float
    duration_s: float
    sequence: int

    @property
    def end_s(self) -> float:
        """When the operation ended, in seconds on the clock of ``start_s``."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Operations that end together. ``before``: nodes (indices, smaller than its own) that must have ended.

    ``seconds``: what it takes once all have come: the shortest of its operations' durations where there are several.
    ``gap_s``: time between the end of what came before and the last arrival, in which nothing was measured.
    """

    operations: tuple[PipelineOperation, ...]
    before: tuple[int, ...]
    seconds: float
    gap_s: float
    is_shared: bool


@cache
def op_rules() -> tuple[OpRule, ...]:
    """What kinds of operations there are and whom they wait for, from operations.toml."""
    return tuple(
        OpRule(
            words=tuple(entry["words"]),
            kind=OpKind(entry["kind"]),
            stream=entry["stream"],
            members=Members(entry.get("group", "alone")),
            to=int(entry.get("to", 0)),
        )
        for entry in read_toml(__package__ or "", "operations.toml")["operation"]
    )


@cache
def rule_of(name: str) -> OpRule:
    """The rule for an operation's name: what kind it is; the last entry of the table fits every name."""
    word = name.lower().replace("_", "-")
    return next(rule for rule in op_rules() if any(each in word for each in rule.words))


def graph_of(operations: Sequence[PipelineOperation]) -> list[Node]:
    """One step's operations as a graph, every node after what it depends on."""
    stages = max((operation.stage for operation in operations), default=0) + 1
    groups: dict[tuple[object, ...], list[PipelineOperation]] = defaultdict(list)
    for operation in operations:
        groups[_group(operation, stages)].append(operation)
    # An end lies behind the ends of all it waited for, so that order is one in which everything can be computed.
    ordered = sorted(
        groups.values(), key=lambda each: (max(one.end_s for one in each), min(one.start_s for one in each))
    )
    place = {id(operation): at for at, group in enumerate(ordered) for operation in group}
    predecessors = _predecessors(operations)
    nodes: list[Node] = []
    for at, group in enumerate(ordered):
        before = {place[id(other)] for operation in group for other in predecessors[id(operation)]}
        gaps = [
            operation.start_s - max((other.end_s for other in predecessors[id(operation)]), default=operation.start_s)
            for operation in group
        ]
        nodes.append(
            Node(
                operations=tuple(group),
                before=tuple(sorted(other for other in before if other < at)),
                seconds=min(operation.duration_s for operation in group),
                gap_s=max(0.0, min(gaps)),
                is_shared=rule_of(group[0].name).kind is not OpKind.COMPUTE,
            )
        )
    return nodes


def _group(operation: PipelineOperation, stages: int) -> tuple[object, ...]:
    """Operations with the same key end together."""
    rule = rule_of(operation.name)
    if rule.kind in (OpKind.SEND, OpKind.RECV):
        sender = operation.stage if rule.kind is OpKind.SEND else (operation.stage - rule.to) % stages
        return "p2p", rule.to, operation.data_rank, sender, operation.sequence
    if rule.kind is OpKind.COMPUTE or rule.members is Members.ALONE:
        return "own", operation.worker, operation.name, operation.sequence, operation.start_s
    where: object = None
    if rule.members is Members.DATA:
        where = operation.stage
    elif rule.members is Members.ENDS:
        where = operation.data_rank
    return operation.name, where, operation.sequence


def _predecessors(operations: Sequence[PipelineOperation]) -> dict[int, list[PipelineOperation]]:
    """Per operation (its ``id``) what its worker had finished last in each stream when it began."""
    streams: dict[int, dict[str, list[PipelineOperation]]] = defaultdict(lambda: defaultdict(list))
    for operation in operations:
        streams[operation.worker][rule_of(operation.name).stream].append(operation)
    for of_worker in streams.values():
        for each in of_worker.values():
            each.sort(key=lambda operation: operation.end_s)
    ends = {
        (worker, stream): [operation.end_s for operation in each]
        for worker, of_worker in streams.items()
        for stream, each in of_worker.items()
    }
    found: dict[int, list[PipelineOperation]] = {}
    for operation in operations:
        last = []
        for stream, each in streams[operation.worker].items():
            at = bisect_right(ends[operation.worker, stream], operation.start_s + _SLACK_S) - 1
            while at >= 0 and each[at] is operation:
                at -= 1
            if at >= 0:
                last.append(each[at])
        found[id(operation)] = last
    return found
