"""``whichrank checkpoint-now``: the request that ranks find, and what is said where nobody would."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whichrank.agents.collectors.base.collector import NodeEvent
from whichrank.commands.embedded.near_end import NearEnd
from whichrank.commands.main import app
from whichrank.telemetry.emergency_words import BOARD_FOLDER, LISTENS, REQUEST_FILE
from whichrank.telemetry.vocabulary import EventName

PLANS = {"time_limit": "end_s", "preemption": "end_s", "maintenance": "start_s"}


def listen(rings: Path, rank: int = 0, pid: int | None = None) -> None:
    """As a rank does that has called ``on_checkpoint``."""
    (rings / BOARD_FOLDER).mkdir(exist_ok=True)
    (rings / BOARD_FOLDER / f"{LISTENS}{rank}.{pid or os.getpid()}").touch()


@pytest.mark.parametrize("of_run", [False, True], ids=["rings", "run"])
def test_asks_the_ranks_that_listen(tmp_path: Path, of_run: bool) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    (tmp_path / "run.json").write_text(json.dumps({"ring_directory": str(rings)}))
    listen(rings, 3)
    words = ["checkpoint-now", str(tmp_path if of_run else rings), "--reason", "move", "--seconds", "40", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ranks_listening"] == [3]
    assert json.loads((rings / REQUEST_FILE).read_text()) == {"reason": "move", "seconds": 40.0}


def test_says_why_nothing_can_be_asked(tmp_path: Path) -> None:
    listen(tmp_path, pid=1 << 30)  # it is gone
    for words, why in (
        (["checkpoint-now"], "name one of them"),
        (["checkpoint-now", str(tmp_path / "gone")], "no rings of a running job"),
        (["checkpoint-now", str(tmp_path)], "no rank of this node listens"),
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert why in done.output
    assert not (tmp_path / REQUEST_FILE).exists()


def scheduler(what: str, due_s: float, job: str = "7", **more: object) -> NodeEvent:
    """What the scheduler's collector tells."""
    told = {"scheduler": "slurm", "what": what, "job": job, "over": False, PLANS[what]: due_s, **more}
    return NodeEvent(name=EventName.SCHEDULER, time_ns=1, mono_ns=1, attributes=told)


@pytest.mark.parametrize("what", list(PLANS))
def test_an_end_that_is_near_is_asked_for_once(tmp_path: Path, what: str) -> None:
    near = NearEnd(tmp_path, report=pytest.fail, job="7", lead_s=300.0)
    near.take(scheduler(what, 1000.0, job="" if what == "maintenance" else "7"))
    listen(tmp_path)
    near.look(699.0)
    assert asked(tmp_path) is None
    near.look(700.0)
    near.look(701.0)
    assert asked(tmp_path) == {"reason": what, "seconds": 299.0}
    near.look(703.0)
    assert asked(tmp_path) is None


def asked(rings: Path) -> object:
    """The request that lies there, once."""
    if not (rings / REQUEST_FILE).exists():
        return None
    said: object = json.loads((rings / REQUEST_FILE).read_text())
    (rings / REQUEST_FILE).unlink()
    return said


def test_nobody_is_asked_before_all_listen_and_another_start_is_asked_anew(tmp_path: Path) -> None:
    """A request that ranks find when they come would be an earlier start's: they leave it."""
    near = NearEnd(tmp_path, report=pytest.fail, job="7", lead_s=300.0)
    near.take(scheduler("time_limit", 1000.0))
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        for now_s, comes in ((800.0, None), (802.0, first), (802.5, second), (803.2, None)):
            if comes is not None:
                listen(tmp_path, rank=int(comes is second), pid=comes.pid)
            near.look(now_s)
            assert asked(tmp_path) is None
        near.look(804.0)
        assert asked(tmp_path) == {"reason": "time_limit", "seconds": 196.0}
        for rank in (first, second):
            rank.kill()
    near.look(850.0)
    listen(tmp_path)
    for now_s in (860.0, 862.0, 864.0):
        near.look(now_s)
    assert asked(tmp_path) == {"reason": "time_limit", "seconds": 138.0}


def test_a_preemption_that_has_begun_is_asked_for_at_once_where_its_end_is_unknown(tmp_path: Path) -> None:
    """Slurm tells when it began, and how long its grace is only of jobs with a time limit."""
    near = NearEnd(tmp_path, report=pytest.fail, job="7", lead_s=300.0)
    told = {"scheduler": "slurm", "what": "preemption", "job": "7", "over": False, "start_s": 1000.0}
    listen(tmp_path)
    near.take(scheduler("time_limit", 1019.0))
    near.look(1018.0)
    near.take(NodeEvent(name=EventName.SCHEDULER, time_ns=1_020_000_000_000, mono_ns=1, attributes=told))
    near.look(1021.0)
    assert asked(tmp_path) == {"reason": "preemption", "seconds": 29.0}


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("power_supply_failed", {}, "power"),
        ("site_check_failed", {"action": "checkpoint_now"}, "advice"),
        ("site_check_failed", {"action": "reboot_node"}, None),
        ("fan_failed", {}, None),
    ],
)
def test_a_node_that_may_not_last_is_asked_for_at_once_and_once(
    tmp_path: Path, name: str, more: dict[str, object], reason: str | None
) -> None:
    near = NearEnd(tmp_path, report=pytest.fail, job="7", lead_s=300.0)
    listen(tmp_path)
    told = {"source": "bmc", "event": name, "device": "PSU1", **more}
    happening = NodeEvent(name=EventName.NODE_CONDITION, time_ns=1_000_000_000_000, mono_ns=1, attributes=told)
    near.take(happening)
    near.look(1000.0)
    near.look(1002.0)
    assert asked(tmp_path) == (None if reason is None else {"reason": reason, "seconds": 58.0})
    near.take(replace(happening, time_ns=1_030_000_000_000))  # it is told again
    near.look(1031.0)
    assert asked(tmp_path) is None
    near.take(replace(happening, attributes={**told, "over": True}))
    near.take(replace(happening, time_ns=1_060_000_000_000))  # and comes again
    near.look(1061.0)
    assert asked(tmp_path) == (None if reason is None else {"reason": reason, "seconds": 59.0})


def test_a_notice_of_a_cloud_that_names_no_time_is_asked_for_at_once(tmp_path: Path) -> None:
    near = NearEnd(tmp_path, report=pytest.fail, job="7", lead_s=300.0)
    listen(tmp_path)
    told = {"scheduler": "kubernetes", "what": "preemption", "name": "cloud.example/impending-node-termination"}
    near.take(NodeEvent(name=EventName.SCHEDULER, time_ns=1_000_000_000_000, mono_ns=1, attributes=told))
    near.look(1000.0)
    near.look(1002.0)
    assert asked(tmp_path) == {"reason": "preemption", "seconds": 28.0}


def test_other_jobs_and_plans_that_are_over_do_not_count(tmp_path: Path) -> None:
    near = NearEnd(tmp_path, report=pytest.fail, job="7", lead_s=300.0)
    listen(tmp_path)
    near.take(scheduler("time_limit", 1000.0, job="8"))
    near.take(scheduler("preemption", 1000.0))
    near.take(scheduler("preemption", 1000.0, over=True))
    near.look(900.0)
    near.look(902.0)
    assert asked(tmp_path) is None
