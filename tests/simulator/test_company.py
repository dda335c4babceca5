"""Beside faults stand harmless anomalies of other nodes; in some runs nobody watches what would tell of the fault."""

from __future__ import annotations

import numpy as np
import pytest

from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.faults import harmless
from whichrank.simulator.faults.company import ANOMALIES
from whichrank.simulator.faults.fault import FaultKind, FaultSite
from whichrank.simulator.jobs import JobSpec
from whichrank.simulator.mesh import Mesh
from whichrank.simulator.resources import ParameterChange
from whichrank.simulator.scenarios.scenarios import SCENARIOS, is_blind
from whichrank.simulator.scoring.run_score import score_run
from whichrank.simulator.world import World

from .judged import judge

HARMLESS = {kind.name for kind in harmless.KINDS}


def nodes_of(world: World, change: ParameterChange) -> set[int]:
    per_node = world.topology.shape.gpus_per_node
    of_node = change.family in ("host", "agent")
    return {place if of_node else place // per_node for place in change.places}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["gpu_off_the_bus", "node_lost", "uniform_regression", "leaf_lost", "process_killed+never_enters"]
)
def test_a_fault_has_company_on_other_nodes(name: str, seed: int) -> None:
    alone, world = SCENARIOS[name].build(64, seed), SCENARIOS[name].build(64, seed, company=True)
    beside = world.ledger.faults[len(alone.ledger.faults) :]
    assert world.ledger.faults[: len(alone.ledger.faults)] == alone.ledger.faults
    assert len({truth.fault for truth in beside}) == ANOMALIES
    assert {truth.fault for truth in beside} <= HARMLESS
    assert not any(truth.kinds or truth.nodes for truth in beside)
    changed = {node for change in world.planned[len(alone.planned) :] for node in nodes_of(world, change)}
    assert len(changed) == ANOMALIES
    assert changed.isdisjoint(
        node for truth in alone.ledger.faults for node in range(9) if world.topology.node_name(node) in truth.nodes
    )


def test_nothing_of_idle_nodes_stands_where_the_job_will_run() -> None:
    """A GPU with locked clocks harms nobody while it is idle; a job that gets other nodes each time would meet it."""
    of_idle = {kind.name for kind in harmless.OF_IDLE_NODES}
    met = {
        truth.fault
        for seed in range(30)
        for truth in SCENARIOS["bad_batch"].build(64, seed, company=True).ledger.faults
    }
    assert met.isdisjoint(of_idle)
    others = {
        truth.fault
        for seed in range(30)
        for truth in SCENARIOS["exception"].build(64, seed, company=True).ledger.faults
    }
    assert others & of_idle


def test_what_is_sound_stays_alone() -> None:
    assert SCENARIOS["healthy"].build(64, 1, company=True, blind_share=1.0).planned == ()
    assert len(SCENARIOS["idle_port_flaps"].build(64, 1, company=True).ledger.faults) == 1


def test_a_cluster_that_is_too_small_for_company_is_refused() -> None:
    with pytest.raises(ValueError, match="as many nodes"):
        SCENARIOS["process_killed"].build(8, 1, company=True)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_blind_runs_is_what_was_asked(share: float) -> None:
    for name in SCENARIOS:
        blind = [is_blind(name, seed, share) for seed in range(1, 11)]
        assert abs(sum(blind) - 10 * share) <= 1


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_of_a_blind_run_nobody_is_asked_what_nobody_could_see(share: float) -> None:
    world = SCENARIOS["gpu_thermal"].build(16, 1, at_s=20.0, blind_share=share)
    told = [message for _, sent in world.run(40.0) for message in sent if b"whichrank.gpu.throttled" in message.value]
    truth = world.settle()
    (fault,) = truth.faults
    assert fault.blind == bool(share)
    assert {message.node for message in told} >= {"node-00002"}, "on other nodes it watches"
    assert (fault.nodes[0] in {message.node for message in told}) != bool(share)
    (score,) = score_run(truth.as_json(), []).faults
    assert score.condition is (None if share else False)


def test_of_a_link_one_collector_stays_that_tells_where_it_is() -> None:
    world = SCENARIOS["port_down"].build(64, 1, blind_share=1.0)
    assert [change.name for change in world.planned if change.family == "agent"] == ["network"]
    alone = SCENARIOS["port_half_rate"].build(64, 1, blind_share=1.0)
    assert not alone.ledger.faults[0].blind


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_nothing_is_said_of_what_is_harmless(name: str) -> None:
    score = score_run((judged := judge(name, until_s=90.0)).ledger.as_json(), judged.incidents)
    assert (score.faults, score.pages) == ((), 0)


@pytest.mark.parametrize("kind", [*harmless.OF_IDLE_NODES, *harmless.OF_ANY_NODE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("per_node", [4, 8])
def test_an_anomaly_stays_on_its_node_whatever_its_size(kind: FaultKind, per_node: int) -> None:
    topology = Topology(shape=ClusterShape(nodes=3, gpus_per_node=per_node))
    spec = JobSpec(name="a", mesh=Mesh(tensor=1, data=3 * per_node), nodes=(0, 1, 2), ranks_per_node=per_node)
    site = FaultSite(topology=topology, jobs=(spec,), at_s=9.0, random=np.random.default_rng(1), node=2)
    for change in kind.plan(site).changes:
        sized = 1 if change.family in ("host", "agent") else per_node
        assert [place // sized for place in change.places] == [2]
