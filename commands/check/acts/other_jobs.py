"""Whether a user has another job on the node: then what he has there is not left over, and none of it is reclaimed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from .reclaim import is_process_of

#: Where a job's processes are held: Slurm's groups, both versions of them, and those of a pod.
_SLURM_JOB = re.compile(r"/job_(\d{1,18})(?:/|$)")
_POD = re.compile(r"/(?:kubepods|cri-containerd|crio|libpod|docker)[^\n]*?([0-9a-f]{8}[-_0-9a-f]{4,})")


class OtherJob(ValueError):
    """One line: which other job of the user is on the node."""


def refuse_beside_other_jobs(uid: int, *, proc: Path = Path("/proc"), environ: Mapping[str, str] = os.environ) -> None:
    """Raises OtherJob where a process of the user is held by the scheduler as one of another job than that which ends.

    environ: of an epilog; its job is named by SLURM_JOB_ID. What groups say only root can write.
    """
    own = environ.get("SLURM_JOB_ID", "")
    for entry in proc.iterdir():
        if not entry.name.isdecimal() or not is_process_of(int(entry.name), uid, proc):
            continue
        try:
            groups = (entry / "cgroup").read_text(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        found = _SLURM_JOB.search(groups)
        if found is not None and found[1] != own:
            raise OtherJob(f"user {uid} has job {found[1]} here (process {entry.name}): nothing of his is reclaimed")
        if _POD.search(groups) is not None:
            raise OtherJob(f"process {entry.name} of user {uid} is in a container: nothing of his is reclaimed")
