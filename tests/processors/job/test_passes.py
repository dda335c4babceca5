"""Of a pipeline's stages the one that has got more to do is told by when the calls among its own ranks end."""

from __future__ import annotations

import numpy as np
import pytest

from whichrank.processors.job.detectors.slow.pipeline_stage_time import (
    HeavyStage,
    find_heavy_stage,
    no_passes,
    with_passes,
)
from whichrank.telemetry.tables import COLLECTIVES, DEVICE_STEPS

STAGES, REPLICAS, TENSOR = 4, 32, 4
WORLD = STAGES * REPLICAS * TENSOR
RANKS = np.arange(WORLD)
STAGE = RANKS // (REPLICAS * TENSOR)
REPLICA = RANKS // TENSOR % REPLICAS
BEFORE, SINCE = 24, 12
FORWARD_S, BACKWARD_S, SENT_S, LOOK_S = 0.07, 0.14, 0.001, 0.1


def seen(
    work: np.ndarray,
    sent: np.ndarray | None = None,
    *,
    seed: int = 1,
    known: float = 1.0,
    steps: int = SINCE,
    exchange_s: np.ndarray | None = None,
) -> np.ndarray:
    """What is kept of a job, whose ranks' kernels take by this factor longer, and what comes to a stage (forward, back)
    by that, in the last steps, by rank, and by stage; exchange_s: by how much longer a rank's exchange at the end of a
    step takes. known: of the ends, how many are told."""
    random = np.random.default_rng(seed)
    offset_s = LOOK_S * random.random(WORLD)
    kept = no_passes(WORLD)
    begin_s, ready_s = 100.0, np.zeros(WORLD)
    for step in range(BEFORE + steps):
        pace = np.where(step < BEFORE, 1.0, work) * (1.0 + 0.03 * random.standard_normal(WORLD))
        way = np.zeros((STAGES, 2)) if sent is None or step < BEFORE else sent
        pace = pace.reshape(STAGES, REPLICAS, TENSOR).max(axis=2)  # who shares a layer waits for the others in it
        first, last = np.empty((STAGES, REPLICAS)), np.empty((STAGES, REPLICAS))
        at = np.full(REPLICAS, 0.03)
        for stage in range(STAGES):
            came = at + (SENT_S + way[stage, 0] if stage else 0.0)
            ready = ready_s[stage == STAGE].reshape(REPLICAS, TENSOR).max(axis=1)
            at = np.maximum(came, ready) + FORWARD_S * pace[stage]
            first[stage] = at
        at = at + 3 * (FORWARD_S + BACKWARD_S) * pace.max(axis=0)  # the other microbatches, at the slowest one's pace
        for stage in reversed(range(STAGES)):
            at = at + BACKWARD_S * pace[stage] + (SENT_S + way[stage, 1] if stage < STAGES - 1 else 0.0)
            last[stage] = at
        done = np.full(WORLD, last.max() + 0.3)
        if exchange_s is not None and step >= BEFORE:
            done = done + exchange_s
        ends_s = np.stack([*(each[STAGE, REPLICA] for each in (first, last)), done]) + begin_s
        ends_s = np.ceil((ends_s - offset_s) / LOOK_S) * LOOK_S + offset_s
        sums = np.zeros(2 * WORLD, DEVICE_STEPS)
        sums["rank"], sums["step"] = np.tile(RANKS, 2), step
        sums["group"] = np.append(RANKS // TENSOR, 1000 + STAGE)
        first_ns, last_ns, done_ns = (ends_s * 1e9).astype(np.int64)
        sums["first_end_ns"], sums["last_end_ns"] = np.append(first_ns, done_ns), np.append(last_ns, done_ns)
        sums = sums[np.tile(random.random(WORLD) < known, 2)]
        kept = with_passes(kept, RANKS // TENSOR, np.zeros(0, COLLECTIVES), sums, RANKS, np.array([step]))
        # The next step begins with what is left of this one on each device.
        begin_s, ready_s = begin_s + done.min(), done - done.min()
    return kept


def named(kept: np.ndarray) -> HeavyStage | None:
    return find_heavy_stage(kept, RANKS, STAGE, BEFORE)


@pytest.mark.parametrize("stage", range(STAGES))
@pytest.mark.parametrize("seed", range(5))
def test_the_stage_that_has_more_to_do_is_named(stage: int, seed: int) -> None:
    found = named(seen(np.where(stage == STAGE, 1.3, 1.0), seed=seed, known=0.97))
    assert found is not None
    assert found.stage == stage
    assert found.ranks == tuple(RANKS[stage == STAGE].tolist())
    assert 1.15 < found.pass_ns / found.pass_before_ns < 1.45
    assert found.others < 0.15


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_named_where_nothing_or_everybody_has_changed(seed: int) -> None:
    assert named(seen(np.ones(WORLD), seed=seed)) is None
    assert named(seen(np.full(WORLD, 1.3), seed=seed)) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_link_between_two_stages_is_neither_ones_work(seed: int) -> None:
    slow = np.zeros((STAGES, 2))
    slow[3, 0] = slow[2, 1] = 0.03  # from stage 2 to 3, and back
    assert named(seen(np.ones(WORLD), slow, seed=seed)) is None


@pytest.mark.parametrize("seed", range(5))
def test_one_slow_replica_is_not_its_stage(seed: int) -> None:
    slow = (STAGE == 1) & (REPLICA == 2)
    assert named(seen(np.where(slow, 4.0, 1.0), seed=seed, steps=16)) is None


def test_too_few_steps_or_too_many_unknown_ends_name_nobody() -> None:
    heavy = np.where(STAGE == 2, 1.3, 1.0)
    assert named(seen(heavy, steps=2)) is None
    assert named(seen(heavy, known=0.6)) is None


def test_without_calls_in_each_layer_nothing_follows() -> None:
    """The only calls are those at the end of a step's backward passes, of which the first stage's is the last."""
    kept = seen(np.where(STAGE == 2, 1.3, 1.0))
    kept[:, 1 : 1 + WORLD] = kept[:, 1 + WORLD : 1 + 2 * WORLD]
    assert named(kept) is None


@pytest.mark.parametrize("stage", range(STAGES))
@pytest.mark.parametrize("shards", [1, TENSOR])
def test_a_stage_that_exchanges_for_longer_has_no_more_to_do(stage: int, shards: int) -> None:
    """It comes later to its next step: all ranks of its ring do, and those that share layers with them."""
    late = (stage == STAGE) & np.isin(RANKS % TENSOR, range(shards))
    assert named(seen(np.ones(WORLD), exchange_s=np.where(late, 0.4, 0.0))) is None


def test_calls_tell_the_same_as_their_sums() -> None:
    sums = np.array(
        [(1, 0, 0, 2, 5, 70, 1_300_000, 1_900_000), (1, 3, 0, 1, 5, 70, 1_000_000, 9_000_000)], DEVICE_STEPS
    )
    calls = np.zeros(4, COLLECTIVES)
    calls["rank"], calls["step"], calls["group"] = 1, 5, [0, 0, 3, 0]
    calls["done_ns"] = [1_900_000, 1_300_000, 9_000_000, 0]
    ranks, steps, none = np.array([1, 2]), np.array([5]), no_passes(2)
    by_sums = with_passes(none, np.array([0, 0]), calls[:0], sums, ranks, steps)
    by_calls = with_passes(none, np.array([0, 0]), calls, sums[:0], ranks, steps)
    assert by_sums.tolist() == by_calls.tolist() == [[5, 1_300_000, 0, 1_900_000, 0, 9_000_000, 0]]
