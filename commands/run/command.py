"""``whichrank run``: watch one command, everything embedded.

The main thread watches; a thread passes signals on; the command is a child that notices no difference. Whatever of
ours fails, the command goes on, and the exit status is the command's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ...telemetry.identity import slurm_job
from ...telemetry.injection_words import RUN_FOLDER_VARIABLE
from ...telemetry.missing_packages import in_words
from ...telemetry.redaction import redact
from ..multi_node.peer_plan import InstanceRole
from ..multi_node.peer_setup import PeerSetup, set_up_peers
from ..run_folder.run_directory import (
    Unusable,
    make_job_id,
    make_ring_directory,
    make_run_directory,
    remove_ring_directory,
)
from ..settings.settings import RunSettings
from ..support.stderr import SayHandler, say
from .foreground_command import CommandNotStarted, ForegroundCommand
from .job import Job
from .script_name import name_script

BOOTSTRAP = Path(__file__).resolve().parents[2] / "instrumentation" / "bootstrap"


def prepare_job(command: Sequence[str], settings: RunSettings, peers: PeerSetup) -> Job:
    """Names the job and creates its folders.

    What cannot be created is said in one line and leaves the job unwatched (``rings`` None).
    """
    script = name_script(command)
    # Slurm's id: a requeued job is the same job, several nodes and the agent call it so, and respond can requeue it.
    given = peers.job or os.environ.get("WHICHRANK_JOB_ID") or slurm_job(os.environ)
    # Before folders are called after it: in their names a secret could not be told any more.
    job_id = redact(given or make_job_id(script))
    out = settings.out
    if out is not None and peers.role is InstanceRole.FOLLOWER:
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
    """The environment of the command: ours without our secrets, and what makes the ranks record.

    Where the job is not watched nothing is added.
    """
    environ = dict(os.environ)
    for secret in ("WHICHRANK_JUDGE_SECRET", "WHICHRANK_JUDGE_SECRET_FILE", "WHICHRANK_KAFKA_PASSWORD"):
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
    if job.directory is not None:
        environ[RUN_FOLDER_VARIABLE] = str(job.directory.path)
    return environ


def run(command: Sequence[str], settings: RunSettings) -> NoReturn:
    """Runs the command under watch, and ends this process as the command ended. Never returns."""
    peers = set_up_peers(
        command,
        judge=settings.judge,
        secret=settings.shared_secret(),
        script=name_script(command),
        report=say,
        tls=settings.tls(),
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
    os.umask(0o077)  # what we write is stacks and logs; the command has started with the umask that it was given
    if job.directory is not None and job.rings is not None:
        try:
            # Imported only now: numpy and the rest load while the command's own interpreter starts.
            from .watching import watch

            watch(child, job, job.directory, job.rings, settings, started_ns, peers)
        except Exception as error:  # edge: nothing of ours may end the command
            say(f"stopped watching: {in_words(error, 'agent')}; the command goes on")
    child.wait()
    child.exit_as_it_did()
