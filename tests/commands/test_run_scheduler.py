"""What Slurm had planned makes a killed rank no fault: a real job under ``whichrank run``, a played scontrol."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.incidents.documents import written_documents

#: Works until Slurm was asked (which is once there are ranks), a little longer, then rank 1 is killed.
JOB = """
import os
import signal
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(4)
asked, since = os.environ["JOB_ASKED"], None
stop = torch.zeros(1)
while not stop.item():
    dist.all_reduce(value)
    if os.path.exists(asked):
        since = since or time.monotonic()
    stop.fill_(float(since is not None and time.monotonic() - since > 2))
    dist.all_reduce(stop, op=dist.ReduceOp.MIN)
    time.sleep(0.05)
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(value)
dist.barrier()
"""
SCONTROL = """#!/bin/sh
case "$*" in
  *"show job"*) echo "JobId=4711 JobName=llm JobState=RUNNING Reason=None Requeue=1 Restarts=0 TimeLimit=UNLIMITED \
EndTime=Unknown PreemptTime={preempted}"; touch "$JOB_ASKED" ;;
  *"show node"*) echo "NodeName=gpu02 State=ALLOCATED ThreadsPerCore=2" ;;
  *) echo "No reservations in the system" ;;
esac
"""


def run_job(folder: Path, preempted: str) -> dict[str, Any]:
    """The last revision of its one incident. preempted: what Slurm says of that."""
    (folder / "bin").mkdir()
    scontrol = folder / "bin" / "scontrol"
    scontrol.write_text(SCONTROL.format(preempted=preempted))
    scontrol.chmod(0o755)
    script = folder / "job.py"
    script.write_text(JOB)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("WHICHRANK_", "OTEL_", "SLURM_"))}
    environ.update(
        OMP_NUM_THREADS="1",
        JOB_ASKED=str(folder / "asked"),
        SLURM_JOB_ID="4711",
        SLURMD_NODENAME="gpu02",
        PATH=f"{folder / 'bin'}:{os.environ['PATH']}",
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    whichrank = [sys.executable, "-m", "whichrank.commands.main", "run", "--view", "none", "--out", str(folder / "run")]
    done = subprocess.run(
        [*whichrank, "--set", "collect=scheduler", "--", *torchrun], capture_output=True, env=environ, timeout=180
    )
    assert done.returncode == 1, done.stderr.decode()
    documents = written_documents(folder / "run" / "incidents.jsonl")
    (incident,) = {document["id"]: document for document in documents}.values()
    return incident


@pytest.mark.parametrize("is_preempted", [True, False])
def test_a_rank_that_is_killed(tmp_path: Path, is_preempted: bool) -> None:
    incident = run_job(tmp_path, "$(date +%s)" if is_preempted else "None")
    if is_preempted:
        assert (incident["bucket"], incident["kind"], incident["severity"]) == ("planned", "planned_stop", "info")
        assert incident["cause"]["condition"] == "planned_preemption"
        assert incident["suspects"] == []
    else:
        assert (incident["bucket"], incident["kind"]) == ("immediate_crash", "rank_died")
        assert incident["severity"] == "page"
        assert "cause" not in incident
        assert [suspect["rank"] for suspect in incident["suspects"]] == [1]
