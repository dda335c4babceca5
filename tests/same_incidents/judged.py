"""Runs judged once more by the operators of this tree: simulated ones, and captures of real jobs."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whichrank.commands.embedded.replay import replay_run
from whichrank.commands.run_folder.run_directory import RunDirectory
from whichrank.evaluation.simulate.judge import Judge
from whichrank.simulator.scenarios.scenarios import SCENARIOS, Scenario

Documents = list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Simulated:
    """One run of a scenario."""

    scenario: str
    ranks: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.scenario}-{self.ranks}-{self.seed}"

    def judge(self) -> Documents:
        """All revisions."""
        scenario = SCENARIOS[self.scenario]
        world = scenario.build(self.ranks, self.seed)
        judge = Judge(start_unix_ns=world.start_unix_ns)
        try:
            for until_s, sent in world.run(60.0 * scenario.minutes):
                judge.take(until_s, sent)
            return [each.document for each in judge.revisions]
        finally:
            judge.close()


#: The fewest that fit a scenario's layout are taken: a mesh of 8 x 4, four jobs under two leaf switches each.
_RANKS = (16, 32, 64, 128, 256, 512)


def simulated_runs() -> Iterator[Simulated]:
    """Every scenario four times, on the fewest ranks that it can be laid out on, with seeds that differ."""
    for name, scenario in SCENARIOS.items():
        ranks = next(ranks for ranks in _RANKS if _fits(scenario, ranks))
        for draw in range(4):
            yield Simulated(scenario=name, ranks=ranks, seed=1 + zlib.crc32(f"{name}-{draw}".encode()) % 1000)


def _fits(scenario: Scenario, ranks: int) -> bool:
    try:
        scenario.build(ranks, 1)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Captured:
    """The folder of a real run, or what is kept of it."""

    name: str
    folder: Path

    def judge(self) -> Documents:
        """All revisions, from what was captured alone: rings that a killed run left are gone some day.

        Raises ``Unusable`` where there is nothing to judge.
        """
        with tempfile.TemporaryDirectory() as made:
            bare = RunDirectory(Path(made))
            bare.capture.symlink_to(RunDirectory(self.folder).capture.resolve())
            description = RunDirectory(self.folder).read_run()
            bare.write_run(replace(description, ring_directory=None))
            return [each.document for each in replay_run(bare).revisions]
