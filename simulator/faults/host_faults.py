"""Faults of one node's host: its cores, its memory, its way to the file system and to the other nodes."""

from __future__ import annotations

from ..resources import ParameterChange
from .fault import FaultKind, FaultSite, Planned


def _of_host(
    site: FaultSite, kind: FaultKind, name: str, value: float, kinds: tuple[str, ...], **more: object
) -> Planned:
    place = site.any_node()
    node = site.job.nodes[place]
    truth = site.truth(kind, "node", kinds, ranks=site.ranks_on(place), nodes=(site.topology.node_name(node),), **more)
    change = ParameterChange(at_s=site.at_s, family="host", name=name, value=value, places=(node,))
    return Planned(changes=(change,), truth=truth)


def never_joins(site: FaultSite, kind: FaultKind) -> Planned:
    """What starts on a random node from ``at_s`` on does not find the others: name service, image or
    routes are wrong.
    """
    return _of_host(site, kind, "joins", 0.0, ("rank_never_joined",))


def shared_memory_full(site: FaultSite, kind: FaultKind) -> Planned:
    """The /dev/shm of a random node is full from ``at_s`` on: workers of loaders get no more of it."""
    more = {"condition": "shared_memory_full", "told_by": ("host",)}
    return _of_host(site, kind, "shared_memory", 1.0, ("rank_raised",), **more)


def writes_slowly(site: FaultSite, kind: FaultKind) -> Planned:
    """A random node writes to the shared file system at a tenth of its pace: its part of each checkpoint comes late."""
    return _of_host(site, kind, "writes", 0.1, ("rank_slow", "rank_not_entered"))


def cores_taken(site: FaultSite, kind: FaultKind) -> Planned:
    """Somebody else's processes take four fifths of a random node's cores: its hosts launch too late."""
    return _of_host(site, kind, "cpu", 0.2, ("rank_slow",))


KINDS = (
    FaultKind("node_never_joins", "14", "what starts on one node never finds the others", never_joins),
    FaultKind("shared_memory_full", "15", "one node's /dev/shm is full: its loaders' workers die", shared_memory_full),
    FaultKind("checkpoint_straggler", "22", "one node writes its part of each checkpoint slowly", writes_slowly),
    FaultKind("cores_taken", "33", "somebody else takes most of the cores of one node", cores_taken),
)
