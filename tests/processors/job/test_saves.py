"""What the others need for a checkpoint, beside each rank that writes one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from whichrank.processors.job.detectors.slow.checkpoint_straggler import others_ns


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
