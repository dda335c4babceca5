"""What a rank writes to its log explains its incident: real jobs under ``whichrank run``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.commands.incidents.documents import written_documents

#: The exception says nothing of the disk; a line of the log does.
SAVING_JOB = """
import errno
import logging
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("checkpoint")
value = torch.ones(4)
for step in range(60):
    dist.all_reduce(value)
    time.sleep(0.05)
writer = int(os.environ["JOB_FULL_FOR_RANK"])
if dist.get_rank() == writer:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"/ckpt/step_60/rank_{writer}.pt")
    log.error("could not write: %s", error)
dist.barrier()
if dist.get_rank() == 1:
    raise RuntimeError("step 60 was not saved")
dist.all_reduce(value)
dist.barrier()
"""


def run_job(folder: Path, full_for_rank: int, *words: str) -> list[dict[str, Any]]:
    """The last revision of each incident. Each rank writes to files of its own."""
    script = folder / "job_that_saves.py"
    script.write_text(SAVING_JOB)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("WHICHRANK_", "OTEL_"))}
    environ.update(OMP_NUM_THREADS="1", JOB_FULL_FOR_RANK=str(full_for_rank))
    logs = ["--redirects=3", f"--log-dir={folder / 'logs'}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *logs, str(script)]
    whichrank = [sys.executable, "-m", "whichrank.commands.main", "run", "--view", "none", "--out", str(folder / "run")]
    done = subprocess.run([*whichrank, *words, "--", *torchrun], capture_output=True, env=environ, timeout=120)
    assert done.returncode == 1, done.stderr.decode()
    documents = written_documents(folder / "run" / "incidents.jsonl")
    return list({document["id"]: document for document in documents}.values())


def test_a_full_disk_that_only_the_log_tells_of_is_the_cause(tmp_path: Path) -> None:
    (incident,) = run_job(tmp_path, 1, "--set", "collect=job_logs")
    (suspect,) = incident["suspects"]
    cause = incident["cause"]
    assert (suspect["rank"], cause["condition"], cause["device_kind"]) == (1, "disk_full", "process")
    assert cause["device"] == str(suspect["pid"])
    assert (incident["kind"], incident["scope"], incident["advice"]["action"]) == (
        "rank_raised",
        "storage",
        "raise_quota",
    )
    (row,) = [row for row in incident["evidence"] if row["signal"] == "job_log.disk_full"]
    assert "rank_1.pt" in row["shows"]


def test_another_ranks_line_is_no_cause(tmp_path: Path) -> None:
    (incident,) = run_job(tmp_path, 0, "--set", "collect=job_logs")
    assert [suspect["rank"] for suspect in incident["suspects"]] == [1]
    assert "cause" not in incident
    assert incident["scope"] == "rank"
    (row,) = [row for row in incident["ruled_out"] if row.get("condition") == "disk_full"]
    assert "rank 0" in row["because"]
