"""What this process knows of itself: its rank, its job, where its ring belongs. Read once, at start.

Pure functions of the environment but for ``describe_process``. The full answer to "who is who" is the agent's; the ring
carries the raw facts. Standard library only.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..telemetry.ring_layout import cut_text
from ..telemetry.ring_root import make_ring_root, ring_root
from .levels import checks_inputs
from .ring_creation import IdentityValue, read_process_start_ticks

#: pid:rank of the process that owns a rank's ring; inherited by helpers, which thereby know that they are helpers.
OWNER_VARIABLE = "WHICHRANK_OWNER"

#: Launcher and scheduler variables that identify a job, copied into the ring as they are.
IDENTIFYING = (
    "WHICHRANK_CLUSTER_ID",
    "WHICHRANK_JOB_ID",
    "WHICHRANK_RUN_ID",
    "WHICHRANK_WORLD_ID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "GROUP_RANK",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_JOB_NAME",
    "SLURMD_NODENAME",
    "RAY_JOB_ID",
    "JOBSET_NAME",
    "PYTORCHJOB_NAME",
    "HOSTNAME",
)
MAX_VALUE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where this process stands in its job."""

    rank: int
    local_rank: int
    world_size: int


def place_of_environment(environ: Mapping[str, str]) -> RankPlace | None:
    """Rank, local rank and world size as launchers set them; None unless RANK is a number."""
    rank = _number(environ, "RANK")
    if rank < 0:
        return None
    local_rank = _number(environ, "LOCAL_RANK")
    return RankPlace(
        rank=rank,
        local_rank=local_rank if local_rank >= 0 else rank,
        world_size=max(_number(environ, "WORLD_SIZE"), rank + 1),
    )


def job_of_environment(environ: Mapping[str, str]) -> str:
    """A name for the job that all ranks of a node agree on, fit for a directory name."""
    for variable in ("WHICHRANK_JOB_ID", "SLURM_JOB_ID", "RAY_JOB_ID", "TORCHELASTIC_RUN_ID"):
        value = environ.get(variable, "")
        if value and value != "none":
            break
    else:
        value = f"{environ.get('MASTER_ADDR', 'local')}-{environ.get('MASTER_PORT', '0')}"
    return re.sub(r"[^A-Za-z0-9._-]", "_", value)[:100].lstrip(".") or "job"


def ring_directory_of_environment(environ: Mapping[str, str]) -> Path:
    """The folder for rings: WHICHRANK_DIR, or one per user and job in shared memory. It is not made."""
    given = environ.get("WHICHRANK_DIR", "")
    if given:
        return Path(given)
    return ring_root() / job_of_environment(environ)


def make_ring_directory(directory: Path) -> Path:
    """Creates the folder (0700) if it is missing, and returns it. Raises OSError.

    A folder that others can write or that another user owns could be swapped under us: no ring there, but
    PermissionError. Where it is the usual one, whose parent another user has made first, it is made elsewhere.
    """
    if directory.parent == ring_root():
        directory = make_ring_root() / directory.name
    parent = directory.parent
    if not parent.is_dir():
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not directory.is_dir():
        directory.mkdir(mode=0o700, exist_ok=True)
    user = os.getuid()
    for folder in (parent, directory):
        state = os.lstat(folder) if folder is directory else os.stat(folder)
        shared_by_root = folder is parent and state.st_uid == 0  # /dev/shm, /tmp, a mount point
        if state.st_uid != user and not shared_by_root:
            raise PermissionError(f"{folder} belongs to user {state.st_uid}")
    if state.st_uid == user and state.st_mode & 0o022:
        raise PermissionError(f"{directory} is writable for others")
    return directory


def describe_process(environ: Mapping[str, str], *, backend: str, torch_version: str) -> dict[str, IdentityValue]:
    """What the ring's header tells of this process: job, host, script, versions, launcher. Flat and JSON-ready."""
    launcher_pid = os.getppid()
    identity: dict[str, IdentityValue] = {
        "job": job_of_environment(environ),
        "host": socket.gethostname(),
        "script": os.path.abspath(sys.argv[0])[:MAX_VALUE] if sys.argv and sys.argv[0] else "",
        "torch": torch_version,
        "python": ".".join(map(str, sys.version_info[:3])),
        "backend": backend,
        "launcher_pid": launcher_pid,
        "launcher_start_ticks": read_process_start_ticks(launcher_pid),
        "restart_count": max(_number(environ, "TORCHELASTIC_RESTART_COUNT"), 0),
    }
    for variable in IDENTIFYING:
        value = environ.get(variable)
        if value:
            identity[variable] = cut_text(value, MAX_VALUE)
    if checks_inputs(environ):
        identity["checks_inputs"] = True
    return identity


def owner_mark(rank: int) -> str:
    """The value of OWNER_VARIABLE by which this process owns the rank."""
    return f"{os.getpid()}:{rank}"


def is_helper(environ: Mapping[str, str], rank: int, directory: Path) -> bool:
    """Whether another process, an ancestor, already owns this rank's ring: then this one only inherited RANK."""
    pid_text, _, rank_text = environ.get(OWNER_VARIABLE, "").partition(":")
    if not pid_text.isdigit() or int(pid_text) == os.getpid() or rank_text != str(rank):
        return False
    try:
        return any(name.startswith(f"rank-{rank:05d}.{pid_text}.") for name in os.listdir(directory))
    except OSError:
        return False


def _number(environ: Mapping[str, str], variable: str) -> int:
    try:
        return int(environ.get(variable, ""))
    except ValueError:
        return -1
