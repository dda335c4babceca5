"""Scores from sections and kernels, pairwise network checks, and rules for hangs."""

from __future__ import annotations

import random

import pytest

from whichrank.diagnosis.phase_times.network_check import (
    bus_bandwidth_gibps,
    failed_in_every_round,
    round_robin,
    slow_nodes,
    suspects_of_pairs,
)
from whichrank.diagnosis.phase_times.scores import (
    OwnBest,
    relative_gpu_scores,
    relative_section_scores,
    stragglers,
)


def test_a_rank_twice_as_slow_scores_half() -> None:
    windows: dict[int, dict[str, list[float]]] = {
        0: {"step": [1.0, 1.0, 1.2]},
        1: {"step": [2.0, 2.0, 9.0]},
        2: {"step": []},
    }
    scores = relative_section_scores(windows)
    assert scores == {0: {"step": 1.0}, 1: {"step": 0.5}, 2: {}}
    assert stragglers({rank: each.get("step") for rank, each in scores.items()}) == (1,)


def test_the_threshold_is_strict() -> None:
    assert stragglers({0: 0.75, 1: 0.7499, 2: None}) == (1,)


def test_kernels_that_wait_for_others_do_not_count() -> None:
    windows = {rank: {"gemm": [1.0] * 5, "ncclDevKernel_AllReduce": [10.0 / (rank + 1)] * 5} for rank in range(4)}
    assert relative_gpu_scores(windows) == dict.fromkeys(range(4), 1.0)


def test_kernels_are_weighted_by_their_time() -> None:
    windows = {0: {"big": [9.0], "small": [1.0]}, 1: {"big": [9.0], "small": [2.0]}}
    score = relative_gpu_scores(windows)[1]
    assert score == pytest.approx((9 + 0.5 * 2) / 11)


def test_nothing_in_common_has_no_score() -> None:
    assert relative_gpu_scores({0: {"a": [1.0]}, 1: {"b": [1.0]}}) == {0: None, 1: None}
    assert relative_gpu_scores({}) == {}


def test_a_rank_is_held_against_its_own_best() -> None:
    own = OwnBest.new()
    assert own.section_scores({"step": [1.0, 1.0]}) == {"step": 1.0}
    assert own.section_scores({"step": [2.0, 2.0]}) == {"step": 0.5}
    assert own.section_scores({"step": [0.5]}) == {"step": 1.0}
    assert own.gpu_score({"nccl": [1.0]}) is None


def test_one_good_round_clears_a_node() -> None:
    assert failed_in_every_round([{0: True, 1: False, 2: False}, {0: True, 1: True, 2: False}]) == (2,)


def test_slow_is_twice_the_typical_best() -> None:
    first = dict.fromkeys(range(6), 5.0) | {4: 15.0, 5: 15.0}
    assert slow_nodes([first]) == (4, 5)
    assert slow_nodes([first, {**first, 4: 5.0}]) == (5,)
    assert slow_nodes([]) == ()


def test_every_pair_meets_once() -> None:
    rounds = round_robin("abcdef", 5)
    pairs = [frozenset(pair) for each in rounds for pair in each]
    assert len(pairs) == len(set(pairs)) == 15
    assert all(len({node for pair in each for node in pair}) == 6 for each in rounds)
    with pytest.raises(ValueError, match="even number"):
        round_robin("abc", 1)


def test_bad_nodes_are_found_among_any_number() -> None:
    draw = random.Random(4)
    for _ in range(200):
        size = draw.choice((4, 8, 16))
        bad = set(draw.sample(range(size), draw.randrange(0, size // 2)))
        batches = round_robin(range(size), min(size - 1, 5))
        failed = [[pair for pair in each if bad & set(pair)] for each in batches]
        said = set(suspects_of_pairs(range(size), batches, failed))
        assert bad <= said
        # Who met only bad nodes has not been cleared.
        met = {
            node: {other for each in batches for pair in each if node in pair for other in pair} - {node}
            for node in said
        }
        assert all(node in bad or met[node] <= bad for node in said)


def test_bus_bandwidth() -> None:
    assert bus_bandwidth_gibps(2**30, 2, 1000.0, 2) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="bus bandwidth"):
        bus_bandwidth_gibps(0, 2, 1.0, 8)
