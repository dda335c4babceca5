"""Traces of a pipeline that the test runs on paper, with one thing wrong in each: the replay must name it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from whichrank.diagnosis.phase_times.pipeline_operations import OpKind, PipelineOperation, graph_of, op_rules, rule_of
from whichrank.diagnosis.phase_times.what_if_replay import what_if

STAGES, DATA_RANKS, MICROBATCHES = 4, 2, 8
Cost = Callable[[int, int, int], float]


def run_on_paper(
    forward: Cost, *, steps: int = 3, reduce_s: float = 0.02, transfer_s: float = 0.001
) -> list[PipelineOperation]:
    """All forwards, then all backwards (GPipe). ``forward``: stage, data rank, sample -> seconds; backward is twice it.

    A receive lasts from when it was posted until the data are there, as a trace shows it.
    """
    found: list[PipelineOperation] = []
    for step in range(steps):
        free = {(stage, data): 0.0 for stage in range(STAGES) for data in range(DATA_RANKS)}

        def add(name: str, stage: int, data: int, start: float, end: float, sequence: int, step: int = step) -> None:
            found.append(
                PipelineOperation(
                    worker=stage * DATA_RANKS + data, data_rank=data, stage=stage, step=step, name=name, start_s=start,
                    duration_s=end - start, sequence=sequence,
                )
            )  # fmt: skip

        for data in range(DATA_RANKS):
            for kind, factor, order in (("forward", 1.0, range(STAGES)), ("backward", 2.0, range(STAGES - 1, -1, -1))):
                ready = [0.0] * MICROBATCHES
                for place, stage in enumerate(order):
                    for sample in range(MICROBATCHES):
                        t = free[stage, data]
                        if place:
                            end = max(t, ready[sample]) + transfer_s
                            add(f"{kind}-recv", stage, data, t, end, sample)
                            t = end
                        seconds = forward(stage, data, step * MICROBATCHES + sample) * factor
                        add(f"{kind}-compute", stage, data, t, t + seconds, sample)
                        t += seconds
                        ready[sample] = t
                        if place < STAGES - 1:
                            add(f"{kind}-send", stage, data, t, t + transfer_s, sample)
                            t += transfer_s
                        free[stage, data] = t
        for stage in range(STAGES):
            last = max(free[stage, data] for data in range(DATA_RANKS)) + reduce_s
            for data in range(DATA_RANKS):
                add("grads-reduce-scatter", stage, data, free[stage, data], last, 0)
    return found


def noisy(seed: int = 1) -> Callable[[], float]:
    draw = random.Random(seed)
    return lambda: draw.gauss(1.0, 0.005)


def test_a_healthy_pipeline_has_nothing_to_find() -> None:
    noise = noisy()
    found = what_if(run_on_paper(lambda stage, data, sample: 0.1 * noise()))
    assert found.verdict == "healthy"
    assert found.slowdown == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("worker", [0, 3, 5])
def test_a_bad_worker(worker: int) -> None:
    noise = noisy(worker)
    found = what_if(
        run_on_paper(lambda stage, data, sample: (0.16 if stage * DATA_RANKS + data == worker else 0.1) * noise())
    )
    assert (found.verdict, found.worst_workers) == ("worker", (worker,)), found
    assert found.removal_workers > 0.8


def test_an_uneven_last_stage_is_no_bad_worker() -> None:
    noise = noisy(3)
    found = what_if(run_on_paper(lambda stage, data, sample: (0.16 if stage == STAGES - 1 else 0.1) * noise()))
    assert found.verdict == "last_stage", found
    assert found.only_stage[0][0] == STAGES - 1


def test_uneven_samples() -> None:
    draw = random.Random(8)
    lengths = [draw.choice((0.05, 0.05, 0.3)) for _ in range(1000)]
    found = what_if(run_on_paper(lambda stage, data, sample: lengths[sample * DATA_RANKS + data]))
    assert found.verdict == "sequence_length", found
    assert found.correlation > 0.9


def test_a_replay_of_what_was_gives_what_was() -> None:
    """With every duration as it is, steps are as long as they were, gaps apart."""
    operations = run_on_paper(lambda stage, data, sample: 0.1)
    found = what_if(operations)
    length = max(operation.end_s for operation in operations)
    nodes = graph_of([operation for operation in operations if operation.step == 0])
    ends: list[float] = []
    for node in nodes:
        ends.append(max((ends[at] for at in node.before), default=0.0) + node.seconds)
    assert max(ends) == pytest.approx(length, rel=0.01)
    assert found.gap_slowdown == pytest.approx(1.0, abs=0.01)


def test_the_graph_is_in_an_order_in_which_it_can_be_computed() -> None:
    draw = random.Random(9)
    for _ in range(100):
        operations = [
            PipelineOperation(
                worker=draw.randrange(4), data_rank=draw.randrange(2), stage=draw.randrange(3), step=0,
                name=draw.choice(("forward-send", "forward-recv", "backward-compute", "x-all-reduce", "gc", "", "\0")),
                start_s=draw.choice((0.0, draw.random())), duration_s=draw.choice((0.0, draw.random())),
                sequence=draw.randrange(3),
            )
            for _ in range(draw.randrange(1, 60))
        ]  # fmt: skip
        nodes = graph_of(operations)
        assert sum(len(node.operations) for node in nodes) == len(operations)
        assert all(before < at for at, node in enumerate(nodes) for before in node.before)
        if any(operation.duration_s for operation in operations):
            # Refused where none of them takes any time once all have come.
            with suppress(ValueError):
                assert what_if(operations).slowdown > 0


def test_nothing_cannot_be_replayed() -> None:
    with pytest.raises(ValueError, match="no operations"):
        what_if([])


def test_names() -> None:
    assert rule_of("Forward_Send").kind is OpKind.SEND
    assert rule_of("params-all-gather").kind is OpKind.COLLECTIVE
    assert rule_of("whatever").kind is OpKind.COMPUTE
    assert op_rules()[-1].words == ("",), "the last entry must fit every name"
