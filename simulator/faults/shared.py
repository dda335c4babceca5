"""Faults of what ranks share: links, storage, and the program that all of them run."""

from __future__ import annotations

from ..ground_truth import Truth
from ..resources import ParameterChange
from .fault import FaultKind, FaultSite, Planned


def half_rate(site: FaultSite, kind: FaultKind) -> Planned:
    """The network port of a random rank of the first stage runs at half its rate."""
    rank = site.any_rank_of_the_first_stage()
    change = ParameterChange(at_s=site.at_s, family="port", name="rate", value=0.5, places=(site.gpu(rank),))
    truth = site.of_rank(
        kind, "link", ("slow_together", "rank_slow"), rank, condition="port_slow", told_by=("network",)
    )
    return Planned(changes=(change,), truth=truth)


def link_down(site: FaultSite, kind: FaultKind) -> Planned:
    """The network port of a random rank (never rank 0) loses its link for good."""
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="port", name="up", value=0.0, places=(site.gpu(rank),))
    told_by = ("network", "kernel_log")
    truth = site.of_rank(kind, "link", ("collective_stalled",), rank, condition="port_down", told_by=told_by)
    return Planned(changes=(change,), truth=truth)


def black_hole(site: FaultSite, kind: FaultKind) -> Planned:
    """The port of a random rank loses what is larger than a packet: its link is up, and a ping passes."""
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="port", name="carries", value=0.0, places=(site.gpu(rank),))
    truth = site.of_rank(
        kind, "link", ("collective_stalled",), rank, condition="port_loses_packets", told_by=("network",)
    )
    return Planned(changes=(change,), truth=truth)


def mount_dead(site: FaultSite, kind: FaultKind) -> Planned:
    """The shared file system does not answer on a random node of the job any more."""
    place = site.any_node()
    node = site.job.nodes[place]
    change = ParameterChange(at_s=site.at_s, family="host", name="mount", value=0.0, places=(node,))
    truth = site.truth(
        kind,
        "storage",
        ("rank_not_entered",),
        ranks=site.ranks_on(place),
        nodes=(site.topology.node_name(node),),
        condition="mount_stalls",
        told_by=("storage", "kernel_log", "processes"),
    )
    return Planned(changes=(change,), truth=truth)


def metadata_storm(site: FaultSite, kind: FaultKind) -> Planned:
    """The last job begins to look up files without a pause, beside its steps; all wait in the same queue."""
    culprit = site.jobs[-1]
    change = ParameterChange(at_s=site.at_s, family="program", name="background_ops", value=64.0, job=culprit.name)
    truth = site.truth(
        kind,
        "storage",
        ("storage_overload",),
        culprit=culprit.name,
        victims=tuple(job.name for job in site.jobs[:-1]),
    )
    return Planned(changes=(change,), truth=truth)


