"""Days without a fault hold everything that looks like one; agents in reduced mode tell the same of each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.long_runs import LONG
from whichrank.evaluation.simulate.judge import Judge
from whichrank.simulator.scenarios.grounds import HELD_OUT, HELD_OUT_SEED
from whichrank.simulator.scenarios.sound_days import MODES, REDUCED, REFERENCE, SoundDayMode, sound_world
from whichrank.simulator.world import World
from whichrank.telemetry.records import Block
from whichrank.telemetry.vocabulary import EventName


def step_rows(world: World, seconds: float) -> dict[tuple[int, int], Any]:
    """By rank and step."""
    found: dict[tuple[int, int], Any] = {}
    for _, sent in world.run(seconds):
        for message in sent:
            for payload in message.payloads:
                if isinstance(payload, Block) and payload.name is EventName.BLOCK_STEPS:
                    found |= {(int(row["rank"]), int(row["step"])): row for row in payload.rows}
    return found


def names_of(world: World, seconds: float) -> set[EventName]:
    return {p.name for _, sent in world.run(seconds) for m in sent for p in m.payloads if isinstance(p, Block)}


def test_a_step_row_alone_says_what_it_says_among_all_records() -> None:
    """Whether calls are recorded and how often agents send changes nothing of a step's times."""
    quiet = replace(REFERENCE, around_s=1e12)
    alone = step_rows(sound_world(replace(quiet, steps_only=True, flush_s=5.0), 16, 1, 120.0), 60.0)
    among = step_rows(sound_world(quiet, 16, 1, 120.0), 60.0)
    both = sorted(alone.keys() & among.keys())
    assert len({step for _, step in both}) > 10
    for key in both:
        for column in ("begin_ns", "end_ns", "phase_ns", "loss", "grad_norm", "flags"):
            np.testing.assert_array_equal(alone[key][column], among[key][column])


def test_in_reduced_mode_a_minute_of_a_job_is_a_few_messages() -> None:
    world = sound_world(replace(REDUCED, around_s=1e12), 64, 1, 7200.0)
    blocks = [[message for message in sent if message.payloads] for _, sent in world.run(600.0)]
    assert all(1 <= len(messages) <= 4 for messages in blocks[2:])
    rows = [sum(len(p.rows) for m in messages for p in m.payloads if isinstance(p, Block)) for messages in blocks[2:]]
    assert all(2 * 64 <= count <= 4 * 64 for count in rows)


def test_in_reduced_mode_nothing_but_step_rows_are_sent() -> None:
    assert names_of(sound_world(REDUCED, 16, 1, 7200.0), 600.0) == {EventName.BLOCK_STEPS}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_everything_harmless_comes_and_nothing_that_anybody_should_be_told(mode: SoundDayMode) -> None:
    changed, told = set(), set()
    for seed in range(12):
        world = sound_world(mode, 64, HELD_OUT_SEED + seed, 40 * mode.around_s)
        changed |= {(change.family, change.name) for change in world.planned}
        told |= {fault.fault for fault in world.ledger.faults}
        assert not any(fault.kinds for fault in world.ledger.faults)
    assert {("agent", "up"), ("agent", "wanted"), ("agent", "loss"), ("port", "up"), ("program", "granted")} <= changed
    assert {name for family, name in changed if family == "agent"} >= {"gpu", "network", "kernel_log", "storage"}
    assert len(told) >= 5


def test_they_follow_from_the_seed_alone_and_stand_on_held_out_grounds() -> None:
    first, again = (sound_world(REDUCED, 64, HELD_OUT_SEED + 1, 2e5).planned for _ in range(2))
    assert first == again
    meshes = {sound_world(REDUCED, 64, HELD_OUT_SEED + seed, 7200.0).jobs[0].spec.mesh for seed in range(len(HELD_OUT))}
    assert len(meshes) > 2


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=LONG)])
def test_a_save_right_after_an_evaluation_calls_nobody(seed: int) -> None:
    """The first is at step 300, after 11 minutes: ranks write for four seconds, and an agent restarts meanwhile (1)."""
    judge = Judge()
    for end_s, sent in sound_world(REFERENCE, 64, seed, 3600.0).run(666.0):
        judge.take(end_s, sent)
    judge.close()
    assert [each.document["kind"] for each in judge.incidents.values() if each.document["severity"] == "page"] == []
