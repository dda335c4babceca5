"""What a command leaves: the confusion table, the picture and the verdicts to read say what was judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from .catalogue import FAMILIES, SCENARIOS
from .confusion import confusion
from .draw import draw_plan, goes_alone
from .judge import Verdict
from .main import main, parse, select
from .outputs import write_all
from .picture import Dot, rows_of
from .plan import Scenario
from .report import must_show, skipped
from .soak import SOAK, Sample, soak_lines

NAMED = {scenario.name: scenario for scenario in SCENARIOS}
KILL, SLOW, CLEAN = NAMED["SIGKILL"], NAMED["compute straggler"], NAMED["clean: FSDP2"]
RIGHT = Verdict(
    problems=(), incidents=1, apart=0, blamed=True, delay_s=0.3, limit_s=1.0, said="immediate_crash/rank_died"
)
NOTHING = Verdict(problems=("no incident",), incidents=0, apart=0, blamed=False)


def test_the_confusion_table_tells_wrong_kinds_innocents_silence_and_second_incidents_apart() -> None:
    judged = [
        (KILL, RIGHT),
        (KILL, replace(RIGHT, said="immediate_crash/rank_raised")),
        (KILL, replace(RIGHT, blames_innocents=True)),
        (KILL, NOTHING),
        (KILL, replace(RIGHT, incidents=2)),
        (CLEAN, NOTHING),
        (CLEAN, replace(RIGHT, said="speed_regression/rank_slow")),
    ]
    cells = confusion(judged)
    assert {said: count for (truth, said), count in cells.items() if truth == "rank_died"} == {
        "rank_died": 1,
        "rank_raised": 1,
        "rank_died, innocent blamed": 1,
        "none": 1,
        "several incidents": 1,
    }
    assert {said: count for (truth, said), count in cells.items() if truth == "none"} == {"none": 1, "rank_slow": 1}


def test_every_run_with_a_time_asked_is_a_dot_and_silence_is_one_too() -> None:
    slow = replace(RIGHT, delay_s=9.0, limit_s=None, steps=7)
    judged = [(KILL, RIGHT), (KILL, NOTHING), (SLOW, slow), (CLEAN, NOTHING)]
    (seconds,), (steps,) = (rows_of(judged, FAMILIES, steps=flag) for flag in (False, True))
    assert (seconds.family, seconds.scenario) == ("basics", "SIGKILL")
    assert seconds.dots == (Dot(value=0.3, bar=1.0, right=True), Dot(value=None, bar=None, right=False))
    assert steps.dots == (Dot(value=7, bar=10, right=True),)


def test_all_is_written_and_short_is_told(tmp_path: Path) -> None:
    judged: list[tuple[Scenario, Verdict]] = [(KILL, RIGHT)]
    document = {
        "id": "a",
        "kind": "rank_died",
        "bucket": "immediate_crash",
        "severity": "page",
        "state": "open",
        "suspects": [{"scope": "rank", "id": "2", "rank": 2}],
        "evidence": [{"shows": "killed by signal 9", "source": "rank 2", "signal": "rank.exit"}],
        "times": {"onset": 1.0, "detected": 1.2},
    }
    console = Console(file=(tmp_path / "console.txt").open("w"), width=150)
    verdicts = [(KILL, draw_plan(KILL, 1, 0), document)]
    assert write_all(tmp_path / "seed-1", "scenarios, seed 1", judged, verdicts, must_show(judged), console)
    assert (tmp_path / "seed-1" / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert "rank_died" in (tmp_path / "seed-1" / "tables.txt").read_text()
    read = (tmp_path / "seed-1" / "verdicts.txt").read_text()
    assert "TRUE: SIGKILL #0: rank_died" in read
    assert "killed by signal 9" in read
    lines = [*must_show(judged), skipped(["two nodes: not root"])]
    assert not write_all(tmp_path / "seed-1", "scenarios, seed 1", judged, verdicts, lines, console)


def test_the_parts_of_a_seed_hold_every_run_once() -> None:
    whole = {(s.name, p.repeat) for s, p in select(parse(["--seed", "7"]), 7)}
    parts = [[(s.name, p.repeat) for s, p in select(parse(["--part", f"{i}/4"]), 7)] for i in range(1, 5)]
    assert sum(map(len, parts)) == len(whole)
    assert set().union(*parts) == whole
    assert (SOAK.name, 0) in whole


def test_what_is_measured_by_pace_or_fills_the_machine_goes_alone() -> None:
    plan = replace(draw_plan(KILL, 1, 0), world_size=2)
    assert not goes_alone(KILL, plan)
    assert goes_alone(KILL, replace(plan, world_size=5))
    assert goes_alone(SLOW, plan)
    assert not goes_alone(CLEAN, replace(plan, world_size=4))


def test_every_twin_is_a_scenario_of_its_own_kind_of_truth() -> None:
    twins = {scenario.name: scenario.twin for scenario in SCENARIOS if scenario.twin}
    assert twins
    for name, twin in twins.items():
        assert NAMED[twin].truth.kind == NAMED[name].truth.kind, name


def test_the_plan_is_told_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--only", "SIGSTOP", "--list"]) == 0
    assert capsys.readouterr().out.count("SIGSTOP #") == 3


@pytest.mark.parametrize(
    ("grows", "short"),
    [
        ({}, set()),
        ({"memory_mib": 0.05}, {"resident memory"}),
        ({"files_mib": 0.01}, {"state, incidents and other files"}),
        ({"capture_mib": 6.0}, {"capture"}),
        ({"cpu_s": 0.03}, {"processor time"}),
        ({"open_files": 1}, {"descriptors and threads"}),
        ({"ring_mib": 0.01}, {"rings do not grow"}),
    ],
)
def test_a_soak_is_short_when_anything_grows(grows: dict[str, float], short: set[str]) -> None:
    """grows: by how much, per second."""
    flat = {"cpu_s": 1.0, "memory_mib": 60.0, "capture_mib": 3.0, "files_mib": 0.1, "ring_mib": 1.2}

    def sample(after_s: float) -> Sample:
        grown = {name: value + grows.get(name, 0.0) * after_s for name, value in flat.items()}
        return Sample(after_s=after_s, threads=3, open_files=int(15 + grows.get("open_files", 0) * after_s), **grown)

    lines = soak_lines([sample(10.0 * i) for i in range(1, 361)], 3600.0)
    found = {line.name.removeprefix("soak: ") for line in lines if line.ok is False}
    assert {name for name in found if not name.startswith(tuple(short))} == set()
    assert len(found) == len(short)
    assert soak_lines([sample(10.0 * i) for i in range(1, 100)], 3600.0)[0].ok is False
