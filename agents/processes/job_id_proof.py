"""Whose a rank's job is, and whether its id is only claimed: by what the kernel and kubelet say of the rank's process.

A ring and an environment are the user's to write, a control group that root has made is not, and neither is a step
daemon of root's among the ancestors. Reads a few small files of /proc; called when a rank is found, not at each look.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...telemetry.identity import explain_identity
from ...telemetry.trust import IdBy
from . import processes

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
#: Kubelet's own folder: NAMESPACE_POD_UID, made by root.
POD_FOLDERS = Path("/var/log/pods")
#: /slurm/uid_1000/job_4711/..., /system.slice/slurmstepd.scope/job_4711/...
_SLURM_GROUP = re.compile(r"/(?:uid_[0-9]+|[^/]*slurmstepd\.scope)/job_([0-9]+)(?=/|$)")
_POD_GROUP = re.compile(
    r"/kubepods[^/]*(?:/[^/]*)*?[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})[^/]*(?=/|$)"
)
#: What slurmstepd calls itself: "slurmstepd: [4711.0]", "slurmstepd: [4711.batch]".
_STEP_TITLE = re.compile(rb"slurmstepd: \[([0-9]+)\.")
_STEP_DAEMON = "slurmstepd"
_MAX_ANCESTORS = 32
_MAX_BYTES = 64 << 10
_MAX_POD_FOLDERS = 4096


def owner_of(pid: int, uid: int) -> str:
    """Whose the process is: "namespace/NAME" of a pod that kubelet knows, else the uid of its ring, in digits.

    pid: 0 where it is not known.
    """
    namespace = _namespace_of(pid) if pid else ""
    return f"namespace/{namespace}" if namespace else str(uid)


def who_says_id(claims: Mapping[str, str], pid: int) -> IdBy:
    """Who says that the job has the id that the rank claims. claims: variables of its ring. pid: 0 where not known."""
    job, source = explain_identity(claims)["job"]
    if pid and job and job in _slurm_jobs_of(pid):
        return IdBy.KERNEL
    if source == "kubernetes":
        namespace = _namespace_of(pid) if pid else ""
        return IdBy.KERNEL if namespace and job.partition("/")[0] == namespace else IdBy.CLAIMED
    return IdBy.CLAIMED if source == "slurm" else IdBy.NAMED


def _slurm_jobs_of(pid: int) -> set[str]:
    """Ids of jobs that Slurm, as root, has put this process into."""
    found = {match[1] for place, path in _groups_of(pid) for match in [_root_made(_SLURM_GROUP, place, path)] if match}
    return found or set(_step_daemons_of(pid))


def _step_daemons_of(pid: int) -> Iterator[str]:
    for _ in range(_MAX_ANCESTORS):
        stat = processes.read_stat(pid)
        if stat is None or stat.parent_pid <= 1:
            return
        pid = stat.parent_pid
        if _read(PROC / str(pid) / "comm").strip() == _STEP_DAEMON.encode() and _is_roots(pid):
            if title := _STEP_TITLE.match(_read(PROC / str(pid) / "cmdline")):
                yield title[1].decode()
            return


def _is_roots(pid: int) -> bool:
    """Whether all its uids are 0 (a program with the setuid bit has its user's real one), and it is in no container:
    one's root may call his programs what he likes.
    """
    lines = _read(PROC / str(pid) / "status").splitlines()
    words = {name: value.split() for name, _, value in (line.partition(b":") for line in lines)}
    deep, own = len(words.get(b"NSpid", ())), len(_own_pids())
    return words.get(b"Uid") == [b"0"] * 4 and deep <= own


def _own_pids() -> list[bytes]:
    """Of this process, one for each pid namespace from that of /proc on."""
    lines = _read(PROC / "self" / "status").splitlines()
    return next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [b"1"])


def _namespace_of(pid: int) -> str:
    """The Kubernetes namespace of a process's pod, by the folder that kubelet made for it; "" where nobody knows."""
    for place, path in _groups_of(pid):
        match = _root_made(_POD_GROUP, place, path)
        if match:
            return _namespace_of_pod(match[1].replace("_", "-"))
    return ""


def _namespace_of_pod(uid: str) -> str:
    try:
        with os.scandir(POD_FOLDERS) as entries:
            for count, entry in enumerate(entries):
                if count >= _MAX_POD_FOLDERS:
                    return ""
                if entry.name.endswith(f"_{uid}") and entry.stat(follow_symlinks=False).st_uid == 0:
                    return entry.name.partition("_")[0]
    except OSError:
        pass
    return ""


def _groups_of(pid: int) -> Iterator[tuple[Path, str]]:
    """Where each hierarchy is mounted, and the process's group in it."""
    for line in _read(PROC / str(pid) / "cgroup").decode("utf-8", "replace").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        yield CGROUPS / controllers.removeprefix("name="), path


def _root_made(pattern: re.Pattern[str], place: Path, path: str) -> re.Match[str] | None:
    """The match, if the group's folder is root's: users make groups of any name below those that are handed to them.

    Where it cannot be looked at (no such mount here), only a group outside of users' own slices counts.
    """
    match = pattern.search(path)
    if match is None:
        return None
    try:
        made_by = os.stat(f"{place}{path[: match.end()]}", follow_symlinks=False).st_uid
    except OSError:
        return None if "/user.slice/" in path or "/user@" in path else match
    return match if made_by == 0 else None


def _read(path: Path) -> bytes:
    """b"" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return b""
