"""What schedulers have in store: from ranks' variables, from a played scontrol, from Kubernetes' files."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agents.collectors.port_tree import write
from tests.agents.collectors.process_tree import process
from whichrank.agents.collectors.base.collector import NodeEvent, Timestamps
from whichrank.agents.collectors.surroundings.rank_environments import RankEnvironments
from whichrank.agents.collectors.surroundings.scheduler_collector import SchedulerCollector, run_program
from whichrank.diagnosis.scheduler_facts import (
    facts_of_environment,
    facts_of_kubernetes_node,
    facts_of_reservations,
    facts_of_slurm_job,
    parse_downward_api,
    parse_pairs,
    parse_slurm_time,
    slurm_job_id,
)
from whichrank.telemetry.vocabulary import EventName

JOB = (
    "JobId=4711 JobName=llm pre train UserId=ada(1001) GroupId=ml(100) MCS_label=N/A Priority=4294 Nice=0 Account=ml "
    "QOS=normal JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=01:00:00 TimeLimit={limit} TimeMin=N/A SubmitTime=1700000000 StartTime=1700003600 "
    "EndTime={end} Deadline=N/A PreemptEligibleTime=1700003600 PreemptTime={preempt} NodeList=gpu[01-04]\n"
)
RESERVATIONS = (
    "ReservationName=fabric-upgrade StartTime=1700090000 EndTime=1700097200 Duration=02:00:00 Nodes={nodes} NodeCnt=4 "
    "Features=(null) Flags={flags} TRES=cpu=512 Users=root Groups=(null) State=INACTIVE BurstBuffer=(null)\n"
    "ReservationName=for-ada StartTime=1700000000 EndTime=1700097200 Nodes=gpu01 Flags=SPEC_NODES State=ACTIVE\n"
)
NODE = (
    "NodeName=gpu02 Arch=x86_64 CoresPerSocket=64 CPUAlloc=128 Gres=gpu:8 NodeAddr=gpu02 NodeHostName="
    + socket.gethostname()
    + " OS=Linux 5.15.0 "
    "RealMemory=2000000 State={state} ThreadsPerCore=2 Weight=1 Partitions=llm BootTime=1699990000{reason}\n"
)
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURMD_NODENAME": "gpu02", "SLURM_JWT": "not-a-real-token"}


def job(**changes: str) -> str:
    usual = {
        "state": "RUNNING",
        "reason": "None",
        "restarts": "0",
        "limit": "1-00:00:00",
        "end": "1700090000",
        "preempt": "None",
    }
    return JOB.format(**{**usual, **changes})


def at(seconds: float) -> Timestamps:
    return Timestamps(wall_ns=int((1_700_000_000 + seconds) * 1e9), mono_ns=int(seconds * 1e9))


class Slurm:
    """A scontrol that says what it is told to say, or fails."""

    def __init__(self) -> None:
        self.job = job()
        self.reservations = "No reservations in the system\n"
        self.node = NODE.format(state="ALLOCATED", reason="")
        self.failure: Exception | None = None
        self.asked: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> str:
        self.asked.append(command)
        if self.failure is not None:
            raise self.failure
        # The processes of these tests are this user's.
        mine = self.job.replace("(1001)", f"({os.getuid()})")
        return {"res": self.reservations, "gpu02": self.node}.get(command[-1], mine)


def told(happenings: Sequence[NodeEvent]) -> dict[str, dict[str, Any]]:
    """what -> attributes, of what the scheduler says."""
    scheduler = [each for each in happenings if each.name is EventName.SCHEDULER]
    return {happening.attributes["what"]: dict(happening.attributes) for happening in scheduler}


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


@pytest.fixture
def collector(proc: Path, tmp_path: Path, slurm: Slurm) -> SchedulerCollector:
    return SchedulerCollector(proc=proc, pod_info=tmp_path / "podinfo", run=slurm)


# --- words of schedulers ----------------------------------------------------------------------------------------------


def test_pairs_keep_spaces_in_values() -> None:
    pairs = parse_pairs(job())
    assert pairs["JobName"] == "llm pre train"
    assert pairs["PreemptTime"] == "None"
    assert pairs["NodeList"] == "gpu[01-04]"


def test_times_of_slurm() -> None:
    assert parse_slurm_time("1700000000") == 1_700_000_000
    local = time.mktime((2026, 11, 24, 10, 0, 0, 0, 0, -1))
    assert parse_slurm_time("2026-11-24T10:00:00") == local
    assert [parse_slurm_time(text) for text in ("None", "N/A", "Unknown", "", "9" * 40)] == [None] * 5


def test_a_job_of_slurm() -> None:
    facts = {fact.what: fact.values for fact in facts_of_slurm_job(job(restarts="2"))}
    assert facts == {
        "owner": {"owner_uid": 1001},
        "state": {"state": "RUNNING", "reason": "None"},
        "attempt": {"attempt": 2},
        "requeue": {"requeue": True},
        "time_limit": {"end_s": 1700090000},
    }
    facts = {fact.what: fact.values for fact in facts_of_slurm_job(job(state="PREEMPTED", preempt="1700009999"))}
    assert facts["preemption"] == {"state": "PREEMPTED", "start_s": 1700009999}
    assert "time_limit" not in {fact.what for fact in facts_of_slurm_job(job(limit="UNLIMITED"))}
    # EndTime of a job that has ended is when it did; of one that is preempted when its grace is over.
    assert "time_limit" not in {fact.what for fact in facts_of_slurm_job(job(state="FAILED"))}
    facts = {fact.what: fact.values for fact in facts_of_slurm_job(job(preempt="1700009999", end="1700010029"))}
    assert facts["preemption"] == {"state": "RUNNING", "start_s": 1700009999, "end_s": 1700010029}
    assert "time_limit" not in facts
    assert list(facts_of_slurm_job("slurm_load_jobs error: Invalid job id specified")) == []


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("NumNodes=2 NumCPUs=64 AllocTRES=cpu=64,mem=1T,node=2,billing=64,gres/gpu=16,gres/gpu:h100=16", 16),
        ("NumNodes=2 TRES=cpu=64,node=2,gres/gpu:h100=8,gres/gpu:a100=4", 12),
        ("ReqTRES=cpu=64,gres/gpu=16 AllocTRES=(null)", None),
        ("NumNodes=2 TRES=cpu=64,node=2", None),
    ],
)
def test_how_many_gpus_a_running_job_holds(tres: str, gpus: int | None) -> None:
    line = job().strip()
    facts = {fact.what: fact.values for fact in facts_of_slurm_job(f"{line} {tres}\n")}
    assert facts.get("allocation") == (None if gpus is None else {"gpus": gpus})
    waits = {fact.what for fact in facts_of_slurm_job(f"{job(state='PENDING').strip()} {tres}\n")}
    assert "allocation" not in waits


@pytest.mark.parametrize(
    ("nodes", "flags", "is_ours"),
    [
        ("gpu[01-04]", "MAINT,IGNORE_JOBS,SPEC_NODES", True),
        ("gpu[03-04]", "MAINT,SPEC_NODES", False),
        ("gpu[01-99", "MAINT", False),
        ("", "MAINT,ALL_NODES", True),
        ("gpu[01-04]", "SPEC_NODES", False),
    ],
)
def test_maintenance_of_ones_own_node(nodes: str, flags: str, is_ours: bool) -> None:
    facts = list(facts_of_reservations(RESERVATIONS.format(nodes=nodes, flags=flags), ["gpu02.cluster"]))
    assert [fact.values.get("name") for fact in facts] == (["fabric-upgrade"] if is_ours else [])
    if is_ours:
        assert (facts[0].values["start_s"], facts[0].values["end_s"]) == (1700090000, 1700097200)


def test_a_job_id_becomes_an_argument_only_if_it_is_one() -> None:
    assert slurm_job_id({"SLURM_JOB_ID": "12_3"}) == "12_3"
    assert [slurm_job_id({"SLURM_JOB_ID": text}) for text in ("--help", "1;reboot", "", "1 2")] == [""] * 4


def test_torchelastic_and_ray() -> None:
    facts = list(
        facts_of_environment(
            {
                "TORCHELASTIC_RESTART_COUNT": "2",
                "TORCHELASTIC_MAX_RESTARTS": "3",
                "TORCHELASTIC_RUN_ID": "none",
                "RAY_JOB_ID": "0200",
                "RAY_NODE_ID": "ab12",
            }
        )
    )
    assert [(fact.scheduler, fact.job, fact.values) for fact in facts] == [
        ("torchelastic", "", {"attempt": 2, "max_restarts": 3}),
        ("ray", "0200", {"node": "ab12"}),
    ]


def test_notices_on_a_kubernetes_node() -> None:
    node = {
        "metadata": {"annotations": {"cloud.google.com/scheduled-maintenance-time": "1700090000"}},
        "spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, {"key": "nvidia.com/gpu"}]},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "KubeletNotReady"},
                {"type": "VMEventScheduled", "status": "True", "message": "Preempt at 10:00"},
                {"type": "DiskPressure", "status": "False"},
            ]
        },
    }
    facts = [(fact.what, fact.values["name"]) for fact in facts_of_kubernetes_node(node)]
    assert facts == [
        ("preemption", "karpenter.sh/disrupted"),
        ("node_state", "not_ready"),
        ("maintenance", "VMEventScheduled"),
        ("maintenance", "cloud.google.com/scheduled-maintenance-time"),
    ]
    odd_ones: list[object] = [None, [], 7, {"spec": 3, "status": {"conditions": "x"}}, {"spec": {"taints": [1, None]}}]
    for odd in odd_ones:
        assert list(facts_of_kubernetes_node(odd)) == []


def test_files_of_the_downward_api() -> None:
    text = 'jobset.sigs.k8s.io/restart-attempt="3"\nnote="two\\nlines \\"q\\""\nbroken\nodd="a\\x"\n'
    assert parse_downward_api(text) == {
        "jobset.sigs.k8s.io/restart-attempt": "3",
        "note": 'two\nlines "q"',
        "odd": "a\\x",
    }


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read(text: str) -> None:
    for line in (text, "JobId=7 " + text, "Flags=MAINT StartTime=1 EndTime=2 Nodes=" + text):
        list(facts_of_slurm_job(line))
        list(facts_of_reservations(line, ["n1"]))
        parse_downward_api(line)


# --- the collector ----------------------------------------------------------------------------------------------------


def test_a_slurm_job_is_told_once_and_then_what_changes(
    proc: Path, collector: SchedulerCollector, slurm: Slurm
) -> None:
    process(proc, 50, SLURM)
    first = collector.collect(at(0))
    assert first.problems == []
    assert set(told(first.happenings)) == {"owner", "state", "attempt", "requeue", "time_limit"}
    assert told(first.happenings)["time_limit"]["end_s"] == 1700090000
    assert {happening.pid for happening in first.happenings} == {50}
    assert collector.collect(at(10)).happenings == []
    assert len(slurm.asked) == 3  # not asked again within a minute
    slurm.job = job(end="1700093600")
    assert [told(collector.collect(at(s)).happenings) for s in (20, 30)] == [{}, {}]
    changed = told(collector.collect(at(61)).happenings)
    assert list(changed) == ["time_limit"]
    assert changed["time_limit"]["end_s"] == 1700093600


def test_planned_maintenance_comes_and_is_called_off(proc: Path, collector: SchedulerCollector, slurm: Slurm) -> None:
    process(proc, 50, SLURM)
    slurm.reservations = RESERVATIONS.format(nodes="gpu[01-04]", flags="MAINT,SPEC_NODES")
    planned = told(collector.collect(at(0)).happenings)["maintenance"]
    assert (planned["name"], planned["start_s"], planned["over"]) == ("fabric-upgrade", 1700090000, False)
    # Slurm's controller is away: nothing is taken back.
    slurm.failure = subprocess.TimeoutExpired("scontrol", 5)
    away = collector.collect(at(61))
    assert away.happenings == []
    assert list(away.problems) == [
        "scontrol show job: no answer within 5 s",
        "scontrol show res: no answer within 5 s",
        "scontrol show node: no answer within 5 s",
    ]
    slurm.failure, slurm.reservations = None, "No reservations in the system\n"
    over = told(collector.collect(at(122)).happenings)
    assert over["maintenance"]["over"]


def test_preemption_is_told(proc: Path, collector: SchedulerCollector, slurm: Slurm) -> None:
    process(proc, 50, SLURM)
    collector.collect(at(0))
    slurm.job = job(preempt="1700009999")
    news = told(collector.collect(at(61)).happenings)
    assert news["preemption"]["start_s"] == 1700009999


def test_a_state_of_the_node_comes_and_goes(proc: Path, collector: SchedulerCollector, slurm: Slurm) -> None:
    process(proc, 50, SLURM)
    assert "node_state" not in told(collector.collect(at(0)).happenings)
    slurm.node = NODE.format(state="MIXED+DRAIN", reason=" Reason=Kill task failed [root@1700000040]")
    (drained,) = collector.collect(at(61)).happenings
    assert drained.attributes == {
        "scheduler": "slurm",
        "what": "node_state",
        "job": "",
        "over": False,
        "name": "drain",
        "state": "MIXED+DRAIN",
        "reason": "Kill task failed",
        "since_s": 1700000040.0,
    }
    slurm.node = NODE.format(state="MIXED", reason="")
    (over,) = collector.collect(at(122)).happenings
    assert (over.attributes["name"], over.attributes["over"]) == ("drain", True)
    assert ["scontrol", "-o", "show", "node", "gpu02"] in slurm.asked


@pytest.mark.parametrize("name", ["--help", "", "a b", "x;reboot"])
def test_a_name_of_a_node_becomes_an_argument_only_if_it_is_one(
    proc: Path, collector: SchedulerCollector, slurm: Slurm, name: str
) -> None:
    process(proc, 50, {**SLURM, "SLURMD_NODENAME": name})
    collector.collect(at(0))
    assert [command[3] for command in slurm.asked] == ["job", "res"]


def test_what_is_told_of_a_job_names_the_process_that_trains(
    proc: Path, collector: SchedulerCollector, slurm: Slurm
) -> None:
    """srun starts a shell, the shell torchrun, and that the ranks: all have the job's variables."""
    process(proc, 50, SLURM)
    process(proc, 51, {**SLURM, "RANK": "0", "LOCAL_RANK": "0"}, parent=50)
    assert {happening.pid for happening in collector.collect(at(0)).happenings} == {51}
    shutil.rmtree(proc / "51")
    process(proc, 52, SLURM, parent=50)  # srun starts the ranks themselves, through a shell
    slurm.job = job(restarts="1")
    assert {happening.pid for happening in collector.collect(at(61)).happenings} == {52}


