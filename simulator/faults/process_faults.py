"""Faults of one rank's process, and of the host around it."""

from __future__ import annotations

from ..resources import ParameterChange
from .fault import FaultKind, FaultSite, Planned

#: For which a process is stopped that goes on afterwards.
PAUSE_S = 8.0


def _of_process(site: FaultSite, rank: int, name: str, value: float) -> tuple[ParameterChange, ...]:
    return (
        ParameterChange(at_s=site.at_s, family="process", name=name, value=value, places=(rank,), job=site.job.name),
    )


def killed(site: FaultSite, kind: FaultKind) -> Planned:
    """A random rank (never rank 0) gets SIGKILL; nobody tells why."""
    rank = site.any_rank()
    return Planned(
        changes=_of_process(site, rank, "alive", 0.0), truth=site.of_rank(kind, "rank", ("rank_died",), rank)
    )


def raises(site: FaultSite, kind: FaultKind) -> Planned:
    """The code of a random rank (never rank 0) raises, and nothing catches it."""
    rank = site.any_rank()
    return Planned(
        changes=_of_process(site, rank, "raises", 1.0), truth=site.of_rank(kind, "rank", ("rank_raised",), rank)
    )


def stopped(site: FaultSite, kind: FaultKind) -> Planned:
    """A random rank (never rank 0) gets SIGSTOP and is never continued."""
    rank = site.any_rank()
    return Planned(
        changes=_of_process(site, rank, "runs", 0.0), truth=site.of_rank(kind, "rank", ("rank_stopped",), rank)
    )


def paused(site: FaultSite, kind: FaultKind) -> Planned:
    """A random rank (never rank 0) gets SIGSTOP, and SIGCONT PAUSE_S later."""
    rank, until_s = site.any_rank(), site.at_s + PAUSE_S
    stop, go_on = (
        ParameterChange(at_s=at_s, family="process", name="runs", value=value, places=(rank,), job=site.job.name)
        for at_s, value in ((site.at_s, 0.0), (until_s, 1.0))
    )
    truth = site.of_rank(kind, "rank", ("rank_stopped",), rank, until_s=until_s)
    return Planned(changes=(stop, go_on), truth=truth)


def never_enters(site: FaultSite, kind: FaultKind) -> Planned:
    """The data source of a random rank (never rank 0) does not give the next batch."""
    rank = site.any_rank()
    return Planned(
        changes=_of_process(site, rank, "input", 0.0), truth=site.of_rank(kind, "rank", ("rank_not_entered",), rank)
    )


def other_branch(site: FaultSite, kind: FaultKind) -> Planned:
    """The code of a random rank (never rank 0) calls a collective with another size than the others'."""
    rank = site.any_rank()
    return Planned(
        changes=_of_process(site, rank, "other_branch", 1.0), truth=site.of_rank(kind, "application", ("desync",), rank)
    )


def memory_grows(site: FaultSite, kind: FaultKind) -> Planned:
    """The memory of a random rank's process grows until its node's is gone, 20 s later: the kernel kills a process."""
    rank = site.any_rank()
    free_bytes = 2.0e12 - 6e10 * site.job.ranks_per_node
    changes = _of_process(site, rank, "grows_bytes_per_s", free_bytes / 20.0)
    truth = site.of_rank(kind, "node", ("rank_died",), rank, condition="oom_kill", told_by=("kernel_log",))
    return Planned(changes=changes, truth=truth)


def node_lost(site: FaultSite, kind: FaultKind) -> Planned:
    """A random node of the job is gone at once, with its ranks and its agent."""
    place = site.any_node()
    node = site.job.nodes[place]
    change = ParameterChange(at_s=site.at_s, family="host", name="up", value=0.0, places=(node,))
    truth = site.truth(kind, "node", ("node_lost",), ranks=site.ranks_on(place), nodes=(site.topology.node_name(node),))
    return Planned(changes=(change,), truth=truth)


def loaders_starve(site: FaultSite, kind: FaultKind) -> Planned:
    """Something takes the disk and cores that loaders of a random node need: they run at 0.15 of their pace."""
    place = site.any_node()
    node = site.job.nodes[place]
    change = ParameterChange(at_s=site.at_s, family="host", name="input", value=0.15, places=(node,))
    truth = site.truth(kind, "node", ("rank_slow",), ranks=site.ranks_on(place), nodes=(site.topology.node_name(node),))
    return Planned(changes=(change,), truth=truth)


def loader_slows(site: FaultSite, kind: FaultKind) -> Planned:
    """The shard of a random rank is dear to decode: its loader runs at 0.15 of its pace; disk and cores are as they
    were.
    """
    rank = site.any_rank()
    return Planned(
        changes=_of_process(site, rank, "loader", 0.15), truth=site.of_rank(kind, "rank", ("rank_slow",), rank)
    )


def bad_batch(site: FaultSite, kind: FaultKind) -> Planned:
    """A random rank's batch of a certain step makes its code raise: again, wherever the job is restarted."""
    rank = site.any_rank()
    truth = site.truth(kind, "application", ("application_repeats",), ranks=(rank,))
    return Planned(changes=_of_process(site, rank, "bad_batch", 1.0), truth=truth)


KINDS = (
    FaultKind("bad_batch", "J4", "one rank raises at one step, on other nodes after each restart too", bad_batch),
    FaultKind("process_killed", "10a", "one rank's process gets a SIGKILL", killed),
    FaultKind("exception", "8", "one rank's code raises", raises),
    FaultKind("process_stopped", "21", "one rank's process is stopped", stopped),
    FaultKind("process_paused", "21p", "one rank's process is stopped, and goes on 8 s later", paused),
    FaultKind("never_enters", "16", "one rank waits for its next batch for ever", never_enters),
    FaultKind("other_branch", "17", "one rank calls a collective with another size", other_branch),
    FaultKind("host_out_of_memory", "6", "one rank's memory grows until its node has none left", memory_grows),
    FaultKind("node_lost", "10", "one node loses its power", node_lost),
    FaultKind("loader_slows", "32r", "one rank's batches take six times as long to decode", loader_slows),
    FaultKind("loaders_starve", "32", "the loaders of one node get too little of its disk and cores", loaders_starve),
)
