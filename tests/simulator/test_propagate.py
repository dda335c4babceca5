"""The fast propagation against the plain one, on small meshes with everything drawn; and that causes come first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whichrank.simulator.mesh import Mesh, mesh_for
from whichrank.simulator.program import Recipe, StepProgram
from whichrank.simulator.propagate import Pause, RankStandstill, StageTimes, StepGiven, Stop, propagate

from .plain_propagation import propagate_plainly

meshes = st.sampled_from(
    [
        Mesh(tensor=2, data=3),
        Mesh(tensor=1, data=4),
        Mesh(tensor=4, data=1),
        Mesh(tensor=2, data=2, pipeline=3),
        Mesh(tensor=1, data=2, pipeline=2),
        Mesh(tensor=2, data=4, experts=2),
        Mesh(tensor=2, data=4, experts=2, pipeline=2),
        Mesh(tensor=1, data=1, pipeline=4),
    ]
)


def drawn(program: StepProgram, seed: int, *, stops: bool, runs_ahead: bool) -> StepGiven:
    random = np.random.default_rng(seed)
    mesh, size = program.mesh, program.mesh.world_size
    rate = {}
    for name in mesh.dimensions:
        by_group = random.uniform(1e9, 5e10, size)
        rate[name] = by_group[mesh.group_of(name)] if name != "pp" else random.uniform(1e9, 5e10, size)
    held = {}
    for number in random.permutation(len(Stop))[:2].tolist() if stops else ():
        since, until = np.full(size, np.inf), np.full(size, np.inf)
        for rank in random.integers(0, size, 2):
            since[rank] = random.uniform(99.0, 103.0)
            until[rank] = np.inf if random.random() < 0.5 else since[rank] + random.uniform(0.0, 5.0)
        held[list(Stop)[number]] = RankStandstill(since, until)
    return StepGiven(
        host_s=random.uniform(100.0, 100.3, size),
        device_s=random.uniform(100.0, 100.3, size),
        kernel_pace=random.uniform(0.8, 2.0, size),
        launch_pace=random.uniform(0.8, 3.0, size),
        input_s=random.uniform(0.0, 0.2, size),
        save_s=random.uniform(0.0, 1.0, size),
        rate=rate,
        latency_s=dict.fromkeys(mesh.dimensions, 1e-5),
        jitter=[random.uniform(0.9, 1.1, (len(stage), mesh.stage_size)) for stage in program.stages],
        pauses=[
            Pause(
                rank=int(rank),
                place=int(random.integers(len(program.stages[rank // mesh.stage_size]))),
                seconds=0.4,
            )
            for rank in random.choice(size, size // 2, replace=False)
        ],
        stops=held,
        differs=random.random(size) < 0.1 if random.random() < 0.3 else None,
        runs_ahead=runs_ahead,
    )


@settings(max_examples=60, deadline=None)
@given(mesh=meshes, seed=st.integers(0, 10_000), stops=st.booleans(), runs_ahead=st.booleans(), saves=st.booleans())
def test_the_fast_propagation_is_the_plain_one(
    mesh: Mesh, seed: int, stops: bool, runs_ahead: bool, saves: bool
) -> None:
    program = Recipe().program(mesh, saves=saves)
    step = drawn(program, seed, stops=stops, runs_ahead=runs_ahead)
    fast, plain = propagate(program, step), propagate_plainly(program, step)
    for rank in plain:
        stage, inside = divmod(rank.rank, mesh.stage_size)
        np.testing.assert_allclose(fast.called[stage][:, inside], rank.called, atol=1e-9)
        np.testing.assert_allclose(fast.began[stage][:, inside], rank.began, atol=1e-9)
        np.testing.assert_allclose(fast.ended[stage][:, inside], rank.ended, atol=1e-9)
        assert fast.host_s[rank.rank] == pytest.approx(rank.host)
        assert fast.device_s[rank.rank] == pytest.approx(rank.device)


@settings(max_examples=30, deadline=None)
@given(mesh=meshes, seed=st.integers(0, 10_000), at_s=st.floats(100.0, 102.5), runs_ahead=st.booleans())
@example(mesh=Mesh(tensor=1, data=2, pipeline=2), seed=137, at_s=102.5, runs_ahead=True)
def test_nothing_before_a_standstill_changes(mesh: Mesh, seed: int, at_s: float, runs_ahead: bool) -> None:
    """A step may be computed again with what has happened since."""
    program = Recipe().program(mesh)
    sound = drawn(program, seed, stops=False, runs_ahead=runs_ahead)
    size = mesh.world_size
    since = np.full(size, np.inf)
    since[seed % size] = at_s
    stops = {kind: RankStandstill(since, np.full(size, np.inf)) for kind in Stop}
    before, after = propagate(program, sound), propagate(program, replace(sound, stops=stops))
    for first, second in zip(all_times(before), all_times(after), strict=True):
        earlier = first < at_s
        np.testing.assert_array_equal(first[earlier], second[earlier])
        assert (second[~earlier] >= at_s).all()
    stage = seed % size // mesh.stage_size
    is_over = before.ended[stage][-1].max() <= at_s  # with its step, before it can be held up
    assert is_over or np.isinf(after.ended[stage][-1]).any()


def all_times(times: StageTimes) -> list[np.ndarray]:
    return [*times.called, *times.began, *times.ended]


def test_who_never_arrives_leaves_its_groups_open_and_all_that_depends_on_them() -> None:
    mesh = Mesh(tensor=2, data=2)
    program = Recipe().program(mesh)
    step = drawn(program, 3, stops=False, runs_ahead=True)
    since = np.array([np.inf, np.inf, 99.0, np.inf])
    times = propagate(program, replace(step, stops={Stop.INPUT: RankStandstill(since, np.full(4, np.inf))}))
    first = program.recorded(0)[0]
    assert np.isinf(times.called[0][first, 2]), "it never calls"
    assert np.isfinite(times.called[0][first, [0, 1, 3]]).all(), "the others do"
    assert np.isinf(times.ended[0][first, [2, 3]]).all(), "its tensor group stands"
    assert np.isfinite(times.ended[0][first, [0, 1]]).all(), "the other one does not"
    assert np.isinf(times.host_s).all(), "in the end everybody waits"


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_rank_makes_twenty_calls_in_a_step_in_three_groups(pipeline: int) -> None:
    program = Recipe().program(mesh_for(1024, pipeline=pipeline))
    for stage in range(pipeline):
        calls = [program.stages[stage][place] for place in program.recorded(stage)]
        assert pipeline > 1 or len(calls) == 20
        assert {"world", "tp", "dp"} <= {call.group for call in calls}


def test_a_mesh_that_does_not_come_out_even_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        mesh_for(12, tensor=8)
    with pytest.raises(ValueError, match="divide"):
        Mesh(data=6, experts=4)