def test_without_slurm_nobody_asks_it(proc: Path, collector: SchedulerCollector, slurm: Slurm) -> None:
    process(proc, 50, {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "r1"})
    seen = collector.collect(at(0))
    assert told(seen.happenings)["attempt"]["attempt"] == 1
    assert slurm.asked == []
    shutil.rmtree(proc / "50")
    process(proc, 60, {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "r1"})
    again = collector.collect(at(10)).happenings
    assert told(again)["attempt"]["attempt"] == 2
    assert again[0].pid == 60


def test_a_missing_scontrol_is_one_line(proc: Path, tmp_path: Path) -> None:
    process(proc, 50, SLURM)
    collector = SchedulerCollector(proc=proc, pod_info=tmp_path, scontrol="no-such-scontrol")
    (problem,) = collector.collect(at(0)).problems
    assert problem.startswith("no-such-scontrol: not found")
    assert collector.collect(at(1)).problems == []


def test_kubernetes_files(proc: Path, tmp_path: Path, slurm: Slurm) -> None:
    node = tmp_path / "node.json"
    node.write_text(json.dumps({"spec": {"taints": [{"key": "node.kubernetes.io/unschedulable"}]}}))
    write(
        tmp_path / "podinfo", {"labels": 'jobset.sigs.k8s.io/jobset-name="llm"\njobset.sigs.k8s.io/restart-attempt="4"'}
    )
    collector = SchedulerCollector(proc=proc, pod_info=tmp_path / "podinfo", node_file=str(node), run=slurm)
    first = told(collector.collect(at(0)).happenings)
    assert first["attempt"]["attempt"] == 4
    assert first["maintenance"]["name"] == "node.kubernetes.io/unschedulable"
    node.write_text("{}")
    assert told(collector.collect(at(10)).happenings)["maintenance"]["over"]
    node.write_text("{half")
    (problem,) = collector.collect(at(20)).problems
    assert "kubectl get node" in problem


