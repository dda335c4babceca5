"""The stages of the Flink job conclude what the embedded engine concludes of the same messages, whatever comes first.

All revisions are compared, with their times, with restarts in between and without: no operator remembers anything
beside its rows.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.long_runs import LONG
from tests.processors.flink.local_stages import LocalStages, documents
from tests.same_incidents.facts import facts_of, first_difference
from whichrank.agents.reduction.large_jobs import LARGE_RANKS
from whichrank.evaluation.simulate.judge import Judge, encoded
from whichrank.simulator.clock import ns
from whichrank.simulator.scenarios.scenarios import SCENARIOS

BEAT_NS = 250_000_000
MILLISECOND_NS = 1_000_000
#: (scenario, ranks): crash, hang, slow, desync, device, shared cause of several jobs, restart, numbers, silence.
WHOLE = (
    pytest.param("process_killed+never_enters", 16, marks=LONG),
    pytest.param("slow_gpu", 16, marks=LONG),
    pytest.param("other_branch", 16, marks=LONG),
    ("gpu_off_the_bus+harmless", 16),
    ("messages_lost", 16),
    pytest.param("node_lost", 16, marks=LONG),
)
RESTARTED = (
    ("exception", 16),
    ("never_enters", 16),
    pytest.param("gpu_memory_error+kernel_lines_lost", 16, marks=LONG),
    ("agent_dies", 16),
    pytest.param("node_lost", 16, marks=LONG),
)


def judged_twice(
    scenario: str, ranks: int, seed: int, *, restarts: bool, at_s: float | None = None, seconds: float = 0.0
) -> tuple[list[Any], list[Any]]:
    """Revisions of the embedded engine, and of the stages, each as facts. at_s: of the fault; seconds: of the run."""
    world = SCENARIOS[scenario].build(ranks, seed, at_s=at_s)
    start_ns = world.start_unix_ns
    judge = Judge(start_unix_ns=start_ns)
    stages, chance = LocalStages(seed=seed), random.Random(seed)
    beat_ns = start_ns
    try:
        for until_s, sent in world.run(seconds or 60.0 * SCENARIOS[scenario].minutes):
            judge.take(until_s, sent)
            for message in sent:
                stamp_ns = start_ns + ns(message.at_s)
                while beat_ns + BEAT_NS < stamp_ns:
                    beat_ns += BEAT_NS
                    stages.beat(beat_ns)
                    stages.pass_to(beat_ns // MILLISECOND_NS - 1)
                for value in encoded(message):
                    stages.send(message.topic, message.key, value, stamp_ns)
            end_ns = start_ns + ns(until_s)
            stages.beat(end_ns)
            stages.pass_to(end_ns // MILLISECOND_NS)
            if restarts and chance.random() < 0.2:
                stages.restart()
        embedded = [facts_of(each.document) for each in judge.revisions]
        return embedded, [facts_of(each) for each in documents(stages.incidents())]
    finally:
        judge.close()


@pytest.mark.parametrize(("scenario", "ranks"), WHOLE)
def test_all_revisions_are_the_same(scenario: str, ranks: int) -> None:
    embedded, stages = judged_twice(scenario, ranks, 3, restarts=False)
    assert embedded
    assert first_difference(embedded, stages) == ""


@pytest.mark.parametrize(("scenario", "ranks"), RESTARTED)
def test_restarts_change_nothing(scenario: str, ranks: int) -> None:
    embedded, stages = judged_twice(scenario, ranks, 3, restarts=True)
    assert embedded
    assert first_difference(embedded, stages) == ""


def test_a_large_job_whose_flushes_are_joined_is_judged_the_same() -> None:
    embedded, stages = judged_twice("process_killed", LARGE_RANKS, 3, restarts=True, at_s=6.0, seconds=12.0)
    assert embedded
    assert first_difference(embedded, stages) == ""


def test_a_sound_job_stays_sound() -> None:
    assert judged_twice("healthy", 16, 3, restarts=True) == ([], [])
