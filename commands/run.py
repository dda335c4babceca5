"""``whichrank run``: watch one command, everything embedded.

The main thread watches; a thread passes signals on; the command is a child that notices no difference. Whatever of
ours fails, the command goes on, and the exit status is the command's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..telemetry.missing_packages import in_words
from ..telemetry.redaction import redact, redact_command, redact_data
from .foreground_command import CommandNotStarted, ForegroundCommand
from .peer_plan import Role
from .peer_setup import PeerSetup, set_up_peers
from .run_directory import (
    RunDirectory,
    Unusable,
    make_job_id,
    make_ring_directory,
    make_run_directory,
    remove_ring_directory,
)
from .saying import SayHandler, say
from .script_name import name_script
from .settings import RunSettings

if TYPE_CHECKING:
    from ..telemetry.records import Identity

PACKAGE_ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = PACKAGE_ROOT / "instrumentation" / "bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The names and places of the job to be watched. ``rings`` None: it cannot be watched."""

    id: str
    script: str
    command: tuple[str, ...]
    directory: RunDirectory | None
    rings: Path | None


def prepare_job(command: Sequence[str], settings: RunSettings, peers: PeerSetup) -> Job:
    """Create the folders. What cannot be created is said in one line and leaves the job unwatched."""
    script = name_script(command)
    # Before folders are called after it: in their names a secret could not be told any more.
    job_id = redact(peers.job or os.environ.get("WHICHRANK_JOB_ID") or make_job_id(script))
    out = settings.out
    if out is not None and peers.role is Role.FOLLOWER:
        out = out / f"node-{peers.node}"  # the folder itself is the judge's, where nodes share it
    try:
        directory, why = make_run_directory(out, job_id, peers.node)
        if why:
            say(f"{why}; this run is kept in {directory.path} instead")
        rings = make_ring_directory(settings.ring_root, job_id)
    except Unusable as error:
        say(f"{error}; the command runs unwatched")
        return Job(id=job_id, script=script, command=tuple(command), directory=None, rings=None)
    return Job(id=job_id, script=script, command=tuple(command), directory=directory, rings=rings)


def child_environment(job: Job, settings: RunSettings) -> dict[str, str]:
    """The environment of the command: ours, and what makes the ranks record."""
    environ = dict(os.environ)
    for secret in ("WHICHRANK_JUDGE_SECRET", "WHICHRANK_KAFKA_PASSWORD"):
        environ.pop(secret, None)
    if job.rings is None:
        return environ
    # Only the bootstrap folder: it loads the package from its own tree where the job's Python has none, so nothing
    # beside it can shadow a package of the job.
    paths = filter(None, (str(BOOTSTRAP), environ.get("PYTHONPATH")))
    environ.update(
        PYTHONPATH=os.pathsep.join(paths),
        WHICHRANK_AUTO="1",
        WHICHRANK_DIR=str(job.rings),
        WHICHRANK_JOB_ID=job.id,
        WHICHRANK_RUN_ID=environ.get("WHICHRANK_RUN_ID") or job.id,
        WHICHRANK_LEVEL=settings.level.value,
        WHICHRANK_NATIVE=str(int(settings.native)),
        WHICHRANK_COMPLETION=str(int(settings.completion)),
        WHICHRANK_CHECK_INPUTS=str(int(settings.check_inputs)),
    )
    return environ


def run(command: Sequence[str], settings: RunSettings) -> NoReturn:
    """Run the command under watch and exit as it does."""
    peers = set_up_peers(
        command,
        judge=settings.judge,
        secret=settings.judge_secret.get_secret_value(),
        script=name_script(command),
        report=say,
    )
    job = prepare_job(command, settings, peers)
    logger = logging.getLogger("whichrank")
    logger.addHandler(SayHandler())
    logger.propagate = False
    started_ns = time.time_ns()
    try:
        child = ForegroundCommand(command, child_environment(job, settings))
    except CommandNotStarted as error:
        say(str(error))
        if job.rings is not None and job.directory is not None:
            remove_ring_directory(job.rings)
            with contextlib.suppress(OSError):
                job.directory.path.rmdir()  # only while there is nothing in it
        sys.exit(error.exit_code)
    if job.directory is not None and job.rings is not None:
        try:
            # Imported only now: numpy and the rest load while the command's own interpreter starts.
            from .watching import watch

            watch(child, job, job.directory, job.rings, settings, started_ns, peers)
        except Exception as error:  # edge: nothing of ours may end the command
            say(f"stopped watching: {in_words(error, 'agent')}; the command goes on")
    child.wait()
    child.exit_as_it_did()


def describe_run(
    job: Job, rings: Path, *, name: str, identity: Identity, pid: int, started_ns: int
) -> dict[str, object]:
    """What run.json says at the start, without secrets: people send it along when they ask for help."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        release = version("whichrank")
    except PackageNotFoundError:
        release = "unknown"
    description: dict[str, object] = redact_data(
        {
            "whichrank": release,
            "job": job.id,
            "name": name,
            "cluster": identity.cluster,
            "command": list(redact_command(job.command)),
            "working_directory": str(Path.cwd()),
            "host": socket.gethostname(),
            "boot_id": _boot_id(),
            "identity": asdict(identity),
            "ring_directory": str(rings),
            "pid": pid,
            "started": started_ns / 1e9,
            "ended": None,
            "exit_code": None,
        }
    )
    return description


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