def uniform(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on the work of every rank of the job takes a fifth longer, by a change of its program."""
    change = ParameterChange(at_s=site.at_s, family="program", name="work", value=1.2, job=site.job.name)
    return Planned(changes=(change,), truth=site.truth(kind, "job", ("slow_together",)))


def preempted(site: FaultSite, kind: FaultKind) -> Planned:
    """A preemption: the scheduler takes the job's nodes away at ``at_s`` (seconds of the simulation)."""
    change = ParameterChange(at_s=site.at_s, family="program", name="granted", value=0.0, job=site.job.name)
    return Planned(changes=(change,), truth=site.truth(kind, "job", ("planned_stop",)))


def leaf_congested(site: FaultSite, kind: FaultKind) -> Planned:
    """The first leaf switch keeps 2 % of its uplinks' capacity; traffic that stays under it is not slowed."""
    change = ParameterChange(at_s=site.at_s, family="leaf", name="capacity", value=0.02, places=(0,))
    return Planned(changes=(change,), truth=_under_the_first_leaf(site, kind))


def leaf_lost(site: FaultSite, kind: FaultKind) -> Planned:
    """The first leaf switch is gone with all ports under it."""
    change = ParameterChange(at_s=site.at_s, family="leaf", name="up", value=0.0, places=(0,))
    return Planned(changes=(change,), truth=_under_the_first_leaf(site, kind))


def _under_the_first_leaf(site: FaultSite, kind: FaultKind) -> Truth:
    leaf_of = site.topology.leaf_of_node
    hit = tuple(job.name for job in site.jobs if any(leaf_of[node] == 0 for node in job.nodes))
    return site.truth(
        kind, "switch", ("switch_fault",), job=hit[0], devices=(site.topology.labels(0)["leaf"],), victims=hit[1:]
    )


def power_capped(site: FaultSite, kind: FaultKind) -> Planned:
    """The first power supply gives its racks a third less than they draw. Raises IndexError where no
    job is under it.
    """
    change = ParameterChange(at_s=site.at_s, family="supply", name="power", value=0.65, places=(0,))
    supply_of = site.topology.supply_of_node
    hit = tuple(job.name for job in site.jobs if any(supply_of[node] == 0 for node in job.nodes))
    pdu = site.topology.labels(0)["pdu"]
    truth = site.truth(kind, "cluster", ("power_cooling",), job=hit[0], devices=(pdu,), victims=hit[1:])
    return Planned(changes=(change,), truth=truth)


def fabric_stalls(site: FaultSite, kind: FaultKind) -> Planned:
    """The fabric's manager restarts: for 25 s nothing is forwarded anywhere, then all goes on."""
    until_s = site.at_s + 25.0
    changes = tuple(
        ParameterChange(at_s=at_s, family="leaf", name="up", value=up)
        for at_s, up in ((site.at_s, 0.0), (until_s, 1.0))
    )
    others = tuple(job.name for job in site.jobs[1:])
    return Planned(
        changes=changes, truth=site.truth(kind, "cluster", ("fabric_stall",), until_s=until_s, victims=others)
    )


def one_spine(site: FaultSite, kind: FaultKind) -> Planned:
    """The second job begins at ``at_s``, and its exchange takes the same spine as the first one's.

    Raises ValueError for a single job, KeyError without static routes.
    """
    first, second = site.jobs[:2]
    changes = tuple(
        ParameterChange(at_s=at_s, family="program", name="granted", value=granted, job=second.name)
        for at_s, granted in ((0.0, 0.0), (site.at_s, 1.0))
    )
    spine = site.topology.labels(first.nodes[0])["spine"]
    truth = site.truth(kind, "switch", ("link_contention",), job=first.name, devices=(spine,), victims=(second.name,))
    return Planned(changes=changes, truth=truth)


def requeued_again(site: FaultSite, kind: FaultKind) -> Planned:
    """The first job fails at one step at each start; as it goes before all others, it pushes out whoever has its nodes
    then.
    """
    first = site.jobs[0]
    change = ParameterChange(
        at_s=site.at_s, family="process", name="bad_batch", value=1.0, places=(site.any_rank(),), job=first.name
    )
    nodes = set(first.nodes)
    truth = site.truth(
        kind,
        "job",
        ("preemption_cascade",),
        culprit=first.name,
        victims=tuple(job.name for job in site.jobs[1:] if nodes & set(job.nodes)),
        signs=("rank_raised", "planned_stop"),
    )
    return Planned(changes=(change,), truth=truth)


KINDS = (
    FaultKind("one_spine", "J7", "two jobs exchange over one spine, which is enough for either alone", one_spine),
    FaultKind(
        "requeued_again",
        "J12",
        "a job that goes before others fails at each start; they are pushed out",
        requeued_again,
    ),
    FaultKind("leaf_congested", "J6", "a leaf switch loses nearly all of its uplinks", leaf_congested),
    FaultKind("leaf_lost", "J6l", "a leaf switch loses its power", leaf_lost),
    FaultKind("power_capped", "J10", "a power supply gives its racks a third less than they draw", power_capped),
    FaultKind("fabric_stalls", "J13", "nothing is forwarded anywhere for 25 s, unannounced", fabric_stalls),
    FaultKind("port_half_rate", "28", "one port runs at half its rate", half_rate),
    FaultKind("port_down", "11", "one port's link goes down and stays down", link_down),
    FaultKind("black_hole", "20", "one port loses all but the smallest packets; its link is up", black_hole),
    FaultKind("mount_dead", "16m", "the shared file system does not answer on one node", mount_dead),
    FaultKind("metadata_storm", "J1", "one job overloads the metadata server; the others wait", metadata_storm),
    FaultKind("uniform_regression", "34", "all ranks have a fifth more to do", uniform),
    FaultKind("preemption", "12", "the scheduler takes the job's nodes away", preempted),
)
