"""Rounds of a tournament: disjoint pairs, and everybody meets everybody once."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whichrank.diagnosis.pair_checks.pairings import pairing_of, pairing_within, rounds_of


@given(st.integers(0, 65))
def test_everybody_meets_everybody_once_and_nobody_is_in_two_pairs(count: int) -> None:
    members = np.arange(100, 100 + count, dtype=np.int32)
    met: Counter[tuple[int, int]] = Counter()
    for number in range(rounds_of(count)):
        pairs = pairing_of(members, number)
        assert len(np.unique(pairs)) == 2 * len(pairs)
        assert len(pairs) == count // 2
        met.update((min(a, b), max(a, b)) for a, b in pairs.tolist())
    assert len(met) == count * (count - 1) // 2
    assert set(met.values()) <= {1}


def test_groups_of_different_sizes_have_their_rounds_at_the_same_time() -> None:
    groups = [np.arange(0, 5, dtype=np.int32), np.arange(5, 9, dtype=np.int32), np.arange(9, 10, dtype=np.int32)]
    pairs = pairing_within(groups, 7)
    assert len(np.unique(pairs)) == 2 * len(pairs) == 8
    assert all((a < 5) == (b < 5) for a, b in pairs.tolist())
