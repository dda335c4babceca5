"""Bursts of steps that wait for data are told when they come again and again and cost something, not as a habit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from whichrank.processors.job.detectors.slow.data_stalls import Stalls, are_over, find_recurring_stalls

MS = 1_000_000
USUAL_MS, STALL_MS = 2000, 3000


def window(count: int, stalled: Sequence[int], *, stall_ms: int = STALL_MS, seed: int = 1) -> tuple[np.ndarray, ...]:
    """Steps, begins, paces and waits for data of so many steps; those in ``stalled`` wait."""
    random = np.random.default_rng(seed)
    pace = (USUAL_MS * MS * np.exp(0.03 * random.standard_normal(count))).astype(np.int64)
    data = np.full(count, 30 * MS)
    data[list(stalled)] += stall_ms * MS
    pace[list(stalled)] += stall_ms * MS
    begins = 1_000_000 * MS + np.concatenate([[0], np.cumsum(pace)[:-1]])
    return 100 + np.arange(count), begins, pace, data


def found(count: int, stalled: Sequence[int], **more: int) -> Stalls | None:
    return find_recurring_stalls(*window(count, stalled, **more))


BURSTS = [40, 41, 42, 57, 58, 59, 74, 75, 76]


def test_three_bursts_after_quiet_are_told_with_when_they_were() -> None:
    stalls = found(80, BURSTS)
    assert stalls is not None
    steps, begins, pace, _ = window(80, BURSTS)
    assert (stalls.step, stalls.onset_ns) == (int(steps[40]), int(begins[40]))
    assert [begin for begin, _ in stalls.bursts] == [int(begins[place]) for place in (40, 57, 74)]
    assert [end for _, end in stalls.bursts] == [int(begins[place] + pace[place]) for place in (42, 59, 76)]
    assert stalls.usual_ns == pytest.approx(USUAL_MS * MS, rel=0.02)
    assert stalls.loss == pytest.approx(9 * 3.0 / (40 * 2.0 + 9 * 3.0), rel=0.05)


@pytest.mark.parametrize(
    ("count", "stalled", "why"),
    [
        (80, BURSTS[:6], "twice is no habit"),
        (80, [*range(3, 80, 16)], "it has always done so: that is how it was meant"),
        (400, [100, 200, 300], "it costs nothing to speak of"),
        (80, range(40, 80), "it does not come and go: its pace has changed"),
        (150, BURSTS, "it is over"),
        (30, [10, 17, 24], "too little is known of it"),
        (260, [50, 51, 100, 101, 150, 151, 200, 201, 250, 251], "steps 150, 200, 250 ...: each begins an epoch"),
    ],
)
def test_what_is_no_recurring_stall(count: int, stalled: Sequence[int], why: str) -> None:
    assert found(count, stalled) is None, why


def test_bursts_at_even_distances_that_no_epoch_explains_are_stalls() -> None:
    assert found(260, [60, 61, 110, 111, 160, 161, 210, 211], stall_ms=8000) is not None


def test_small_waits_are_no_stalls() -> None:
    assert found(80, BURSTS, stall_ms=600) is None


def test_they_are_over_after_two_pauses_without_one() -> None:
    pause = 15
    for quiet, over in ((20, False), (29, False), (31, True)):
        _, _, pace, data = window(77 + quiet, BURSTS)
        assert are_over(pace, data, pause) is over
