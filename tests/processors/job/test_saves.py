"""A rank whose checkpoints become slow: beside the others, and beside its own past, quick saves among it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from whichrank.processors.job.detectors.slow.checkpoint_straggler import (
    PAST_SAVES,
    Saves,
    find_slow_writer,
    is_still_slow_writer,
    no_saves,
    others_ns,
    with_more,
)


@given(
    arrays.arrays(
        np.int64, st.tuples(st.just(3), st.integers(2, 9)), elements=st.sampled_from([0, 0, 1, 2, 7, 8, 1_000_000_001])
    )
)
def test_the_others_of_all_ranks_at_once_are_those_of_each_by_itself(recent: np.ndarray) -> None:
    found = others_ns(recent)
    for rank in range(recent.shape[1]):
        others = np.delete(recent, rank, axis=1)
        writers = others[:, others.max(axis=0) > 0]
        alone = np.zeros(3) if not writers.shape[1] else np.median(writers, axis=1)
        np.testing.assert_array_equal(found[:, rank], alone)


MS, EVERY_NS = 1_000_000, 300_000_000


def saved(*own_ms: float) -> Saves:
    """Saves of rank 0 of two, one in five steps; below 2 ms they are quick."""
    saves = no_saves(np.arange(2))
    for number, each in enumerate(own_ms):
        own = np.array([[each * MS, 0]], np.int64)
        at = np.array([number])
        saves = with_more(saves, np.arange(2), 5 * at, EVERY_NS * at, own, np.array([each < 2]))
    return saves


def test_saves_that_took_next_to_nothing_are_the_past_of_slow_ones() -> None:
    found = find_slow_writer(saved(1, 1, 1, 1400, 1500, 1450))
    assert found is not None
    assert (found.rank, found.onset_step, found.before_ns, found.now_ns) == (0, 15, 1 * MS, 1450 * MS)


def test_two_things_that_are_saved_in_turn_are_each_as_usual() -> None:
    assert find_slow_writer(saved(1, 1, 1400, 1, 1500, 1, 1450)) is None
    assert find_slow_writer(saved(1, 1, 1400, 1500, 1450, 1)) is None


def test_one_quick_save_is_no_past() -> None:
    assert find_slow_writer(saved(1, 1400, 1500, 1450)) is None


def test_quick_saves_again_end_it() -> None:
    slow = [1, 1, 1400, 1500, 1450]
    assert is_still_slow_writer(saved(*slow, 1), 0, 1 * MS, 1450 * MS)
    assert not is_still_slow_writer(saved(*slow, *[1] * PAST_SAVES), 0, 1 * MS, 1450 * MS)


def test_of_quick_saves_only_the_last_are_kept() -> None:
    saves = saved(400, 410, 1, 1, 1, 1, 1)
    assert saves.quick_begin_ns.tolist() == [EVERY_NS * 5, EVERY_NS * 6]
    assert saves.steps.tolist() == [0, 5]
