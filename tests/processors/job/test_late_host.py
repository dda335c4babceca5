"""Whose host launches too late for its device is named by how long its passes take on the host."""

from __future__ import annotations

import numpy as np
import pytest

from whichrank.processors.job.detectors.slow.device_straggler.launch_bound import (
    KEPT_STEPS,
    LateHost,
    find_late_host,
    no_launches,
    with_launches,
)

RANKS, BEFORE = 32, 60
MS = 1_000_000


def found(
    late: dict[int, float],
    *,
    longer: float = 0.12,
    steps: int = 4,
    usual: float = 0.33,
    noise: float = 0.02,
    seed: int = 1,
    dropped: int = 0,
) -> LateHost | None:
    """In the last steps, ``longer`` s longer than 1.9 s, hosts launch for so many s instead of the usual."""
    random = np.random.default_rng(seed)
    count = BEFORE + steps
    duration_s = 1.9 * (1.0 + 0.008 * random.standard_normal(count))
    duration_s[BEFORE:] += longer
    launched_s = np.full((count, RANKS), usual)
    for rank, seconds in late.items():
        launched_s[BEFORE:, rank] = seconds
    launched_s *= 1.0 + noise * random.standard_normal(launched_s.shape)
    launched_ns, duration_ns = (launched_s * 1e9).astype(np.int64), (duration_s * 1e9).astype(np.int64)
    kept = no_launches(0)
    for step in range(count):
        kept = with_launches(kept, np.array([step]), launched_ns[step : step + 1])
    kept = kept[kept[:, 0] != count - 2] if dropped else kept
    steps_, begin_ns = np.arange(count), np.cumsum(duration_ns) - duration_ns
    return find_late_host(kept, np.arange(100, 100 + RANKS), steps_, begin_ns, duration_ns)


@pytest.mark.parametrize("seed", range(10))
def test_the_ranks_of_a_node_without_cores_are_named(seed: int) -> None:
    late = found(dict.fromkeys(range(8, 16), 1.65), seed=seed)
    assert late is not None
    assert sorted((late.rank, *late.company)) == list(range(108, 116))
    assert late.onset_step == BEFORE
    assert 0.3e9 < late.others_ns < 0.36e9 < 1.5e9 < late.launches_ns
    assert late.before_ns < 1.95e9 < late.now_ns


def test_launching_may_take_seconds() -> None:
    late = found({3: 2.9}, longer=1.2)
    assert late is not None
    assert (late.rank, late.company) == (103, ())
    assert 2.7e9 < late.launches_ns < 3.1e9


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "case",
    [
        {"late": {}},  # the steps are longer, and no host launches for longer
        {"late": {3: 1.65}, "longer": 0.0},  # its device had enough to do all the while
        {"late": {3: 0.6}, "longer": 0.4},  # it launches for longer, and has time left
        {"late": {3: 1.2}, "longer": 1.0},  # by less than the steps have become longer
        {"late": dict.fromkeys(range(16), 1.65)},  # half of the job: no rank's affair
        {"late": {}, "usual": 1.8, "longer": 0.2},  # full queues: all stand in their passes as long as devices take
    ],
)
def test_nobody_is_named_where_no_device_waits_for_its_host(case: dict[str, object], seed: int) -> None:
    assert found(**case, seed=seed) is None  # type: ignore[arg-type]


def test_what_is_not_known_of_the_same_steps_says_nothing() -> None:
    assert found({3: 1.65}) is not None
    assert found({3: 1.65}, dropped=1) is None
    assert found({3: 1.65}, steps=2) is None


def test_so_many_steps_are_kept() -> None:
    kept = no_launches(4)
    for step in range(KEPT_STEPS + 5):
        kept = with_launches(kept, np.array([step]), np.full((1, 4), 7 * MS))
    assert kept[:, 0].tolist() == list(range(5, KEPT_STEPS + 5))
    assert (kept[:, 1:] == 7000).all()
