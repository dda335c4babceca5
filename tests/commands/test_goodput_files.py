"""``whichrank goodput FILE``: public event logs, our own intervals, and one clear line for what is neither."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whichrank.commands.goodput import interval_sources
from whichrank.commands.run_folder.run_directory import Unusable
from whichrank.diagnosis.goodput.interval import Interval, Part, as_body
from whichrank.telemetry.incident import incident_id
from whichrank.telemetry.vocabulary import Kind, TimeBucket

S = 1_000_000_000


def goodput(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "whichrank.commands.main", "goodput", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def written(path: Path, *records: Any) -> str:
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return str(path)


def account(path: str, *words: str) -> dict[str, Any]:
    done = goodput("--json", path, *words)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    for run in document["runs"]:
        assert sum(run["ns"].values()) == run["wall_ns"]
        assert set(run["ns"]) == set(run["gpu_ns"]) == {bucket.value for bucket in TimeBucket}
    return document


def started(step: int, at_s: float) -> dict[str, float]:
    return {"step_count": step, "step_start_time": at_s}


def test_a_restart_that_hides_in_a_long_step(tmp_path: Path) -> None:
    steps = [started(number, 5.0 + 2.0 * number + (60.0 if number > 4 else 0.0)) for number in range(10)]
    log = written(tmp_path / "log.jsonl", {"job_start_time": 0.0}, *steps, {"job_end_time": 85.0})
    document = account(log)
    assert document["kind"] == "step_log"
    (run,) = document["runs"]
    assert run["ns"]["productive"] == 20 * S
    assert run["ns"]["restarting"] == 60 * S
    assert run["goodput"] == pytest.approx(20 / 85)
    assert len(run["interruptions"]) == 1


def test_what_is_loaded_beside_the_steps_is_not_added_to_them(tmp_path: Path) -> None:
    loads = [{f"async_data_loading_{end}_time": at} for end, at in (("start", 1.0), ("end", 9.0))]
    steps = [started(number, 2.0 * number) for number in range(5)]
    log = written(tmp_path / "log.jsonl", {"job_start_time": 0.0}, *steps, *loads, {"job_end_time": 10.0})
    (run,) = account(log)["runs"]
    assert run["ns"]["productive"] == 10 * S


def test_a_step_that_came_again_was_lost(tmp_path: Path) -> None:
    log = written(
        tmp_path / "log.jsonl",
        {"job_start_time": 0.0}, started(0, 1.0), started(1, 3.0), started(2, 5.0), started(3, 7.0), started(4, 9.0),
        {"job_start_time": 20.0}, started(3, 30.0), started(4, 32.0), started(5, 34.0), {"job_end_time": 36.0},
    )  # fmt: skip
    (run,) = account(log)["runs"]
    assert run["ns"]["productive"] == 6 * 2 * S, "each step once"
    assert run["ns"]["rework"] == 2 * 2 * S, "the last one's own work, not the whole recovery"
    assert run["ns"]["restarting"] == 19 * S


def test_checkpoints_tell_what_counts(tmp_path: Path) -> None:
    def event(kind: str, minute: int, **values: int) -> str:
        line = {"timestamp": f"2025-03-01T10:{minute:02}:00", "event_type": kind, "job_name": "llm", **values}
        return f"[node 3] INFO {json.dumps(line)}"

    log = written(
        tmp_path / "log.txt",
        event("user_scheduled", 0),
        "a line of something else",
        event("job_started", 2, node_rank=0),
        event("job_started", 3, node_rank=1),
        event("checkpoint_loaded", 5, step=0),
        event("checkpoint_saved", 15, step=100),
        event("checkpoint_saved", 25, step=200),
        event("job_terminated", 30),
        event("job_started", 35),
        event("checkpoint_loaded", 36, step=100),
        event("checkpoint_saved", 46, step=200),
        event("job_terminated", 47),
    )
    document = account(log, "--reference-step", "5")
    assert document["kind"] == "checkpoint_log"
    assert document["published"]["goodput"] == pytest.approx(200 * 5 / (47 * 60))
    (run,) = document["runs"]
    minutes = {bucket: ns / 60 / S for bucket, ns in run["ns"].items() if ns}
    assert minutes == {
        "queued": 3, "starting": 2, "productive": 20, "rework": 15, "restarting": 6, "shutdown": 1,
    }  # fmt: skip
    assert run["reference_step_s"] == pytest.approx(6.0)


def test_our_own_intervals_and_incidents(tmp_path: Path) -> None:
    parts = (Part(TimeBucket.PRODUCTIVE, 7 * S), Part(TimeBucket.DATA_STALL, 3 * S))
    whole = Interval(begin_ns=5 * S, end_ns=15 * S, parts=parts, gpus=4, steps=10, first_step=0, last_step=9)
    bad = {**as_body(whole), "end_ns": 16 * S}
    lines = [{"run": "r", "job": "j", "attempt": "a", "interval": body} for body in (as_body(whole), bad)]
    document = account(written(tmp_path / "intervals.jsonl", *lines))
    assert document["kind"] == "intervals"
    assert len(document["problems"]) == 1
    (run,) = document["runs"]
    assert run["gpu_ns"]["productive"] == 28 * S
    assert run["timeline"][0]["bucket"] == "productive"
    text = goodput(str(tmp_path / "intervals.jsonl")).stdout
    assert "70.00 %" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no event"),
        ("hello\n{]\n", "no event"),
        ('{"step_start_time": "soon", "step_count": 1}\n', "an event without its time"),
        ('{"job_start_time": 3}\n', "no time"),
    ],
)
def test_one_clear_line_for_what_is_nothing(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    done = goodput(str(path))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_folder_without_a_capture_and_two_sources(tmp_path: Path) -> None:
    assert goodput(str(tmp_path)).returncode == 2
    done = goodput(str(tmp_path), "--kafka", "127.0.0.1:1")
    assert done.returncode == 2
    assert "choose one" in done.stderr


def test_two_runs_their_causes_nodes_and_tenants_and_what_went_wrong(tmp_path: Path) -> None:
    key = "a/rank_died/step 3"
    document = {
        "schema": 1,
        "revision": 1,
        "id": incident_id("j", "a", Kind.RANK_DIED, key),
        "kind": "rank_died",
        "scope": "gpu",
        "job": {"id": "j", "owner": "ada"},
        "suspects": [{"scope": "gpu", "node": "n7", "probability": 1.0}],
    }
    work = {"parts": (Part(TimeBucket.PRODUCTIVE, 90 * S),), "steps": 9, "first_step": 0, "last_step": 8, "gpus": 4}
    more = {**work, "steps": 9, "first_step": 9, "last_step": 17}
    failed = "error 1 of the accounting: KeyError: 'x'"
    mine = [
        Interval(begin_ns=0, end_ns=90 * S, number=0, gpus_held=8, **work),  # type: ignore[arg-type]
        Interval(
            begin_ns=90 * S, end_ns=100 * S, number=1, gpus=4, gpus_held=8,
            parts=(Part(TimeBucket.RESTARTING, 10 * S, key),),
        ),
        Interval(begin_ns=100 * S, end_ns=190 * S, number=2, gpus_held=8, problem=failed, **more),  # type: ignore[arg-type]
    ]  # fmt: skip
    calm = Interval(begin_ns=0, end_ns=90 * S, **work)  # type: ignore[arg-type]
    lines = [{"run": "r", "job": "j", "attempt": "a", "interval": as_body(each)} for each in mine]
    lines.append({"run": "s", "job": "k", "attempt": "a", "interval": as_body(calm)})
    path = written(tmp_path / "intervals.jsonl", *lines, document)
    found = account(path)
    assert found["problems"] == [f"j: {failed}"]
    struck = next(run for run in found["runs"] if run["run"] == "r")
    assert struck["by_tenant"]["ada"]["failures"] == struck["by_node"]["n7"]["failures"] == 1
    assert struck["by_tenant"]["ada"]["mttf"]["time_s"] == 190
    assert struck["gpu_ns"]["spare"] == 4 * 190 * S
    assert found["together"]["runs"] == 2
    assert found["together"]["by_kind"]["rank_died"]["mttf"]["time_s"] == 280
    assert found["together"]["by_tenant"]["ada"]["mttf"]["time_s"] == 190
    assert found["together"]["hardware_downtime"]["mean_share_of_wall"] == pytest.approx(10 / 190 / 2)
    told = goodput(path)
    assert failed in told.stderr + told.stdout
    for words in ("2 runs together", "tenant", "ada", "n7", "spare", "hardware downtime", "= checkpoint overhead"):
        assert words in told.stdout, words


def test_events_beyond_the_bound_are_refused_and_other_lines_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval_sources, "MOST_EVENT_CHARACTERS", 200)
    path = tmp_path / "events.jsonl"
    for lines, why in (('{"x": 1}\n' * 100, "more than 200 characters of events"), ("plain\n" * 1000, "no event")):
        path.write_text(lines)
        with pytest.raises(Unusable, match=why):
            interval_sources.of_file(path, until_s=None, reference_step_s=None)
