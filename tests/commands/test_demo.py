"""The demo's checker must be able to say no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whichrank.commands.demo.command import SCENARIOS, TRAINING, WITHOUT_LINE, copy_training, fault_lines, judge
from whichrank.telemetry.incident import canonical_line, complete_document
from whichrank.telemetry.user_code import is_user_file


def verdict(rank: int, kind: str, line: int | None, **fields: Any) -> dict[str, Any]:
    where = {"file": f"/somewhere/{TRAINING.name}", "line": line, "phase": "forward"}
    return complete_document(
        {
            "id": "a",
            "revision": 1,
            "change": "opened",
            "state": "open",
            "severity": "page",
            "bucket": "communication_hang",
            "kind": kind,
            "suspects": [{"scope": "rank", "id": str(rank), "rank": rank, "where": where}],
            "times": {"onset": 1.0, "detected": 4.0},
            **fields,
        }
    )


def judged(tmp_path: Path, *documents: dict[str, Any], scenario: str = "sleep_in_forward") -> list[str]:
    truth, incidents = tmp_path / "truth.json", tmp_path / "incidents.jsonl"
    truth.write_text(json.dumps({"rank": 2, "step": 40, "kind": scenario, "pid": 1, "time": 1.0}))
    incidents.write_bytes(b"".join(map(canonical_line, documents)))
    return judge(scenario, truth, incidents).wrong


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_marks_its_lines_in_the_script(scenario: str) -> None:
    lines = fault_lines(scenario)
    assert 1 <= len(lines) <= 2
    assert f'"{scenario}"' in TRAINING.read_text(), "the script must be able to commit it"


def test_the_script_is_the_users_own_wherever_whichrank_is_installed(tmp_path: Path) -> None:
    assert not is_user_file(f"/usr/lib/python3/site-packages/whichrank/commands/{TRAINING.name}")
    copy = copy_training(tmp_path)
    assert is_user_file(str(copy))
    assert copy.read_text() == TRAINING.read_text()


def test_the_right_verdict_passes(tmp_path: Path) -> None:
    (line,) = fault_lines("sleep_in_forward")
    planned = verdict(0, "planned_stop", None, id="b", bucket="planned", suspects=[])
    merged = verdict(1, "rank_slow", None, id="c", state="merged", merged_into="a")
    assert judged(tmp_path, verdict(2, "rank_not_entered", line), planned, merged) == []


def test_a_killed_rank_needs_no_line(tmp_path: Path) -> None:
    assert {"sigkill"} == WITHOUT_LINE
    assert judged(tmp_path, verdict(2, "rank_died", None), scenario="sigkill") == []


@pytest.mark.parametrize(
    ("rank", "kind", "offset", "words"),
    [(1, "rank_not_entered", 0, "suspects"), (2, "rank_died", 0, "kind"), (2, "rank_not_entered", 1, "place")],
)
def test_each_way_to_be_wrong_is_told(tmp_path: Path, rank: int, kind: str, offset: int, words: str) -> None:
    (line,) = fault_lines("sleep_in_forward")
    (problem,) = judged(tmp_path, verdict(rank, kind, line + offset))
    assert problem.startswith(words)


def test_none_and_two_are_wrong(tmp_path: Path) -> None:
    (line,) = fault_lines("sleep_in_forward")
    right = verdict(2, "rank_not_entered", line)
    assert judged(tmp_path) == ["0 incidents instead of one"]
    assert judged(tmp_path, right, verdict(1, "rank_slow", None, id="b", bucket="speed_regression")) == [
        "2 incidents instead of one"
    ]


def test_a_fault_that_never_struck_is_no_pass(tmp_path: Path) -> None:
    outcome = judge("sigkill", tmp_path / "nothing", tmp_path / "incidents.jsonl")
    assert "never injected" in outcome.wrong[0]


def test_a_real_demo_as_a_program_sees_it(tmp_path: Path) -> None:
    """Seed 184 draws step 30; the truth is known to the training script and the checker alone."""
    argv = [sys.executable, "-m", "whichrank.commands.main", "demo", "--json", "--scenario", "exception"]
    done = subprocess.run(
        [*argv, "--seed", "184", "--out", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    (line,) = done.stdout.splitlines()
    outcome = json.loads(line)
    assert (done.returncode, outcome["ok"], outcome["wrong"]) == (0, True, []), done.stderr
    assert (outcome["truth"]["rank"], outcome["truth"]["step"]) == (2, 30)
    assert outcome["verdict"]["suspects"][0]["rank"] == 2
    assert outcome["verdict"]["job"]["name"] == "demo_training.py"  # and not what its shell calls "$@"
    assert "whichrank: " in done.stderr
