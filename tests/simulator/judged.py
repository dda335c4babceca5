"""Runs a scenario through the real operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whichrank.evaluation.simulate.judge import Judge
from whichrank.simulator.ground_truth import GroundTruth, Truth
from whichrank.simulator.program import Recipe
from whichrank.simulator.scenarios.scenarios import SCENARIOS, Scenario
from whichrank.simulator.world import World


@dataclass
class Judged:
    world: World
    ledger: GroundTruth
    incidents: list[Mapping[str, Any]]
    revisions: list[Mapping[str, Any]]

    @property
    def truth(self) -> Truth:
        return self.ledger.faults[0]

    @property
    def only(self) -> Mapping[str, Any]:
        assert len(self.incidents) == 1, [(each["kind"], each["scope"]) for each in self.incidents]
        return self.incidents[0]


def judge(
    name: str,
    *,
    ranks: int = 16,
    seed: int = 1,
    at_s: float = 40.0,
    until_s: float = 60.0,
    recipe: Recipe | None = None,
) -> Judged:
    return judge_scenario(SCENARIOS[name], ranks=ranks, seed=seed, at_s=at_s, until_s=until_s, recipe=recipe)


def judge_scenario(
    scenario: Scenario,
    *,
    ranks: int = 16,
    seed: int = 1,
    at_s: float = 40.0,
    until_s: float = 60.0,
    recipe: Recipe | None = None,
) -> Judged:
    world = scenario.build(ranks, seed, at_s=at_s, recipe=recipe)
    judge = Judge()
    for end_s, sent in world.run(until_s):
        judge.take(end_s, sent)
    judge.close()
    assert judge.runner.broken == 0
    return Judged(
        world=world,
        ledger=world.settle(),
        incidents=[each.document for each in judge.incidents.values()],
        revisions=[each.document for each in judge.revisions],
    )


def suspects(incident: Mapping[str, Any]) -> set[int]:
    return {suspect["rank"] for suspect in incident["suspects"] if suspect.get("rank") is not None}
