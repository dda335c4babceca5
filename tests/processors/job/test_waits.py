"""Who waits for whom in rooted calls: times of arrival and end decide, because backends differ in who waits."""

from __future__ import annotations

import numpy as np
import pytest

from whichrank.processors.job.detectors.desync.matching import join_instances
from whichrank.processors.job.detectors.slow.wait_attribution import GroupShape, Places, StepEdges, release_times
from whichrank.telemetry.tables import COLLECTIVES
from whichrank.telemetry.vocabulary import EventFlag, Op

SHAPE = GroupShape(
    sizes=np.array([3]), one_clock=np.array([True]), places=Places.of([np.arange(3)])
)  # one group of ranks 0 to 2


def waited(op: Op, root: int, calls: list[tuple[int, int]]) -> list[int]:
    """How long each rank waited. calls: (arrival, end) of ranks 0, 1 and 2; end 0 = not ended."""
    rows = np.zeros(len(calls), COLLECTIVES)
    rows["rank"], rows["seq"], rows["op"], rows["peer"] = np.arange(len(calls)), 1, int(op), root
    rows["enqueued_ns"], rows["done_ns"] = zip(*calls, strict=True)
    joined = join_instances(rows)
    waits: list[int] = (release_times(joined, SHAPE) - joined.rows["enqueued_ns"]).tolist()
    return waits


@pytest.mark.parametrize(
    ("op", "calls", "expected"),
    [
        # The root sends: where its call lasted until the late member came (gloo), it waited for it; else not (buffers).
        (Op.BROADCAST, [(100, 410), (400, 410), (150, 160)], [300, 0, 0]),
        (Op.BROADCAST, [(100, 120), (400, 410), (150, 160)], [0, 0, 0]),
        (Op.BROADCAST, [(400, 410), (100, 410), (390, 410)], [0, 300, 10]),
        (Op.SCATTER, [(100, 0), (400, 410), (150, 160)], [0, 0, 0]),
        # The members send to the root: the same the other way round.
        (Op.REDUCE, [(400, 410), (100, 405), (150, 160)], [0, 300, 0]),
        (Op.GATHER, [(100, 410), (400, 402), (150, 152)], [300, 0, 0]),
        (Op.ALL_REDUCE, [(100, 410), (400, 410), (150, 410)], [300, 0, 250]),
    ],
)
def test_senders_wait_only_where_their_call_lasted(op: Op, calls: list[tuple[int, int]], expected: list[int]) -> None:
    assert waited(op, 0, calls) == expected


def test_an_end_that_polling_saw_after_the_step_hides_no_wait_between_nodes() -> None:
    """The last to come has its end seen 30 ms late: its duration must not pass for the transfer."""
    rows = np.zeros(3, COLLECTIVES)
    rows["rank"], rows["seq"], rows["op"], rows["peer"] = np.arange(3), 1, int(Op.ALL_REDUCE), -1
    rows["enqueued_ns"], rows["done_ns"] = [100, 400, 150], [410, 700, 410]
    rows["flags"] = int(EventFlag.POLLED)
    apart = GroupShape(sizes=np.array([3]), one_clock=np.array([False]), places=SHAPE.places)
    ends = np.array([415, 414, 416])
    edges = StepEdges(rank=np.arange(3), step=np.zeros(3, np.int64), begin_ns=np.array([1, 2, 3]), end_ns=ends)
    joined = join_instances(rows)
    waits = release_times(joined, apart, edges) - joined.rows["enqueued_ns"]
    assert waits.tolist() == [296, 0, 246]
    rows["done_ns"] = [700, 700, 700]  # carried on into the next step by all: nothing tells when it ended
    joined = join_instances(rows)
    assert (release_times(joined, apart, edges) - joined.rows["enqueued_ns"]).tolist() == [300, 0, 250]
