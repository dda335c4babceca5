"""Faults of those who look: agents, the road to the bus, clocks. The jobs are well, and nobody of them is to blame."""

from __future__ import annotations

from ..resources import ParameterChange
from .fault import FaultKind, FaultSite, Planned


def agent_dies(site: FaultSite, kind: FaultKind) -> Planned:
    """The agent of a random node of the job dies at ``at_s``; the node's ranks train on, unseen."""
    node = site.job.nodes[site.any_node()]
    change = ParameterChange(at_s=site.at_s, family="agent", name="up", value=0.0, places=(node,))
    return Planned(changes=(change,), truth=site.truth(kind, "node", ("agent_silent", "telemetry_fault")))


def messages_lost(site: FaultSite, kind: FaultKind) -> Planned:
    """For 30 s from ``at_s`` on nothing of any node arrives."""
    until_s = site.at_s + 30.0
    changes = tuple(
        ParameterChange(at_s=at_s, family="agent", name="loss", value=loss)
        for at_s, loss in ((site.at_s, 1.0), (until_s, 0.0))
    )
    kinds = ("input_silent", "agent_silent", "telemetry_fault")
    return Planned(changes=changes, truth=site.truth(kind, "cluster", kinds, until_s=until_s))


def clock_turned_back(site: FaultSite, kind: FaultKind) -> Planned:
    """The wall clock of a random node of the job is set back by 3 to 9 s."""
    node = site.job.nodes[site.any_node()]
    back_s = -float(site.random.uniform(3.0, 9.0))
    change = ParameterChange(at_s=site.at_s, family="agent", name="clock_s", value=back_s, places=(node,))
    # It is told of the node, and of no job.
    return Planned(changes=(change,), truth=site.truth(kind, "node", ("telemetry_fault",), job=""))


def ranks_relabelled(site: FaultSite, kind: FaultKind) -> Planned:
    """After the job's next restart its ranks are on other nodes: what is known of a rank is not known of its node."""
    change = ParameterChange(at_s=site.at_s, family="program", name="moves", value=1.0, job=site.job.name)
    return Planned(changes=(change,), truth=site.truth(kind, "job", (), job=""))


def kernel_lines_lost(site: FaultSite, kind: FaultKind) -> Planned:
    """From the beginning seven of ten kernel lines of all nodes are overwritten before anybody has read them."""
    change = ParameterChange(at_s=0.0, family="agent", name="lines_lost", value=0.7)
    return Planned(changes=(change,), truth=site.truth(kind, "cluster", (), job=""))


KINDS = (
    FaultKind("agent_dies", "O1", "one node's agent dies; its ranks train on", agent_dies),
    FaultKind("messages_lost", "O2", "for 30 s no message of any agent arrives", messages_lost),
    FaultKind("clock_turned_back", "O3", "one node's wall clock is set back by some seconds", clock_turned_back),
    FaultKind("ranks_relabelled", "O5", "after the next restart the ranks are on other nodes", ranks_relabelled),
    FaultKind("kernel_lines_lost", "O6", "seven of ten kernel lines are lost before they are read", kernel_lines_lost),
)
