"""What evidence is worth: a map that keeps the order, can be undone, and is that of the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.cluster.confidence import LEAST, MOST, Reliability, load_reliability
from whichrank.telemetry.vocabulary import Kind

DRAWN = Reliability(slope=0.7, offset=0.9, offsets={"rank_slow": -0.4})


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.sampled_from(["rank_slow", "rank_died"]))
def test_stronger_evidence_is_never_worth_less(one: float, other: float, kind: str) -> None:
    low, high = sorted((one, other))
    assert LEAST <= DRAWN.probability(low, kind) <= DRAWN.probability(high, kind) <= MOST


@pytest.mark.parametrize("kind", ["rank_slow", "rank_died"])
def test_what_was_told_gives_back_the_strength(kind: str) -> None:
    for strength in (0.2, 0.5, 0.7, 0.9):
        assert DRAWN.strength(DRAWN.probability(strength, kind), kind) == pytest.approx(strength)


def test_a_kind_that_was_wrong_more_often_is_told_with_less_confidence() -> None:
    assert DRAWN.probability(0.9, "rank_slow") < DRAWN.probability(0.9, "rank_died")


def test_the_file_names_kinds_that_exist() -> None:
    assert set(load_reliability().offsets) <= {kind.value for kind in Kind}
