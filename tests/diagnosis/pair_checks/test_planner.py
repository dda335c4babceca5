"""Who is named of faults in a modelled fabric, in how many rounds, and nobody where there is none."""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import pytest

from benchmarks.pairwise_simulation import FAULTS, NEED_SWEEP, World, run
from whichrank.diagnosis.pair_checks.judging import SlowPart, tail
from whichrank.diagnosis.pair_checks.measured import Exchange, Measured, PairLimits, PairPhase, Quantity
from whichrank.diagnosis.pair_checks.planner import PairPlanner, group_numbers


@pytest.mark.parametrize("fault", sorted(set(FAULTS)))
@pytest.mark.parametrize("seed", [3, 4])
def test_exactly_what_is_ill_is_named(fault: str, seed: int) -> None:
    world = World.drawn(256, 8 if fault == "rail" else 1, fault, seed)
    planner, named = run(world, seed)
    assert {(each.part.value, each.nodes) for each in named} == world.truth
    assert planner.rounds <= log2(256) + 3 + 6
    assert planner.exchanges < 40 or fault in NEED_SWEEP


def test_a_clean_fabric_names_nobody() -> None:
    for seed in range(20):
        assert run(World.drawn(96, 1, "none", seed), seed)[1] == []


def test_rounds_grow_with_the_logarithm() -> None:
    rounds = [run(World.drawn(count, 1, "node_rate", 5), 5)[0].rounds for count in (64, 512, 4096)]
    assert rounds[2] - rounds[0] <= log2(4096 / 64) + 2
    assert rounds[2] <= ceil(log2(4096)) + 9


def measured(planner: PairPlanner, slow: set[int], *, failed: bool = False) -> None:
    """Runs a planner over exchanges of 1 ms; those of a slow node take 5."""
    while (asked := planner.next()) is not None:
        rows = []
        for pairing, phase in [(p, asked.phase) for p in asked.pairings] + (
            [(asked.controls, PairPhase.CONTROL)] if asked.controls is not None else []
        ):
            for a, b in pairing.tolist():
                ill = bool(slow & {a, b})
                rows.append(
                    Exchange(
                        phase=phase, a=a, b=b, seconds=5e-3 if ill else 1e-3, latency_s=1e-5, failed=failed and ill
                    )
                )
        planner.take(Measured.of(rows))


def test_a_node_without_any_answer_is_named_as_that() -> None:
    planner = PairPlanner(16, seed=1)
    measured(planner, {7}, failed=True)
    assert [(each.part, each.nodes, each.worst) for each in planner.named] == [(SlowPart.NODE, (7,), Quantity.FAILED)]


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_few_nodes_are_enough_to_name_one(count: int) -> None:
    planner = PairPlanner(count, seed=2)
    measured(planner, {1})
    assert [(each.part, each.nodes) for each in planner.named] == [(SlowPart.NODE, (1,))]


def test_of_two_nodes_nobody_can_say_which_but_a_limit_says_that_it_is_slow() -> None:
    planner = PairPlanner(2, seed=2)
    measured(planner, {1})
    assert planner.named == []
    planner = PairPlanner(2, seed=2, limits=PairLimits(most_seconds=2e-3))
    measured(planner, {1})
    assert [(each.part, each.nodes) for each in planner.named] == [(SlowPart.LINK, (0, 1))]


def test_groups_by_name() -> None:
    assert group_numbers(["b", "a", "b"]).tolist() == [1, 0, 1]


def test_the_tail_of_a_binomial() -> None:
    assert tail(0, 5, 0.1) == 1.0
    assert np.isclose(tail(2, 2, 0.1), 0.01)
