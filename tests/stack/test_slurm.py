"""The Slurm hook and the scheduler's collector on a real Slurm, once each; many times: ``benchmarks/slurm_acts.py``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.stack.parts.slurm_room import SlurmRoom, until, what_is_missing
from tests.stack.slurm_desk import cleared, within
from tests.stack.slurm_trials import TRIALS
from whichrank.agents.collectors.base.collector import NodeEvent, Timestamps
from whichrank.agents.collectors.surroundings.scheduler_collector import SchedulerCollector
from whichrank.agents.processes.job_id_proof import who_says_id
from whichrank.telemetry.trust import IdBy

pytestmark = pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())


@pytest.fixture(scope="module")
def room() -> Iterator[SlurmRoom]:
    with SlurmRoom() as made:
        yield made
        folder = made.folder
    assert not folder.exists()


@pytest.mark.parametrize("name", [name for name, trial in TRIALS.items() if not trial.is_slow])
def test_an_act_and_its_undoing(room: SlurmRoom, name: str) -> None:
    assert TRIALS[name].hold(room) == ""


def at(seconds: float) -> Timestamps:
    return Timestamps(wall_ns=time.time_ns(), mono_ns=int(seconds * 1e9))


def facts_of(happenings: Sequence[NodeEvent]) -> dict[tuple[str, str], dict[str, Any]]:
    """What Slurm says itself, by what it is and of which job ("" the node)."""
    found = [dict(each.attributes) for each in happenings]
    return {(each["what"], each["job"]): each for each in found if each["scheduler"] == "slurm" and "trust" not in each}


def ranks_of(room: SlurmRoom) -> dict[str, int]:
    """Pids of what runs as a rank here, by the id of its job."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            words = dict(word.split("=", 1) for word in entry.read_text(errors="replace").split("\0") if "=" in word)
            if words.get("SLURM_CONF") == room.environment["SLURM_CONF"] and "LOCAL_RANK" in words:
                found[words["SLURM_JOB_ID"]] = int(entry.parent.name)
    return found


def test_what_the_collector_hears_of_an_array_and_its_node(room: SlurmRoom, tmp_path: Path) -> None:
    with cleared(room), within(room):
        rank = "export RANK=0 LOCAL_RANK=0 WORLD_SIZE=1; exec sleep 600"
        array = room.submit(rank, "--array=1-2", "--nodelist=n1", "--time=30")
        tasks = {task: room.wait_for_job(task, "RUNNING")["JobId"] for task in (f"{array}_1", f"{array}_2")}
        assert array in tasks.values(), "one task has the id of the whole array"
        until(lambda: set(ranks_of(room)) == set(tasks.values()), "two ranks")
        for job, pid in ranks_of(room).items():
            assert who_says_id({"SLURM_JOB_ID": job}, pid) is IdBy.KERNEL
            assert who_says_id({"SLURM_JOB_ID": "999999"}, pid) is IdBy.CLAIMED
        collector = SchedulerCollector(pod_info=tmp_path)
        seen = collector.collect(at(0.0))
        assert seen.problems == []
        first = facts_of(seen.happenings)
        assert {first["owner", task]["owner_uid"] for task in tasks} == {os.getuid()}, "by the names of the tasks"
        for job in tasks.values():
            assert first["state", job]["state"] == "RUNNING"
            assert first["time_limit", job]["end_s"] == pytest.approx(time.time() + 1800.0, abs=60.0)
        one, other = tasks.values()
        room.run("scontrol", "update", f"jobid={array}_1", "timelimit=40")
        room.run("scontrol", "update", "nodename=n1", "state=drain", "reason=broken fan")
        room.run(
            *("scontrol", "create", "reservation", "reservationname=fabric", "starttime=now+3600", "duration=60"),
            *("users=root", "flags=maint,ignore_jobs", "nodes=n1"),
        )
        changed = facts_of(collector.collect(at(61.0)).happenings)
        assert changed["time_limit", one]["end_s"] == pytest.approx(first["time_limit", one]["end_s"] + 600.0, abs=1.0)
        assert ("time_limit", other) not in changed
        node, maintenance = changed["node_state", ""], changed["maintenance", ""]
        assert (node["name"], node["state"], node["reason"]) == ("drain", "MIXED+DRAIN", "broken fan")
        assert (maintenance["name"], maintenance["end_s"] - maintenance["start_s"]) == ("fabric", 3600.0)
        room.run("scontrol", "delete", "reservation=fabric")
        room.run("scontrol", "update", "nodename=n1", "state=resume")
        room.run("scancel", f"{array}_1")
        room.wait_for_job(f"{array}_1", "CANCELLED")
        ended = facts_of(collector.collect(at(122.0)).happenings)
        assert ended["maintenance", ""]["over"]
        assert ended["node_state", ""]["over"]
        assert ("time_limit", one) not in ended, "EndTime of a job that has ended is no limit"
