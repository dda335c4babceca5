"""A fault may only change parameters; the truth is in no record; the same seed gives the same records; sums add up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from whichrank.evaluation.simulate.judge import encoded
from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.faults.catalogue import CATALOGUE
from whichrank.simulator.ground_truth import TimeUse
from whichrank.simulator.program import Recipe
from whichrank.simulator.resources import NotAParameter, ParameterChange, Resources
from whichrank.simulator.scenarios.layouts import one_job
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.world import World

from .judged import judge

SIMULATOR = Path(__file__).parents[2] / "simulator"
#: What a fault may know of the simulator: where things are, what a change is, how the truth is written down.
MAY_KNOW = {
    "resources": {"ParameterChange", "SERVICES"},
    "cluster_topology": {"Topology"},
    "jobs": {"JobSpec"},
    "ground_truth": {"Truth"},
}
MAY_IMPORT = {"__future__", "collections.abc", "dataclasses", "numpy"}


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.level, node.module or "", alias.name


@pytest.mark.parametrize("path", sorted((SIMULATOR / "faults").glob("*.py")), ids=lambda path: path.stem)
def test_a_fault_knows_nothing_by_which_it_could_tell_of_itself(path: Path) -> None:
    for level, module, name in imports(path):
        if level == 2:
            assert name in MAY_KNOW.get(module, set()), f"{path.name} imports {module}.{name}"
        elif level == 0:
            assert module in MAY_IMPORT, f"{path.name} imports {module}"
    calls = {node.func.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Attribute)}  # fmt: skip
    assert calls.isdisjoint({"write", "append_event", "publish", "emit", "apply", "of"}), path.name


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_fault_is_nothing_but_changes_of_parameters(name: str) -> None:
    ranks = 64
    scenario = SCENARIOS[name]
    world = scenario.build(ranks, 1)
    planned = world.planned
    assert planned, "a fault changes something"
    assert all(isinstance(change, ParameterChange) for change in planned)
    for change in planned:
        before = world.resources.snapshot()
        world.resources.apply(change)
        after = world.resources.snapshot()
        assert sum(not np.array_equal(before[key], after[key]) for key in before) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("gpu", "xid", 79.0), "no parameter"),
        (("gpu", "on_bus", 0.5), "up .1. or down"),
        (("gpu", "speed", -1.0), "cannot be"),
        (("port", "rate", float("inf")), "cannot be"),
        (("process", "alive", 0.0), "needs job"),
    ],
)
def test_what_is_no_parameter_cannot_be_changed(change: tuple[str, str, float], why: str) -> None:
    family, name, value = change
    with pytest.raises(NotAParameter, match=why):
        ParameterChange(at_s=0.0, family=family, name=name, value=value)


def test_resources_are_read_only_and_know_their_places() -> None:
    resources = Resources(Topology(shape=ClusterShape(nodes=2)))
    with pytest.raises(ValueError, match="read-only"):
        resources.of("gpu", "speed")[0] = 2.0
    with pytest.raises(NotAParameter, match="no place"):
        resources.apply(ParameterChange(at_s=0.0, family="gpu", name="speed", value=0.5, places=(16,)))
    with pytest.raises(NotAParameter, match="no job"):
        resources.apply(ParameterChange(at_s=0.0, family="process", name="alive", value=0.0, job="nobody"))


def sent_bytes(world: World, until_s: float) -> list[tuple[float, str, bytes]]:
    return [
        (message.at_s, message.topic, value)
        for _, sent in world.run(until_s)
        for message in sent
        for value in encoded(message)
    ]


@pytest.mark.parametrize("name", ["healthy", "gpu_off_the_bus"])
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    runs = [sent_bytes(SCENARIOS[name].build(16, seed, at_s=15.0), 25.0) for seed in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_truth_is_in_no_record() -> None:
    name = "gpu_off_the_bus"
    world = SCENARIOS[name].build(16, 1, at_s=15.0)
    assert all(b"gpu_off_the_bus" not in value for _, topic, value in sent_bytes(world, 14.0))
    words = [kind.name.encode() for kind in CATALOGUE.values() if kind.name not in ("exception",)]
    for _, _, value in sent_bytes(SCENARIOS["slow_gpu"].build(16, 1, at_s=15.0), 30.0):
        assert not any(word in value for word in words)


@pytest.mark.parametrize("name", ["healthy", "process_killed", "preemption", "never_enters", "node_lost"])
def test_every_nanosecond_of_a_job_is_in_one_bucket(name: str) -> None:
    recipe = Recipe(saves_every=5, timeout_s=20.0)
    judged = judge(name, ranks=16, at_s=30.0, until_s=95.0, recipe=recipe)
    ledger = judged.ledger
    for job in judged.world.jobs:
        spans = [span for span in ledger.spans if span.job == job.spec.name]
        assert spans[0].begin_ns == ledger.begin_ns(job.spec.name)
        assert all(one.end_ns == other.begin_ns for one, other in pairwise(spans))
        assert spans[-1].end_ns == 95_000_000_000
        sums = ledger.sums_ns(job.spec.name)
        assert sum(sums.values()) == 95_000_000_000
        assert sums[TimeUse.SAVE] > 0
        if name in ("process_killed", "never_enters", "node_lost"):
            assert sums[TimeUse.REWORK] > 0, "steps since the last checkpoint are lost"
            assert sums[TimeUse.RESTORE] > 0, "and the job comes back"
            attempts = {span.attempt for span in spans if span.bucket is TimeUse.PRODUCTIVE}
            assert attempts == {0, 1}


def test_a_restarted_job_leaves_the_broken_node_behind() -> None:
    judged = judge("node_lost", ranks=16, at_s=30.0, until_s=80.0)
    job = judged.world.jobs[0]
    assert job.attempt is not None
    assert job.attempt.number == 1
    assert judged.truth.nodes[0] not in {judged.world.topology.node_name(node) for node in job.spec.nodes}


def test_ranks_that_do_not_fill_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot be split|do not fill"):
        one_job(20, Recipe())
