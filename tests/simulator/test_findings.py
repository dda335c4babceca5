"""Each fault through the real operators: what they find is what the fault says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.long_runs import LONG
from whichrank.evaluation.simulate.judge import Judge
from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.jobs import JobSpec
from whichrank.simulator.mesh import Mesh
from whichrank.simulator.program import Recipe
from whichrank.simulator.scenarios.layouts import one_job
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.scoring.run_score import score_run
from whichrank.simulator.world import World

from .judged import judge, judge_scenario, suspects

#: A rank is named, and it is the right one.
AT_ONE_RANK = [
    "gpu_off_the_bus",
    "gpu_memory_error",
    "process_killed",
    "exception",
    "process_stopped",
    "never_enters",
    "other_branch",
]


@pytest.mark.parametrize("name", AT_ONE_RANK)
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_fault_at_one_rank_is_found_there(name: str, backend: str) -> None:
    judged = judge(name, recipe=Recipe(backend=backend))
    incident, truth = judged.only, judged.truth
    assert incident["kind"] in truth.kinds
    assert suspects(incident) == set(truth.ranks)
    assert {suspect["node"] for suspect in incident["suspects"]} == set(truth.nodes)
    assert incident["scope"] == truth.scope
    onset_s = incident["times"]["onset"] - judged.world.start_unix_ns / 1e9
    assert abs(onset_s - truth.at_s) < 3.0
    if truth.scope == "gpu":
        assert {suspect["gpu"] for suspect in incident["suspects"]} == set(truth.devices)


@pytest.mark.parametrize("seed", [1, 5, 6, 7, 8])
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_kernel_that_does_not_end_is_found_by_its_rank(backend: str, seed: int) -> None:
    judged = judge("endless_kernel", ranks=32, seed=seed, recipe=Recipe(backend=backend))
    assert judged.only["kind"] == "rank_not_entered"
    assert suspects(judged.only) == set(judged.truth.ranks)


def test_memory_that_grows_ends_in_the_kernels_word() -> None:
    judged = judge("host_out_of_memory", until_s=80.0)
    assert judged.only["kind"] == "rank_died"
    assert suspects(judged.only) == set(judged.truth.ranks)
    assert judged.only["cause"]["condition"] == "oom_kill"
    assert judged.only["scope"] == "node"


def test_another_branch_shows_where_no_layer_is_shared_as_well() -> None:
    layout = one_job(16, Recipe())
    job = replace(layout.jobs[0], mesh=Mesh(tensor=1, data=16))
    scenario = replace(SCENARIOS["other_branch"], layout=lambda ranks, recipe: replace(layout, jobs=(job,)))
    judged = judge_scenario(scenario)
    assert judged.only["kind"] == "desync"
    assert suspects(judged.only) == set(judged.truth.ranks)


def test_a_lost_node_is_the_node() -> None:
    judged = judge("node_lost", ranks=24)
    assert judged.only["kind"] == "node_lost"
    assert {suspect["id"] for suspect in judged.only["suspects"]} == set(judged.truth.nodes)


def test_a_mount_that_does_not_answer_is_storage() -> None:
    judged = judge("mount_dead", ranks=24, until_s=75.0)
    assert judged.only["kind"] == "rank_not_entered"
    assert judged.only["scope"] == "storage"
    assert suspects(judged.only) <= set(judged.truth.ranks)


def test_a_preempted_job_was_stopped_as_planned() -> None:
    judged = judge("preemption")
    assert judged.only["kind"] == "planned_stop"
    assert not judged.only["suspects"]


@pytest.mark.parametrize(
    ("name", "condition"), [("gpu_thermal", "gpu_throttled"), ("gpu_clock_locked", "gpu_clock_locked")]
)
def test_a_slow_gpu_is_found_with_what_holds_its_clocks_down(name: str, condition: str) -> None:
    judged = judge(name, ranks=16, at_s=60.0, until_s=120.0, recipe=Recipe(backend="gloo"))
    assert judged.only["kind"] == "rank_slow"
    assert suspects(judged.only) == set(judged.truth.ranks)
    assert judged.only["cause"]["condition"] == judged.truth.condition
    assert judged.only["scope"] == "gpu"


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_slow_gpu_without_a_word_is_found_by_its_steps(backend: str) -> None:
    """On devices it takes longer: what is known of starts and ends comes ten times a second."""
    until_s = 170.0 if backend == "nccl" else 120.0
    judged = judge("slow_gpu", ranks=16, at_s=60.0, until_s=until_s, recipe=Recipe(backend=backend))
    assert judged.only["kind"] == "rank_slow"
    assert suspects(judged.only) == set(judged.truth.ranks)


def test_starving_loaders_are_found_on_their_node() -> None:
    judged = judge("loaders_starve", ranks=24, at_s=60.0, until_s=120.0, recipe=Recipe(backend="gloo"))
    assert judged.only["kind"] == "rank_slow"
    assert {suspect["node"] for suspect in judged.only["suspects"]} == set(judged.truth.nodes)


@LONG
@pytest.mark.parametrize("name", ["uniform_regression", "port_half_rate"])
def test_what_slows_all_is_slow_together(name: str) -> None:
    judged = judge(name, ranks=64, at_s=125.0, until_s=245.0)
    assert judged.only["kind"] == "slow_together"
    named = {suspect["node"] for suspect in judged.only["suspects"]}
    assert named == (set(judged.truth.nodes) if name == "port_half_rate" else set())
    (words,) = (each["shows"] for each in judged.only["evidence"] if each["signal"] == "steps.self_time")
    if name == "port_half_rate":
        assert "a slower network" in words
    else:
        assert "own work" in words
        assert "network" not in words


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_link_that_is_down_stalls_a_collective(backend: str, seed: int) -> None:
    """Who stands in it is held up by it, in whatever other calls others wait for them."""
    judged = judge("port_down", ranks=64, seed=seed, recipe=Recipe(backend=backend))
    assert (judged.only["kind"], judged.only["scope"]) == ("collective_stalled", "link")
    assert not suspects(judged.only)
    assert judged.only["cause"]["condition"] == "port_down"


def test_a_call_that_is_only_launched_makes_no_deadlock() -> None:
    judged = judge("endless_kernel", ranks=32, seed=12, at_s=45.0, until_s=70.0)
    assert judged.only["kind"] == "rank_not_entered"
    assert suspects(judged.only) == set(judged.truth.ranks)


@pytest.mark.parametrize(
    ("name", "at_s", "until_s"),
    [
        ("bad_batch", 40.0, 125.0),
        ("agent_dies", 40.0, 60.0),
        ("clock_turned_back", 40.0, 60.0),
        ("fabric_stalls", 40.0, 90.0),
        pytest.param("power_capped", 100.0, 210.0, marks=LONG),
        ("process_killed+clock_turned_back", 40.0, 60.0),
        ("process_killed+messages_repeat", 40.0, 60.0),
        ("process_killed+never_enters", 40.0, 60.0),
        ("process_killed+harmless", 40.0, 70.0),
    ],
)
def test_what_jobs_share_and_what_only_observers_miss(name: str, at_s: float, until_s: float) -> None:
    judged = judge(name, ranks=64, at_s=at_s, until_s=until_s)
    score = score_run(judged.ledger.as_json(), judged.revisions)
    assert [(fault.said, fault.top_1) for fault in score.faults] == [(fault.said, True) for fault in score.faults]
    assert (score.wrong_nodes, score.pages_too_many) == ((), 0)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_messages_that_are_lost_blame_nobody(backend: str) -> None:
    judged = judge("messages_lost", ranks=64, at_s=40.0, until_s=80.0, recipe=Recipe(backend=backend))
    assert (judged.only["kind"], judged.only["severity"], judged.only["scope"]) == ("input_silent", "ticket", "cluster")


def test_a_leaf_that_is_lost_early_is_the_switch() -> None:
    judged = judge("leaf_lost", ranks=64, at_s=40.0, until_s=70.0)
    score = score_run(judged.ledger.as_json(), judged.revisions)
    assert (score.faults[0].top_1, score.wrong_nodes, score.pages) == (True, (), 1)


@LONG
def test_a_metadata_storm_is_the_doing_of_its_job() -> None:
    judged = judge("metadata_storm", ranks=64, at_s=100.0, until_s=250.0)
    assert score_run(judged.ledger.as_json(), judged.incidents).faults[0].top_1


@pytest.mark.parametrize("name", ["idle_port_flaps", "idle_clock_locked", "messages_repeat"])
def test_nothing_is_said_of_what_is_harmless(name: str) -> None:
    score = score_run((judged := judge(name, until_s=90.0)).ledger.as_json(), judged.incidents)
    assert (score.faults, score.pages) == ((), 0)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_nothing_is_said_of_a_sound_job(backend: str) -> None:
    recipe = Recipe(backend=backend, saves_every=12, evaluates_every=20)
    assert judge("healthy", until_s=150.0, recipe=recipe).incidents == []


@pytest.mark.parametrize(
    ("backend", "mesh"),
    [
        ("gloo", Mesh(tensor=4, data=2, pipeline=2)),
        ("nccl", Mesh(tensor=8, data=2, pipeline=4)),
        # Nothing but the end of a step is common to its stages, and to that the first one comes last.
        ("nccl", Mesh(tensor=8, data=1, pipeline=4)),
        ("nccl", Mesh(tensor=1, data=1, pipeline=8)),
    ],
)
def test_nothing_is_said_of_a_sound_pipeline(backend: str, mesh: Mesh) -> None:
    nodes = mesh.world_size // 8
    spec = JobSpec(name="pipeline", mesh=mesh, nodes=tuple(range(nodes)), recipe=Recipe(backend=backend))
    world = World(Topology(shape=ClusterShape(nodes=nodes)), [spec], seed=5)
    judge = Judge()
    for end_s, sent in world.run(80.0):
        judge.take(end_s, sent)
    judge.close()
    assert judge.revisions == []
