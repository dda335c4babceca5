"""What jobs share, without any operator: room, services, queues, nodes, spines; and devices that are weak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.fabric import PORT_BYTES_PER_S, Flows, group_rates, uplink_state
from whichrank.simulator.ground_truth import TimeUse
from whichrank.simulator.jobs import JobSpec, Launcher, State
from whichrank.simulator.mesh import mesh_for
from whichrank.simulator.program import Recipe
from whichrank.simulator.resources import SERVICES, ParameterChange, Resources
from whichrank.simulator.scenarios.layouts import jobs_over_spines
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.shared_storage import Demand, storage_state
from whichrank.simulator.world import World
from whichrank.telemetry.records import Event
from whichrank.telemetry.vocabulary import EventName

SHORT = Recipe(step_s=1.0, backend="gloo")


def job(name: str, *nodes: int, recipe: Recipe = SHORT, **more: object) -> JobSpec:
    spec = JobSpec(name=name, mesh=mesh_for(8 * len(nodes)), nodes=nodes, recipe=recipe)
    return replace(spec, **more)  # type: ignore[arg-type]


def world_of(jobs: Sequence[JobSpec], *changes: ParameterChange, nodes: int = 2, seed: int = 1) -> World:
    topology = Topology(shape=ClusterShape(nodes=nodes))
    return World(topology, jobs, seed=seed, changes=changes, senses=False)


def events_of(world: World, until_s: float, name: EventName) -> list[Event]:
    """In the order of their arrival."""
    return [
        payload
        for _, sent in world.run(until_s)
        for message in sent
        for payload in message.payloads
        if isinstance(payload, Event) and payload.name is name
    ]


def at(event: Event, world: World) -> float:
    return (event.time_ns - world.start_unix_ns) / 1e9


# --- room -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "number"), [("room_bytes", 28), ("quota_bytes", 122)])
def test_checkpoints_of_all_jobs_fail_once_there_is_no_room(name: str, number: int) -> None:
    saving = replace(SHORT, saves_every=10, save_bytes_per_rank=400_000_000)
    jobs = [job("a", 0, recipe=saving), job("b", 1, recipe=saving, start_s=4.0)]
    full = ParameterChange(at_s=30.0, family="filesystem", name=name, value=1.0e9)
    world = world_of(jobs, full)
    raised = events_of(world, 60.0, EventName.RANK_EXCEPTION)
    assert {event.identity.job for event in raised} == {"a", "b"}
    own = [event for event in raised if not event.attributes["communication"]]
    assert all(event.attributes["message"].startswith(f"[Errno {number}] ") for event in own)
    assert {event.attributes["phase"] for event in own} == {"checkpoint"}
    assert min(at(event, world) for event in raised) > 30.0
    assert len({event.identity.rank for event in own if event.identity.job == "a"}) == 8, "all writers hear of it"
    kept = [span.step for span in world.settle().spans if span.bucket is TimeUse.SAVE]
    assert kept, "earlier checkpoints were whole"


def test_a_checkpoint_gives_back_the_room_of_the_one_before() -> None:
    saving = replace(SHORT, saves_every=5, save_bytes_per_rank=400_000_000)
    world = world_of([job("a", 0, recipe=saving)], nodes=1)
    before = world.room.left("room_bytes")
    for _ in world.run(45.0):
        pass
    assert before - world.room.left("room_bytes") == 8 * 400_000_000


# --- services -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("service", range(len(SERVICES)))
def test_who_starts_without_a_service_ends_in_its_start_and_who_runs_goes_on(service: int) -> None:
    jobs = [job("runs", 0), job("starts", 1, start_s=21.0, launcher=Launcher(restart_s=10.0))]
    changes = [
        ParameterChange(at_s=at_s, family="service", name="up", value=up, places=(service,))
        for at_s, up in ((20.0, 0.0), (40.0, 1.0))
    ]
    world = world_of(jobs, *changes)
    seen = [
        payload
        for _, sent in world.run(80.0)
        for message in sent
        for payload in message.payloads
        if isinstance(payload, Event)
    ]
    raised = [event for event in seen if event.name is EventName.RANK_EXCEPTION]
    assert {event.identity.job for event in raised} == {"starts"}
    assert {(event.attributes["phase"], event.attributes["step"]) for event in raised} == {("init", 0)}
    failed = {event.identity.attempt for event in raised}
    met = {event.identity.attempt for event in seen if event.name is EventName.LAUNCH_MET}
    defined = {event.identity.attempt for event in seen if event.name is EventName.GROUP_DEFINED}
    assert failed.isdisjoint(met | defined), "ranks that never met have no group"
    assert world.jobs[1].attempt is not None
    assert world.jobs[1].attempt.steps.finished, "it comes back with the service"
    assert len(world.jobs[0].attempt.steps.finished) > 50  # type: ignore[union-attr]


# --- the file servers -----------------------------------------------------------------------------------------------
def test_readers_wait_behind_the_writes_of_those_who_save() -> None:
    topology = Topology(shape=ClusterShape(nodes=8))
    resources = Resources(topology)
    readers = Demand(clients=48, metadata_ops_per_step=1.0, step_s=2.0, bytes_per_s=2e8)
    saver = Demand(clients=16, metadata_ops_per_step=1.0, step_s=2.0, bytes_per_s=0.0)
    quiet = storage_state([readers, saver], resources, 64)
    busy = storage_state([readers, replace(saver, savers=16)], resources, 64)
    assert busy.bytes_per_s < 2e8 < quiet.bytes_per_s
    given = 48 * busy.bytes_per_s + 16 * busy.save_bytes_per_s
    assert given == pytest.approx(64 * 4e8), "the servers give what they have"


# --- nodes ----------------------------------------------------------------------------------------------------------
def test_a_job_waits_until_its_nodes_are_free() -> None:
    world = world_of([job("first", 0, 1, steps=8), job("second", 1, start_s=5.0)])
    for _ in world.run(60.0):
        pass
    first, second = world.jobs
    assert first.state is State.ENDED
    assert second.attempt is not None
    assert second.attempt.began_s >= world.ledger.reach_ns("first") / 1e9  # type: ignore[operator]
    sums = world.settle().sums_ns("second")
    assert sums[TimeUse.QUEUED] == round(second.attempt.began_s * 1e9)
    assert sum(sums.values()) == 60_000_000_000


def test_who_goes_before_others_takes_their_nodes_and_gives_them_back() -> None:
    jobs = [
        job("large", 0, 1, start_s=25.0, priority=1, steps=6, launcher=Launcher(requeues=True)),
        job("small", 0, launcher=Launcher(restart_s=3.0)),
    ]
    world = world_of(jobs)
    ends = events_of(world, 90.0, EventName.RANK_EXIT)
    small = [event for event in ends if event.identity.job == "small"]
    assert {event.attributes["signal"] for event in small} == {15}
    assert all(25.0 < at(event, world) < 26.0 for event in small)
    large_began_s = min(span.begin_ns for span in world.ledger.spans if span.job == "large" and span.step >= 0) / 1e9
    assert large_began_s > max(at(event, world) for event in small), "never two on one node"
    assert world.jobs[0].state is State.ENDED
    assert world.jobs[1].attempt is not None
    sums = world.settle().sums_ns("small")
    assert sums[TimeUse.PLANNED] > 0
    assert sum(sums.values()) == 90_000_000_000


# --- spines ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [64, 256, 1024])
def test_a_spine_is_enough_for_one_job_and_not_for_two(ranks: int) -> None:
    layout = jobs_over_spines(ranks, Recipe())
    resources = Resources(layout.topology)
    flows = {
        spec.name: Flows(spec.name, spec.mesh, spec.gpus(layout.topology), layout.topology) for spec in layout.jobs
    }
    traffic = dict.fromkeys(flows, 0.3)
    first, second, other = flows
    two = {first: flows[first], other: flows[other]}
    alone = group_rates(two, resources, uplink_state(two, resources, layout.topology, traffic))
    together = group_rates(flows, resources, uplink_state(flows, resources, layout.topology, traffic))
    assert alone[first]["dp"].min() == PORT_BYTES_PER_S
    assert together[first]["dp"].max() < 0.8 * PORT_BYTES_PER_S
    assert together[second]["dp"].max() < 0.8 * PORT_BYTES_PER_S
    assert together[other]["dp"].min() == PORT_BYTES_PER_S
    spines = {spec.name: {layout.topology.labels(node)["spine"] for node in spec.nodes} for spec in layout.jobs}
    leaves = {spec.name: {layout.topology.labels(node)["leaf"] for node in spec.nodes} for spec in layout.jobs}
    assert spines[first] == spines[second] != spines[other]
    assert leaves[first].isdisjoint(leaves[second])


# --- what fails by chance -------------------------------------------------------------------------------------------
def test_a_weak_node_fails_its_jobs_in_several_words_and_no_other() -> None:
    jobs = [job("on-it", 0, launcher=Launcher(restart_s=1.0, most_restarts=9)), job("beside-it", 1)]
    weak = ParameterChange(at_s=0.0, family="host", name="memory_faults", value=900.0, places=(0,))
    world = world_of(jobs, weak, seed=3)
    ends = events_of(world, 150.0, EventName.RANK_EXIT)
    assert {event.identity.job for event in ends} == {"on-it"}
    assert {event.identity.node for event in ends} == {world.topology.node_name(0)}
    firsts: dict[str, tuple[object, object]] = {}
    for event in sorted(ends, key=lambda event: event.time_ns):
        firsts.setdefault(event.identity.attempt, (event.attributes["signal"], event.attributes["exception"]))
    assert len(firsts) >= 3
    assert len(set(firsts.values())) >= 2, firsts


def test_nothing_fails_by_chance_where_nothing_is_weak() -> None:
    world = world_of([job("a", 0, 1)])
    assert events_of(world, 60.0, EventName.RANK_EXIT) == []


# --- all of them ----------------------------------------------------------------------------------------------------
NEW = ["filesystem_full", "quota_used_up", "service_away", "checkpoint_burst", "one_spine", "requeued_again",
       "lemon_node", "bad_rollout", "corrupts_jobs"]  # fmt: skip


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("ranks", [64, 256, 1024])
def test_it_can_be_laid_out_and_nobody_shares_a_gpu(name: str, ranks: int) -> None:
    world = SCENARIOS[name].build(ranks, 1)
    assert world.topology.gpus == ranks
    (truth,) = world.ledger.faults
    assert truth.kinds
    assert all(node < world.topology.nodes for running in world.jobs for node in running.spec.nodes)


@pytest.mark.parametrize("name", ["lemon_node", "requeued_again", "checkpoint_burst"])
def test_the_same_seed_gives_the_same_messages(name: str) -> None:
    def messages(seed: int) -> list[tuple[float, str, str, int]]:
        world = SCENARIOS[name].build(64, seed, at_s=20.0)
        return [
            (message.at_s, message.topic, message.node, len(message.value) or len(message.payloads))
            for _, sent in world.run(75.0)
            for message in sent
        ]

    first, again, other = (messages(seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other
