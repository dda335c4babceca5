"""The job that gets a fault: its ranks on this node, whether it allows that, and where its incidents are.

Only the job's own user may do this, root included: files of another user are not opened with root's rights.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...agents.rings.progress_page import parse_rank_row
from ...agents.rings.ring_directory import find_process
from ...agents.rings.ring_file import RingDamaged, RingFile
from ...telemetry.injection_words import ALLOW_VARIABLE, RUN_FOLDER_VARIABLE, allows_injection
from ...telemetry.ring_layout import RING_SUFFIX
from ...telemetry.ring_root import ring_root
from ...telemetry.vocabulary import ProcessState
from ..run_folder.run_directory import RUN_FILE, Unusable
from ..supervise.job_processes import CommandProcess

_MOST_ENVIRONMENT_BYTES = 4 << 20
LOOK_S = 0.2


class NotAllowed(Unusable):
    """The job is another user's, has not said that faults may be injected, or has nothing to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRank:
    """A rank that lives here. environ: as it was when its process began."""

    rank: int
    world_size: int
    process: CommandProcess
    ring: RingFile
    environ: Mapping[str, str]

    @property
    def step(self) -> int:
        """Its present step; -1 while that is not known."""
        row = parse_rank_row(*self.ring.read_page())
        return -1 if row is None else row.step


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetJob:
    """run: the folder of ``whichrank run``."""

    rings: Path
    run: Path
    ranks: Mapping[int, TargetRank]

    def close(self) -> None:
        """Lets go of the rings."""
        for rank in self.ranks.values():
            rank.ring.close()


def rings_of_job(job: str) -> Path:
    """The ring folder of the caller's job of this name. Raises Unusable."""
    root = ring_root()
    if not job or "/" in job or job.startswith("."):
        raise Unusable(f"{job!r}: no job has such a name")
    if not (root / job).is_dir():
        known = sorted(path.name for path in root.glob("*") if path.is_dir())
        raise Unusable(f"{root / job}: no such job of yours runs here; there are: {', '.join(known) or 'none'}")
    return root / job


def find_target(rings: Path) -> TargetJob:
    """The job with these rings. Raises NotAllowed where it allows no faults, Unusable where no rank lives (yet)."""
    uid = os.stat(rings).st_uid
    if uid != os.geteuid():
        raise NotAllowed(f"{rings}: the job is user {uid}'s: only that user may inject faults into it, root neither")
    ranks = _living(rings)
    try:
        return TargetJob(rings=rings, run=_run_of(rings.name, ranks, uid), ranks=ranks)
    except (Unusable, OSError):
        for each in ranks.values():
            each.ring.close()
        raise


def _run_of(job: str, ranks: Mapping[int, TargetRank], uid: int) -> Path:
    """The folder of the run, of a job that allows faults. Raises NotAllowed, Unusable, OSError."""
    if not ranks:
        raise Unusable(f"{job}: no rank of the job lives on this node")
    unwilling = [rank for rank, each in sorted(ranks.items()) if not allows_injection(each.environ)]
    if unwilling:
        raise NotAllowed(
            f"{job}: the job does not allow it: start it with {ALLOW_VARIABLE}=1 in its environment "
            f"(rank {unwilling[0]} has it not)"
        )
    folders = {each.environ.get(RUN_FOLDER_VARIABLE, "") for each in ranks.values()}
    run = Path(folders.pop()) if len(folders) == 1 else Path()
    if not run.is_absolute():
        raise NotAllowed(f"{job}: there is no folder of a run to compare with: start the job by whichrank run")
    if not (run / RUN_FILE).is_file():
        raise Unusable(f"{run}: there is no {RUN_FILE} (yet)")
    if os.stat(run).st_uid != uid:
        raise NotAllowed(f"{run}: belongs to another user than the job")
    return run


def wait_for_steps(rings: Path, step: int, until_s: float, has_ended: Callable[[], bool] = lambda: False) -> TargetJob:
    """The job, once all its ranks of this node have made so many steps. until_s: monotonic.

    has_ended: whether its run is over. Raises Unusable where that does not come, NotAllowed at once.
    """
    why = f"{rings.name}: no rank has come"
    while time.monotonic() < until_s and not has_ended():
        try:
            job = find_target(rings)
        except NotAllowed:
            raise
        except Unusable as error:
            why = str(error)
        except FileNotFoundError:
            raise Unusable(f"{rings.name}: the job has ended") from None
        else:
            steps = {rank: each.step for rank, each in job.ranks.items()}
            first = next(iter(job.ranks.values()))
            wanted = first.environ.get("LOCAL_WORLD_SIZE", "")
            expected = int(wanted) if wanted.isdecimal() else first.world_size
            if len(steps) >= expected and min(steps.values()) >= step:
                return job
            job.close()
            why = f"{rings.name}: {len(steps)} of {expected} ranks are here, the last at step {min(steps.values())}"
        time.sleep(LOOK_S)
    raise Unusable(f"the job ended, or did not come to step {step} in time: {why}")


def _living(rings: Path) -> dict[int, TargetRank]:
    """By rank, the newest ring whose process lives."""
    found: dict[int, TargetRank] = {}
    for path in sorted(rings.glob(f"*{RING_SUFFIX}"), key=_age):
        try:
            ring = RingFile(path)
        except (OSError, RingDamaged):
            continue
        process = find_process(ring)
        if process.pidfd >= 0:
            os.close(process.pidfd)
        if not process.alive or not process.pid:
            ring.close()
            continue
        found[ring.header.rank] = TargetRank(
            rank=ring.header.rank,
            world_size=ring.header.world_size,
            process=CommandProcess(pid=process.pid, start_ticks=process.start_ticks, state=ProcessState.RUNNING),
            ring=ring,
            environ=_environment(process.pid),
        )
    return found


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _environment(pid: int) -> dict[str, str]:
    """Of a process as it began; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read(_MOST_ENVIRONMENT_BYTES)
    except OSError:
        return {}
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}
