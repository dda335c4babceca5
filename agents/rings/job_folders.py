"""Which folders of a node hold rings, whose they are, and of which job: for an agent that nobody told about the jobs.

The owner of a folder is who the kernel says; what a ring claims about its job is believed only beside that. Reads
directories and the headers of rings, nothing else. A look at unchanged folders costs a stat and a listing each.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...telemetry.identity import resolve_identity, resolve_job_name
from ...telemetry.printable import printable
from ...telemetry.records import Identity
from ...telemetry.ring_layout import RING_SUFFIX
from ..processes import processes
from ..processes.job_id_proof import owner_of
from .ring_directory import gave_sign_of_life
from .ring_file import RingDamaged, RingFile

#: Root, user, job: rings may lie in each.
_DEPTH = 2
#: More folders than this below a root are somebody's mistake.
MAX_FOLDERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """identity: cluster and node are the agent's own, the owner is the kernel's. name: what people call the job."""

    identity: Identity
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolder:
    """A folder with rings. ``changed_ns``: its mtime; new rings change it."""

    path: Path
    owner_uid: int
    changed_ns: int


def find_job_folders(pattern: Path, report: Callable[[str], None]) -> list[JobFolder]:
    """Folders with rings at the pattern's matches and up to two levels below, in order of their names.

    Links are not followed. What may not be read is reported, in one line per folder.
    """
    found: list[JobFolder] = []
    for root in sorted(glob.glob(str(pattern))):
        for folder in _folders(Path(root), _DEPTH, report):
            if len(found) >= MAX_FOLDERS:
                report(f"{root}: more than {MAX_FOLDERS} folders with rings; the others are not watched")
                return found
            found.append(folder)
    return found


def _folders(path: Path, depth: int, report: Callable[[str], None]) -> Iterator[JobFolder]:
    try:
        state = os.lstat(path)
        if not stat.S_ISDIR(state.st_mode):
            return
        with os.scandir(path) as listing:
            entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing)
    except FileNotFoundError:
        return
    except OSError as error:
        report(f"{path}: {error.strerror}; rings in it are not watched (run the agent as root or as their user)")
        return
    if any(name.endswith(RING_SUFFIX) and not name.startswith(".") for name, _ in entries):
        yield JobFolder(path=path, owner_uid=state.st_uid, changed_ns=state.st_mtime_ns)
    if depth:
        for name, is_folder in entries:
            if is_folder:
                yield from _folders(path / name, depth - 1, report)


def identify_job(
    folder: JobFolder, own: Identity, since_ns: int, missed_since_ns: int | None = None
) -> FoundJob | None:
    """The job whose rings lie in a folder, by the newest ring that can be read.

    own: cluster and node of this agent, which no ring can claim.
    since_ns, missed_since_ns: as the ``Agent`` takes them.
    None: no ring can be read yet, or all are of ranks that were dead before these times.
    """
    try:
        names = sorted(
            (entry.stat(follow_symlinks=False).st_mtime_ns, entry.name)
            for entry in os.scandir(folder.path)
            if entry.name.endswith(RING_SUFFIX) and not entry.name.startswith(".")
        )
    except OSError:
        return None
    job: FoundJob | None = None
    for _, name in reversed(names):
        try:
            ring = RingFile(folder.path / name)
        except (RingDamaged, OSError):
            continue
        if ring.uid in (folder.owner_uid, 0):
            job = job or _claimed_job(ring, folder, own)
        holder = processes.lock_holder(ring.fd)
        matters = (
            ring.header.created_mono_ns >= since_ns or holder is not None or gave_sign_of_life(ring, missed_since_ns)
        )
        ring.close()
        if matters and job is not None:
            owner = owner_of(holder or 0, folder.owner_uid)
            return replace(job, identity=replace(job.identity, owner=owner))
    return None


def _claimed_job(ring: RingFile, folder: JobFolder, own: Identity) -> FoundJob:
    claims = {key: printable(value) for key, value in ring.header.identity.items() if isinstance(value, str)}
    claimed = resolve_identity(claims)
    job = claimed.job or claims.get("job") or printable(folder.path.name)
    identity = replace(own, job=job, run=claimed.run or job, world="", attempt="", rank=-1)
    return FoundJob(identity=identity, name=resolve_job_name(claims) or _called(claims.get("script", "")) or job)


def _called(script: str) -> str:
    """What people call a rank's script; of ``python -m package`` its file says no more than __main__.py."""
    path = Path(script)
    return path.parent.name if path.name == "__main__.py" else path.name
