"""What looks like trouble and is none: nobody should be told of it, and it should explain nothing else."""

from __future__ import annotations

from ..resources import ParameterChange
from .fault import FaultKind, FaultSite, Planned


def _of_idle_node(site: FaultSite) -> int:
    return site.node if site.node >= 0 else site.job.spares[0]


def _of_any_node(site: FaultSite) -> int:
    return site.node if site.node >= 0 else site.job.nodes[site.any_node()]


def _device(site: FaultSite, node: int, number: int) -> int:
    """A GPU, or its port, of a node that may have fewer."""
    per_node = site.topology.shape.gpus_per_node
    return node * per_node + number % per_node


def _nothing(site: FaultSite, kind: FaultKind, *changes: ParameterChange) -> Planned:
    return Planned(changes=changes, truth=site.truth(kind, "node", (), job=""))


def _for_a_while(
    site: FaultSite, family: str, name: str, place: int, seconds: float
) -> tuple[ParameterChange, ParameterChange]:
    """Down, and up again."""
    down = ParameterChange(at_s=site.at_s, family=family, name=name, value=0.0, places=(place,))
    return down, ParameterChange(at_s=site.at_s + seconds, family=family, name=name, value=1.0, places=(place,))


# --- on nodes that nobody of the jobs uses ----------------------------------------------------------------------------
def idle_port_flaps(site: FaultSite, kind: FaultKind) -> Planned:
    """The link of a port that nobody uses goes down, and up again after 12 s."""
    port = _device(site, _of_idle_node(site), 0)
    return _nothing(site, kind, *_for_a_while(site, "port", "up", port, 12.0))


def idle_clock_locked(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on the clocks of a GPU that nobody uses are locked low."""
    gpu = _device(site, _of_idle_node(site), 1)
    return _nothing(
        site, kind, ParameterChange(at_s=site.at_s, family="gpu", name="clock_limit", value=0.75, places=(gpu,))
    )


def tenant_fault(site: FaultSite, kind: FaultKind) -> Planned:
    """The program of another tenant, on a node of its own, reads memory that is not its own."""
    gpu = _device(site, _of_idle_node(site), 2)
    return _nothing(site, kind, ParameterChange(at_s=site.at_s, family="gpu", name="tenant", value=1.0, places=(gpu,)))


# --- on any node ------------------------------------------------------------------------------------------------------
def port_blinks(site: FaultSite, kind: FaultKind) -> Planned:
    """The link of a port in use is down for 0.6 s, as it is trained anew: what is under way is sent again."""
    port = _device(site, _of_any_node(site), 3)
    return _nothing(site, kind, *_for_a_while(site, "port", "up", port, 0.6))


def errors_corrected(site: FaultSite, kind: FaultKind) -> Planned:
    """The memory of a GPU in use has corrected an error, and will replace the row when it is next reset."""
    gpu = _device(site, _of_any_node(site), 4)
    return _nothing(
        site, kind, ParameterChange(at_s=site.at_s, family="gpu", name="corrected", value=1.0, places=(gpu,))
    )


def host_errors_corrected(site: FaultSite, kind: FaultKind) -> Planned:
    """The memory of a random host has corrected an error."""
    node = _of_any_node(site)
    return _nothing(
        site, kind, ParameterChange(at_s=site.at_s, family="host", name="corrected", value=1.0, places=(node,))
    )


def home_mount_late(site: FaultSite, kind: FaultKind) -> Planned:
    """The home directories, which no job reads, do not answer on a random node for 25 s."""
    return _nothing(site, kind, *_for_a_while(site, "host", "home_mount", _of_any_node(site), 25.0))


def agent_restarts(site: FaultSite, kind: FaultKind) -> Planned:
    """The agent of a random node is updated: it is away for 4 s, and reads what the rings hold when it comes back."""
    return _nothing(site, kind, *_for_a_while(site, "agent", "wanted", _of_any_node(site), 4.0))


def messages_repeat(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on a third of all messages arrive twice, and all of a random node half a second late."""
    late = _of_any_node(site)
    changes = (
        ParameterChange(at_s=site.at_s, family="agent", name="repeats", value=0.33),
        ParameterChange(at_s=site.at_s, family="agent", name="delay_s", value=0.5, places=(late,)),
    )
    return Planned(changes=changes, truth=site.truth(kind, "cluster", (), job=""))


#: What needs a node that no job uses; and what may happen anywhere.
OF_IDLE_NODES = (
    FaultKind("idle_port_flaps", "h1", "the link of an idle port goes down for 12 s", idle_port_flaps),
    FaultKind("idle_clock_locked", "h2", "the clocks of an idle GPU were left locked low", idle_clock_locked),
    FaultKind("tenant_fault", "h3", "another tenant's program, elsewhere, reads where it may not", tenant_fault),
)
OF_ANY_NODE = (
    FaultKind("port_blinks", "h4", "the link of a port in use is down for 0.6 s", port_blinks),
    FaultKind("errors_corrected", "h5", "a GPU in use corrects an error of its memory", errors_corrected),
    FaultKind("host_errors_corrected", "h6", "a host corrects an error of its memory", host_errors_corrected),
    FaultKind("home_mount_late", "h7", "home directories, which no job reads, do not answer for 25 s", home_mount_late),
    FaultKind("agent_restarts", "h8", "one node's agent is away for 4 s", agent_restarts),
)
KINDS = (
    *OF_IDLE_NODES,
    *OF_ANY_NODE,
    FaultKind("messages_repeat", "O4", "a third of all messages arrive twice, one node's all late", messages_repeat),
)
