"""Jobs that stall again and again: whose bursts go before each stall is the actor, not who is busy anyhow."""

from __future__ import annotations

from typing import Any

import pytest

from whichrank.processors.cluster.shared.neighbours import _correlation
from whichrank.processors.cluster.shared.troubles import Trouble


def trouble(**more: Any) -> Trouble:
    base: dict[str, Any] = {
        "id": "i", "job": "a", "attempt": "1", "run": "a", "kind": "slow_together", "bucket": "speed_regression",
        "severity": "ticket", "onset": 1000.0, "opened": 1090.0, "resolved": None, "step": 60, "ranks": [], "nodes": [],
        "gpus": [], "phase": "data", "place": "", "error": "", "own": {}, "confidence": 0.7, "victims": 0,
    }  # fmt: skip
    return Trouble(**{**base, **more})


STALLS = [[1000.0, 1015.0], [1042.0, 1057.0], [1084.0, 1099.0]]


def test_bursts_that_go_before_each_stall_correlate_and_others_do_not() -> None:
    stalls = trouble(stalls=STALLS)
    with_it = [(begin - 1.0, begin + 12.0) for begin, _ in STALLS]
    once = with_it[:1]
    steady = [(400.0, 1100.0)]
    assert _correlation(with_it, stalls, 1100.0) > 0.8
    assert _correlation(once, stalls, 1100.0) < 0.7
    assert _correlation(steady, stalls, 1100.0) == 0.0


def test_what_is_remembered_of_stalls_survives_a_row() -> None:
    stalls = trouble(stalls=STALLS)
    assert Trouble.unpack(stalls.pack()) == stalls
    older = trouble().pack().replace(b'"stalls":[]', b'"unknown":[]')
    assert Trouble.unpack(older).stalls == []


@pytest.mark.parametrize("until", [None, 1030.0])
def test_a_single_stall_is_compared_as_before(until: float | None) -> None:
    assert _correlation([(995.0, 1030.0)], trouble(resolved=until), 1030.0) > 0.8
