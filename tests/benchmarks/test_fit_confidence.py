"""The fit finds how often words were right, and leaves kinds of which few were seen near the others."""

from __future__ import annotations

import random

import pytest

from benchmarks.fit_confidence import Word, fit, toml_of


def words(kind: str, strength: float, right: int, of: int) -> list[Word]:
    return [Word(kind, strength, number < right) for number in range(of)]


def test_what_is_right_less_often_than_it_says_is_told_with_less_confidence() -> None:
    seen = [*words("rank_slow", 0.95, 60, 100), *words("rank_died", 0.7, 98, 100), *words("desync", 0.9, 1, 1)]
    random.Random(1).shuffle(seen)
    fitted = fit(seen)
    assert fitted.probability(0.95, "rank_slow") == pytest.approx(0.6, abs=0.1)
    assert fitted.probability(0.7, "rank_died") == pytest.approx(0.97, abs=0.04)
    assert 0.6 < fitted.probability(0.9, "desync") < 0.99
    assert "rank_slow" in toml_of(fitted, seen)
    assert "60 of 100 right" in toml_of(fitted, seen)
