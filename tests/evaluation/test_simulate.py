"""``whichrank simulate``: what is kept can be replayed, the truth lies beside it, and what cannot be is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whichrank.commands.embedded.replay import replay_run
from whichrank.commands.run_folder.run_directory import RunDirectory
from whichrank.evaluation.simulate.command import TRUTH_FILE, list_scenarios, simulate
from whichrank.simulator.scenarios.scenarios import SCENARIOS


def run(scenario: str, *, ranks: int = 16, minutes: float = 0.5, out: Path | None = None) -> int:
    return simulate(scenario, ranks=ranks, seed=1, minutes=minutes, out=out, kafka=None, as_json=True)


def test_what_is_kept_is_judged_again_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run("process_killed", minutes=3.0, out=out) == 0
    told = json.loads(capsys.readouterr().out)
    assert [incident["kind"] for incident in told["incidents"]] == ["rank_died"]
    assert told["faults"][0]["fault"] == "process_killed"
    replayed = replay_run(RunDirectory(out))
    assert replayed.compared == "equal"
    assert replayed.problems == []
    truth = json.loads((out / TRUTH_FILE).read_text())
    assert truth["faults"][0]["ranks"] == told["faults"][0]["ranks"]
    for job in truth["jobs"].values():
        assert sum(job["sums_ns"].values()) == job["end_ns"] - job["begin_ns"] == 180_000_000_000


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert run("healthy", out=tmp_path) == 2
    assert "holds another run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_what_cannot_be_simulated_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("no_such_thing") == 2
    assert run("healthy", ranks=20) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "there is no scenario 'no_such_thing'" in lines[0]
    assert "cannot be split" in lines[1]


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_scenarios(as_json=True) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["scenarios"]] == list(SCENARIOS)
