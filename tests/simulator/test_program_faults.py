"""What a program and its surroundings do to a step: groups in the opposite order, numbers, links, launches."""

from __future__ import annotations

import numpy as np
import pytest

from whichrank.simulator.ground_truth import TimeUse
from whichrank.simulator.mesh import Mesh
from whichrank.simulator.noise import Draws
from whichrank.simulator.numbers import NumericHealth
from whichrank.simulator.program import Does, Recipe
from whichrank.simulator.propagate import RankStandstill, StageTimes, StepGiven, Stop, propagate
from whichrank.simulator.scenarios.scenarios import SCENARIOS

MESH = Mesh(tensor=2, data=4)


def step(
    *, swaps: list[int] | None = None, nvlink_of: int | None = None, runs_ahead: bool = True, mesh: Mesh = MESH
) -> StageTimes:
    size = mesh.world_size
    swapping = None
    if swaps is not None:
        swapping = np.isin(np.arange(size), swaps)
    stops = {}
    if nvlink_of is not None:
        since = np.full(size, np.inf)
        since[nvlink_of] = 0.0
        stops[Stop.NVLINK] = RankStandstill(since, np.full(size, np.inf))
    ones = np.ones(size)
    given = StepGiven(
        host_s=0.0 * ones,
        device_s=0.0 * ones,
        kernel_pace=ones,
        launch_pace=ones,
        input_s=0.1 * ones,
        save_s=ones,
        rate={name: 1e10 * ones for name in mesh.dimensions},
        latency_s=dict.fromkeys(mesh.dimensions, 1e-5),
        swaps=swapping,
        stops=stops,
        runs_ahead=runs_ahead,
    )
    return propagate(Recipe().program(mesh), given)


def places(group: str) -> list[int]:
    operations = Recipe().program(MESH).stages[0]
    return [place for place, each in enumerate(operations) if each.does is Does.COLLECTIVE and each.group == group]


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_groups_in_the_opposite_order_wait_for_each_other(runs_ahead: bool) -> None:
    times, world, shared = step(swaps=[3], runs_ahead=runs_ahead), places("world")[-1], places("dp")[-1]
    assert np.isinf(times.host_s).all()
    began = {place: np.isfinite(times.began[0][place]) for place in (world, shared)}
    others = np.arange(MESH.world_size) != 3
    assert began[world].tolist() == others.tolist(), "all but the one stand in the world's group"
    assert began[shared].tolist() == (~others).tolist(), "and the one in the other"


def test_groups_in_one_order_get_on() -> None:
    assert np.isfinite(step().host_s).all()


def test_an_nvlink_holds_up_its_own_group_first() -> None:
    times, first = step(nvlink_of=2), places("tp")[0]
    ended = np.isfinite(times.ended[0][first])
    assert ended.tolist() == [rank // 2 != 1 for rank in range(8)]
    assert np.isinf(times.host_s).all(), "and then everybody"


def test_without_tensor_groups_an_nvlink_holds_up_the_data_groups() -> None:
    """Neighbours of a ring over all ranks are on one node as well."""
    assert np.isinf(step(nvlink_of=2, mesh=Mesh(data=8)).host_s).all()


def draws(loss: float = 2.0, norm: float = 0.5) -> Draws:
    return Draws(pace=np.ones(4), jitter=[], pauses=[], loss=np.full(4, loss), norm=np.full(4, norm))


def test_a_bad_batch_shows_in_its_own_loss_and_in_everybodys_norm() -> None:
    numbers = NumericHealth()
    assert numbers.after(usual := draws(), None) is usual
    bad = numbers.after(draws(), np.array([1.0, 1.0, 100.0, 1.0]))
    assert (bad.loss / 2.0).tolist() == [1.0, 1.0, 100.0, 1.0]
    assert np.ptp(bad.norm) == 0.0
    assert bad.norm[0] == pytest.approx(0.5 * np.sqrt((3 + 100.0**2) / 4))
    later = numbers.after(draws(), None)
    assert 2.0 < later.loss[0] == later.loss[2] < bad.loss[2]
    for _ in range(60):
        last = numbers.after(draws(), None)
    assert last.norm[0] == pytest.approx(0.5, rel=1e-2)


def test_a_number_that_is_none_stays() -> None:
    numbers = NumericHealth()
    bad = numbers.after(draws(), np.array([1.0, np.nan, 1.0, 1.0]))
    assert np.isnan(bad.loss).tolist() == [False, True, False, False]
    assert np.isnan(bad.norm).all()
    assert np.isnan(numbers.after(draws(), None).loss).all()


def test_a_launch_that_never_meets_is_given_up_and_all_of_it_is_the_start() -> None:
    scenario = SCENARIOS["node_never_joins"]
    world = scenario.build(16, 1, recipe=Recipe(timeout_s=20.0))
    for _ in world.run(30.0):
        pass
    attempt = world.jobs[0].attempt
    assert attempt is not None
    assert not np.isfinite(attempt.first_step_s)
    for _ in world.run(45.0):
        pass
    sums = world.settle().sums_ns("pretrain-a")
    assert sum(sums.values()) == 45_000_000_000
    assert set(sums) <= {TimeUse.QUEUED, TimeUse.STARTING, TimeUse.SHUTDOWN, TimeUse.RESTARTING}
