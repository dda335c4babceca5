"""A real job that is killed and goes on from its checkpoint: the table says what the job itself has written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whichrank.telemetry.vocabulary import TimeBucket

SCRIPT = Path(__file__).with_name("goodput_training.py")
STEPS, KILLED_AT = 60, 36
#: Torch's launcher keeps its store over restarts, and with it the addresses of ranks that are gone.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
B = TimeBucket


def run_job(folder: Path) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(folder / "run"), "--view", "none", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--max-restarts=1"]
    return subprocess.run(
        [*run, *torchrun, str(SCRIPT), str(folder), str(STEPS), str(KILLED_AT)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **OWN_STORE},
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], Path]:
    """The account, the job's own notes, the incident, and the run's folder."""
    folder = tmp_path_factory.mktemp("goodput")
    done = run_job(folder)
    assert done.returncode == 0, done.stderr[-2000:]
    notes = [json.loads(line) for path in folder.glob("truth-*.jsonl") for line in path.read_text().splitlines()]
    goodput = [sys.executable, "-m", "whichrank.commands.main", "goodput", str(folder / "run")]
    said = subprocess.run([*goodput, "--json"], capture_output=True, text=True, check=True)
    (account,) = json.loads(said.stdout)["runs"]
    last = [json.loads(line) for line in (folder / "run" / "incidents.jsonl").read_text().splitlines()][-1]
    return account, notes, last, folder / "run"


def of(notes: list[dict[str, Any]], what: str, **values: Any) -> list[dict[str, Any]]:
    return [note for note in notes if note["what"] == what and all(note[k] == v for k, v in values.items())]


def ends(notes: list[dict[str, Any]], attempt: int) -> dict[int, int]:
    """When the last rank had ended each step that all had ended."""
    steps: dict[int, list[int]] = {}
    for note in of(notes, "step", attempt=attempt):
        steps.setdefault(note["step"], []).append(note["end_ns"])
    return {step: max(times) for step, times in sorted(steps.items()) if len(times) == 4}


def longest(notes: list[dict[str, Any]], what: str, attempt: int, first: int, last: int) -> int:
    """What the slowest rank took, summed over these steps."""
    steps: dict[int, int] = {}
    for note in of(notes, what, attempt=attempt):
        if first <= note["step"] <= last:
            steps[note["step"]] = max(steps.get(note["step"], 0), note["end_ns"] - note["begin_ns"])
    return sum(steps.values())


def close(said_ns: int, truth_ns: float, late_ns: int = 0) -> bool:
    """late_ns: so much later than it happens a thing is seen at most on this machine now, by whoever waits for it."""
    return abs(said_ns - truth_ns) <= max(0.2e9, 0.02 * truth_ns, 2.0 * late_ns)


def test_every_bucket_is_what_the_job_has_written_down(
    told: tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], Path],
) -> None:
    account, notes, incident, _ = told
    ns = account["ns"]
    assert sum(ns.values()) == account["wall_ns"]
    assert close(account["wall_ns"], (account["end"] - account["begin"]) * 1e9)
    one, two = ends(notes, 0), ends(notes, 1)
    (killed,) = (note["begin_ns"] for note in of(notes, "killed"))
    resumed = min(note["step"] for note in of(notes, "load"))
    assert resumed == 30
    assert max(one) == KILLED_AT - 1
    data = longest(notes, "data", 0, 0, 29) + longest(notes, "data", 1, 30, STEPS - 1)
    lost_data = longest(notes, "data", 0, 30, KILLED_AT - 1)
    saves = longest(notes, "save", 0, 0, 99) + longest(notes, "save", 1, 0, 99)
    begun_one, begun_two = (
        max(note["begin_ns"] for note in of(notes, "step", attempt=attempt, step=step))
        for attempt, step in ((0, 0), (1, 30))
    )
    worked = (one[29] - begun_one) + (two[STEPS - 1] - begun_two)
    kept_saves = longest(notes, "save", 0, 0, 29) + longest(notes, "save", 1, 0, 99)
    detected = incident["times"]["detected"] * 1e9
    restored = max(note["end_ns"] - note["begin_ns"] for note in of(notes, "load"))
    truth = {
        B.STARTING: begun_one - account["begin"] * 1e9,
        B.PRODUCTIVE: worked - data - kept_saves,
        B.DATA_STALL: data + lost_data,
        B.CHECKPOINT_SAVE: saves,
        B.REWORK: killed - one[29] - lost_data - longest(notes, "save", 0, 30, 30),
        B.FAULT_BEFORE_DETECTION: detected - killed,
        B.CHECKPOINT_RESTORE: restored,
        B.UNKNOWN: 0,
        B.STRAGGLER_LOSS: 0,
    }
    late_ns = max((note["end_ns"] - note["begin_ns"] for note in of(notes, "late")), default=0)
    wrong = {
        bucket.value: (ns[bucket.value] / 1e9, value / 1e9)
        for bucket, value in truth.items()
        if not close(ns[bucket.value], value, late_ns)
    }
    assert wrong == {}, (wrong, late_ns / 1e9, {name: value / 1e9 for name, value in ns.items()})
    # Until the last process was gone and from then to the next step: the job cannot see the border, but the whole.
    down = ns[B.SHUTDOWN.value] + ns[B.RESTARTING.value] + ns[B.FAULT_AFTER_DETECTION.value]
    before = begun_two - restored - detected
    after = account["end"] * 1e9 - two[STEPS - 1]
    assert close(down, before + after), (down / 1e9, before / 1e9, after / 1e9)


def test_the_incident_says_what_it_has_cost(
    told: tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], Path],
) -> None:
    account, _, incident, _ = told
    (down,) = account["interruptions"]
    assert down["incident"] == incident["id"]
    assert down["kind"] == "rank_died"
    assert incident["state"] == "resolved"
    assert incident["cost"]["gpu_seconds"] == pytest.approx(down["gpu_seconds"], rel=0.02)
    assert incident["jobs"][0]["cost"] == incident["cost"]
    assert 4 * 1.0 < incident["cost"]["gpu_seconds"] < 4 * 60


def test_few_revisions_tell_of_the_cost(
    told: tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], Path],
) -> None:
    *_, run = told
    revisions = [json.loads(line) for line in (run / "incidents.jsonl").read_text().splitlines()]
    costs = [(document.get("cost") or {}).get("gpu_seconds") for document in revisions]
    assert len({cost for cost in costs if cost}) <= 3, costs


def test_people_get_a_table_and_a_timeline(
    told: tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], Path],
) -> None:
    *_, run = told
    command = [sys.executable, "-m", "whichrank.commands.main", "goodput", str(run)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "goodput" in text
    assert "lost work" in text
    assert "rank_died" in text
    assert "#" in text
    assert "100.00 %" in text
