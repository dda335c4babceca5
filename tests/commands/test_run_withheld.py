"""What a site withholds never leaves the node: real jobs, and everything that was captured searched for it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.incidents.documents import written_documents
from whichrank.agents.privacy.privacy_options import NAMES

LOSS, NORM = 3.141592653589793, 2.718281828459045
JOB = f"""
import errno
import logging
import os
import time
import torch
import torch.distributed as dist
import whichrank
logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
dist.init_process_group("gloo")
value = torch.ones(4)

def innermost_marker_function(step):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/ckpt/marker_of_the_log.pt")
    logging.getLogger("checkpoint").error("could not write: %s", error)
    time.sleep(1.5)  # logs are read once a second
    raise KeyError("column")

# The bad number is long over when the exception comes: two incidents, not one with its consequence.
for step in range(80):
    dist.all_reduce(value)
    time.sleep(0.02)
    bad = step == 5 and dist.get_rank() == 1
    whichrank.step(loss=float("nan") if bad else {LOSS!r}, grad_norm={NORM!r})
if dist.get_rank() == 1:
    innermost_marker_function(step)
dist.barrier()
"""


def run_job(folder: Path, withhold: str) -> tuple[list[dict[str, Any]], bytes]:
    """The last revision of each incident; and all that left the node: the bus's messages, incidents with them."""
    script = folder / "job.py"
    script.write_text(JOB)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("WHICHRANK_", "OTEL_"))}
    environ.update(OMP_NUM_THREADS="1")
    logs = ["--redirects=3", f"--log-dir={folder / 'logs'}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *logs, str(script)]
    whichrank = [sys.executable, "-m", "whichrank.commands.main", "run", "--view", "none", "--out", str(folder / "run")]
    words = ["--set", f"withhold={withhold}"] if withhold else []
    done = subprocess.run([*whichrank, *words, "--", *torchrun], capture_output=True, env=environ, timeout=120)
    assert done.returncode == 1, done.stderr.decode()
    documents = written_documents(folder / "run" / "incidents.jsonl")
    files = [path for path in sorted((folder / "run" / "capture").rglob("*")) if path.is_file()]
    captured = b"".join(path.read_bytes() for path in [*files, folder / "run" / "incidents.jsonl"])
    return list({document["id"]: document for document in documents}.values()), captured


#: By name of what can be withheld, what of it is found in what leaves the node where it is not.
MARKERS = {
    "loss": struct.pack("<d", LOSS),
    "gradient_norm": struct.pack("<d", NORM),
    "stacks": b"innermost_marker_function",
    "log_lines": b"marker_of_the_log",
}


@pytest.mark.parametrize("withhold", ["", "loss,log_lines", "gradient_norm,stacks"])
def test_it_is_not_in_anything_that_leaves_the_node(tmp_path: Path, withhold: str) -> None:
    incidents, captured = run_job(tmp_path, withhold)
    withheld = set(withhold.split(","))
    found = {name for name, marker in MARKERS.items() if marker in captured}
    assert found == set(NAMES) - withheld
    kinds = {incident["kind"]: incident for incident in incidents}
    assert {incident["suspects"][0]["rank"] for incident in incidents} == {1}
    assert kinds["numeric_first_rank"]["first_bad"]["step"] == 5  # that it is bad is told, and of whom
    raised = kinds["rank_raised"]
    assert any("KeyError" in str(row["shows"]) for row in raised["evidence"])
    where = raised["suspects"][0]["where"] or {}
    assert (where.get("line") is None) == ("stacks" in withheld)


def test_a_name_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "whichrank.commands.main", "run", "--set", "withhold=losses", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert "losses: cannot be withheld; there are loss, gradient_norm, stacks, log_lines" in done.stderr
