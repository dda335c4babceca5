"""The command's next attempts, where ``--restarts`` asks for them: what to set up, and the pause between two."""

from __future__ import annotations

import os
import queue
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from ...telemetry.records import Identity
from ...telemetry.redaction import redact_command
from ...telemetry.vocabulary import EventName
from ..embedded.embedded_watch import EmbeddedWatch
from ..live_view.job_status import JobStatus
from ..multi_node.peers import FollowerPeers, JudgePeers, Peers
from ..run_folder.run_directory import RunDirectory
from ..settings.restart_options import spares_of, triggers_of
from ..settings.settings import RunSettings
from ..supervise.follower import FollowerSupervisor
from ..supervise.limits import RestartLimits
from ..supervise.node_exclusion import restarts_by_itself
from ..supervise.nodes import Nodes, least_nodes
from ..supervise.supervisor import Supervisor, SupervisorOptions
from ..supervise.trail import Trail
from ..support.stderr import say
from .foreground_command import CommandNotStarted, ForegroundCommand
from .job import Job

AnySupervisor = Supervisor | FollowerSupervisor
#: What a shell shows for a command that a SIGTERM has ended: also one that we have ended and that says it ended well.
EXIT_TERMINATED = 143


def make_supervisor(
    settings: RunSettings,
    job: Job,
    directory: RunDirectory,
    rings: Path,
    *,
    identity: Identity,
    peers: Peers,
    nodes: int,
    tell: Callable[[bytes], None],
) -> AnySupervisor | None:
    """The supervisor that was asked for. None: nobody has, or it cannot be, which is said.

    nodes: of the job, as the launcher says. tell: takes its events, as OTLP requests of logs.
    """
    if not settings.restarts:
        return None
    if launcher := restarts_by_itself(job.command):
        say(f"{launcher} restarts the job by itself: --restarts does nothing beside it")
        return None
    options = SupervisorOptions(
        limits=RestartLimits(
            restarts=settings.restarts, per_hour=settings.restarts_per_hour, backoff_s=settings.restart_backoff_s
        ),
        on=triggers_of(settings.restart_on),
        spares=spares_of(settings.restart_spares),
        grace_s=settings.restart_grace_s,
        dry=settings.restart_dry_run,
        allocated=int(nodes_given) if (nodes_given := os.environ.get("SLURM_JOB_NUM_NODES", "")).isdecimal() else 0,
    )
    cluster, node = identity.cluster, identity.node
    trail = Trail(directory.path, job=job.id, cluster=cluster, node=node, dry=options.dry, tell=tell, say=say)
    if isinstance(peers, FollowerPeers):
        if options.dry:
            return None  # the judge says what would be done; whatever it says, nothing is done here
        follower = FollowerSupervisor(
            job.command,
            grace_s=options.grace_s,
            rings=rings,
            trail=trail,
            is_judged=lambda: not peers.is_partial(),
        )
        peers.on_order = follower.obey
        return follower
    others = None
    if isinstance(peers, JudgePeers):
        others = Nodes(node, expected=nodes, least=least_nodes(job.command, nodes), send=peers.order)
    return Supervisor(options, job.command, job=job.id, folder=directory.path, rings=rings, trail=trail, nodes=others)


def start_next(
    child: ForegroundCommand,
    watcher: EmbeddedWatch,
    status: JobStatus,
    supervisor: AnySupervisor,
    *,
    job_name: str,
    turn: Callable[[], None],
) -> bool:
    """After the command's end: starts the next attempt, where there is to be one; whether it has.

    What the end has left behind is concluded first, so that it is judged by all that is known. turn: one of the watch.
    """
    attempt, exit_code = status.attempt, child.exit_code
    if not supervisor.has_ended_it:
        watcher.settle(abnormal=exit_code != 0)
    if not supervisor.next(exit_code, attempt, ranks_seen=bool(status.ranks)):
        return False
    while watcher.broken is None and supervisor.is_waiting:
        turn()
        supervisor.turn(0, attempt)
        watcher.wait()
    if watcher.broken is not None:
        supervisor.not_started("whichrank watches no more")
        return False
    if not supervisor.may_start(exit_code, attempt):
        return False
    return _start(child, watcher, supervisor, attempt, job_name=job_name)


def _start(
    child: ForegroundCommand,
    watcher: EmbeddedWatch,
    supervisor: AnySupervisor,
    attempt: str,
    *,
    job_name: str,
) -> bool:
    try:
        child.start_again(supervisor.next_command)
    except CommandNotStarted as error:
        supervisor.not_started(str(error))
        return False
    command = supervisor.next_command
    supervisor.started(attempt)
    tell_start(watcher, command, job_name, child.pid, supervised=1, restarted=1)
    return True


def tell_start(watcher: EmbeddedWatch, command: Sequence[str], job_name: str, pid: int, **more: int) -> None:
    """Puts on the bus that the command has started."""
    watcher.tell(EventName.JOB_STARTED, command=shlex.join(redact_command(command)), job_name=job_name, pid=pid, **more)


def drained(child: ForegroundCommand) -> list[tuple[int, int]]:
    """Signals that came since the last call: (number, monotonic ns)."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            seen = child.signals.get_nowait()
        except queue.Empty:
            return found
        found.append((seen.number, seen.mono_ns))
