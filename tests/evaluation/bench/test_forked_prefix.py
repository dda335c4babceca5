"""Runs that are one until the first change give what each gives alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whichrank.evaluation.bench.forked_prefix import SHORTEST_S, fork_s, run_together, together
from whichrank.evaluation.bench.one_run import AskedRun, run
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.world import World

NAMES = ("healthy", "never_enters", "exception", "gpu_clock_locked")
#: With this seed every collector watches in these scenarios: without one a run differs from its first second on.
RANKS, SEED = 16, 4


def runs_of(*names: str) -> list[AskedRun]:
    return [AskedRun(scenario=name, ranks=RANKS, seed=SEED) for name in names]


def test_each_run_gives_what_it_gives_alone() -> None:
    asked = runs_of(*NAMES)
    assert together(asked) == [asked]
    found = dict(run_together(asked, limit_s=300.0))
    assert set(found) == set(asked)
    for each in asked:
        alone, shared = run(each), found[each]
        assert not shared.problem
        assert shared.truth == alone.truth
        assert shared.revisions == alone.revisions
        assert shared.simple == alone.simple
        assert (shared.rank_hours, shared.out_of_time) == (alone.rank_hours, False)
    truths = [truth for each in asked if (truth := found[each].truth) is not None]
    faults = [{fault.fault for fault in truth.faults if fault.kinds} for truth in truths]
    assert faults == [set(), {"never_enters"}, {"exception"}, {"gpu_clock_locked"}]


def test_who_has_nothing_in_common_or_too_little_is_alone() -> None:
    asked = [
        *runs_of("exception", "node_never_joins", "heavy_stage"),
        AskedRun(scenario="exception", ranks=RANKS, seed=SEED + 1),
    ]
    assert fork_s(asked[1].setting()) < SHORTEST_S
    assert together(asked) == [[each] for each in asked]
    impossible = AskedRun(scenario="metadata_storm", ranks=RANKS, seed=SEED)
    assert together([impossible]) == [[impossible]]


def test_runs_without_time_are_wrong() -> None:
    asked = runs_of("exception", "never_enters")
    late = dict(run_together(asked, limit_s=0.01))
    assert [each.out_of_time for each in late.values()] == [True, True]
    assert all(each.truth is not None and each.truth.faults for each in late.values())


def test_what_should_have_happened_by_now_is_refused() -> None:
    setting = runs_of("exception")[0].setting()
    world = World(setting.topology, setting.jobs, seed=SEED)
    for _ in world.run(1.0):
        pass
    early = [replace(change, at_s=1.0) for change in setting.changes]
    with pytest.raises(ValueError, match="too late for a change at 1 s"):
        world.expect(early, setting.truths, scenario="exception")
    world.expect(setting.changes, setting.truths, scenario="exception")
    assert world.ledger.scenario == "exception"


def test_runs_of_most_scenarios_have_their_beginning_in_common() -> None:
    groups = together([AskedRun(scenario=name, ranks=64, seed=SEED) for name in SCENARIOS])
    assert sum(map(len, groups)) == len(SCENARIOS)
    assert max(map(len, groups)) > len(SCENARIOS) / 4
