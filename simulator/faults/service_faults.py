"""Faults of services that all jobs use: a file system without room, a control service away, bursts of writes."""

from __future__ import annotations

from ..resources import SERVICES, ParameterChange
from .fault import FaultKind, FaultSite, Planned


def _no_room(site: FaultSite, kind: FaultKind, name: str) -> Planned:
    """Somebody's files take nearly all that is left: what remains is less than the smallest job's next checkpoint."""
    smallest = min(job.recipe.save_bytes_per_rank * job.mesh.world_size for job in site.jobs)
    left = float(site.random.uniform(0.2, 0.8)) * smallest
    change = ParameterChange(at_s=site.at_s, family="filesystem", name=name, value=left)
    truth = site.truth(
        kind,
        "storage",
        ("storage_full",),
        devices=(site.topology.labels(0)["storage"],),
        victims=tuple(job.name for job in site.jobs[1:]),
    )
    return Planned(changes=(change,), truth=truth)


def filesystem_full(site: FaultSite, kind: FaultKind) -> Planned:
    """The shared file system is full from ``at_s`` on: each job's next checkpoint finds no space."""
    return _no_room(site, kind, "room_bytes")


def quota_used_up(site: FaultSite, kind: FaultKind) -> Planned:
    """The jobs' common quota is used up from ``at_s`` on: their next checkpoints fail."""
    return _no_room(site, kind, "quota_bytes")


def service_away(site: FaultSite, kind: FaultKind) -> Planned:
    """A random service is away for 90 s: jobs that start meanwhile cannot; those that run do not need it.

    Raises IndexError where no job starts in that time.
    """
    which = int(site.random.integers(0, len(SERVICES)))
    until_s = site.at_s + 90.0
    changes = tuple(
        ParameterChange(at_s=at_s, family="service", name="up", value=up, places=(which,))
        for at_s, up in ((site.at_s, 0.0), (until_s, 1.0))
    )
    starting = tuple(job.name for job in site.jobs if site.at_s <= job.start_s < until_s)
    truth = site.truth(
        kind,
        "service",
        ("service_outage",),
        job=starting[0],
        until_s=until_s,
        devices=(site.topology.labels(0)["service"],),
        victims=starting[1:],
    )
    return Planned(changes=changes, truth=truth)


def checkpoint_burst(site: FaultSite, kind: FaultKind) -> Planned:
    """The last job's checkpoints become ten times as large: while it writes one, others' reads stand in the queue."""
    culprit = site.jobs[-1]
    change = ParameterChange(at_s=site.at_s, family="program", name="save_bytes", value=10.0, job=culprit.name)
    truth = site.truth(
        kind,
        "storage",
        ("storage_overload",),
        culprit=culprit.name,
        victims=tuple(job.name for job in site.jobs[:-1]),
    )
    return Planned(changes=(change,), truth=truth)


KINDS = (
    FaultKind(
        "filesystem_full", "J5", "the shared file system is full: each job's next checkpoint fails", filesystem_full
    ),
    FaultKind("quota_used_up", "J5q", "the jobs' common quota is used up", quota_used_up),
    FaultKind("service_away", "J11", "a service that jobs need to start is away for 90 s", service_away),
    FaultKind(
        "checkpoint_burst",
        "J2",
        "one job's checkpoints fill the file servers' queues again and again",
        checkpoint_burst,
    ),
)
