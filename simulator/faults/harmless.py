"""What looks like trouble and is none: nobody should be told of it, and it should explain nothing else."""

from __future__ import annotations

from ..resources import Change
from .fault import FaultKind, Planned, Site


def idle_port_flaps(site: Site, kind: FaultKind) -> Planned:
    """The link of a port that nobody uses goes down, and up again after 12 s."""
    port = site.job.spares[0] * site.topology.shape.gpus_per_node
    changes = tuple(
        Change(at_s=at_s, family="port", name="up", value=up, places=(port,))
        for at_s, up in ((site.at_s, 0.0), (site.at_s + 12.0, 1.0))
    )
    return Planned(changes=changes, truth=site.truth(kind, "node", (), job=""))


def idle_clock_locked(site: Site, kind: FaultKind) -> Planned:
    """The clocks of a GPU that nobody uses were left locked low."""
    gpu = site.job.spares[0] * site.topology.shape.gpus_per_node + 1
    change = Change(at_s=site.at_s, family="gpu", name="clock_limit", value=0.75, places=(gpu,))
    return Planned(changes=(change,), truth=site.truth(kind, "node", (), job=""))


def messages_repeat(site: Site, kind: FaultKind) -> Planned:
    """A third of all messages arrive twice, and all of one node half a second late."""
    late = site.job.nodes[site.any_node()]
    changes = (
        Change(at_s=site.at_s, family="agent", name="repeats", value=0.33),
        Change(at_s=site.at_s, family="agent", name="delay_s", value=0.5, places=(late,)),
    )
    return Planned(changes=changes, truth=site.truth(kind, "cluster", (), job=""))


KINDS = (
    FaultKind("idle_port_flaps", "h1", "the link of an idle port goes down for 12 s", idle_port_flaps),
    FaultKind("idle_clock_locked", "h2", "the clocks of an idle GPU were left locked low", idle_clock_locked),
    FaultKind("messages_repeat", "O4", "a third of all messages arrive twice, one node's all late", messages_repeat),
)