def test_a_real_program_is_asked_and_left_when_it_hangs(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$SLURM_TIME_FORMAT" >> {tmp_path}/format\nsleep 30\n')
    scontrol.chmod(0o755)
    monkeypatch.setattr("whichrank.agents.collectors.surroundings.scheduler_collector._TIMEOUT_S", 0.2)
    process(proc, 50, SLURM)
    began = time.monotonic()
    seen = SchedulerCollector(proc=proc, pod_info=tmp_path, scontrol=str(scontrol)).collect(at(0))
    assert time.monotonic() - began < 5
    assert [line.partition(": ")[2] for line in seen.problems] == ["no answer within 0.2 s"] * 3
    assert (tmp_path / "format").read_text().split() == ["%s"] * 3
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id' >&2\nexit 1\n")
    seen = SchedulerCollector(proc=proc, pod_info=tmp_path, scontrol=str(scontrol)).collect(at(0))
    assert "slurm_load_jobs error: Invalid job id" in seen.problems[0]
    # On a busy machine a Python takes longer to start than a program is waited for above.
    monkeypatch.undo()
    assert run_program([sys.executable, "-c", "print('JobId=7')"]) == "JobId=7\n"


# --- ranks in /proc ---------------------------------------------------------------------------------------------------


def test_ranks_and_their_helpers(proc: Path) -> None:
    rank = {"RANK": "3", "LOCAL_RANK": "3", "WANDB_API_KEY": "not-a-real-key", "WHICHRANK_KAFKA_PASSWORD": "no"}
    process(proc, 1, {"PATH": "/bin"}, parent=0)
    process(proc, 40, {"PATH": "/bin"})
    process(proc, 50, rank, parent=40)
    for pid in (51, 52):
        process(proc, pid, rank, parent=50)
    process(proc, 60, {**rank, "RANK": "4"}, parent=40)
    found = RankEnvironments(proc).look()
    assert [(one.pid, one.environ["RANK"], one.helpers) for one in found] == [(50, "3", (51, 52)), (60, "4", ())]
    assert all(set(one.environ) == {"RANK", "LOCAL_RANK"} for one in found)


def test_a_process_that_becomes_a_rank_and_a_pid_that_is_used_again(proc: Path) -> None:
    ranks = RankEnvironments(proc)
    process(proc, 50, {"PATH": "/bin"})
    assert ranks.look() == []
    process(proc, 50, {"RANK": "0", "LOCAL_RANK": "0"})  # it has become another program since
    assert [one.pid for one in ranks.look()] == [50]
    process(proc, 50, {"PATH": "/bin"}, start=2000)
    assert ranks.look() == []


def test_garbage_in_proc(proc: Path) -> None:
    dice = random.Random(5)
    ranks = RankEnvironments(proc)
    for pid in range(2, 30):
        process(proc, pid, SLURM, start=pid)
        write(proc / str(pid), {dice.choice(("stat", "environ")): dice.randbytes(dice.randrange(400))})
        ranks.look()


def test_this_machine() -> None:
    environ = {**os.environ, "RANK": "7", "LOCAL_RANK": "1"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ)
    try:
        ranks = RankEnvironments(Path("/proc"))
        deadline = time.monotonic() + 5
        while child.pid not in {one.pid for one in ranks.look()}:
            ranks = RankEnvironments(Path("/proc"))
            assert time.monotonic() < deadline
    finally:
        child.communicate(b"\n")
