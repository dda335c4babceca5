"""Which collectors a node has, by name, and where each of them runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ...diagnosis.health_checks.site_checks import read_site_checks
from ...telemetry.records import Identity
from .base.collector import Collector, Isolation
from .checks.checks_collector import ChecksCollector
from .logs.job_log_events import JobLogEvents
from .logs.job_logs import JobLogsCollector
from .logs.kernel_events import KernelEvents
from .logs.kernel_log_collector import KernelLogCollector, default_sources
from .options import NodeOptions
from .processes.job_process import JobProcess
from .schedule import CollectorPlan


def node_plans(options: NodeOptions, rank_processes: Callable[[], Mapping[int, Identity]]) -> list[CollectorPlan]:
    """Plans of those of the node's collectors that ``options`` asks for.

    rank_processes: gives the ranks of this node now, by pid; called in the collectors' threads.
    """

    def pids() -> Iterable[int]:
        return tuple(rank_processes())

    def ranks() -> Collection[JobProcess]:
        return [JobProcess(pid=pid, job=who.job, rank=who.rank) for pid, who in rank_processes().items()]

    plans = (
        *_of_the_node(options),
        CollectorPlan(name="host", factory=".host.host_collector:HostCollector", options={"pids": pids}),
        CollectorPlan(
            name="processes", factory=".processes.process_collector:ProcessCollector", options={"ranks": ranks}
        ),
        CollectorPlan(
            name="job_logs",
            factory=".collector_plans:make_job_logs",
            options={"ranks": ranks, "patterns": options.job_logs},
        ),
        CollectorPlan(
            name="checks",
            factory=".collector_plans:make_checks",
            options={"options": options, "ranks": ranks},
        ),
    )
    asked = options.collect if options.site_checks or options.check_idle_s else options.collect - {"checks"}
    return [plan for plan in plans if plan.name in asked]


def _of_the_node(options: NodeOptions) -> Sequence[CollectorPlan]:
    """Of those that need not know which ranks are here."""
    return (
        CollectorPlan(name="gpu", factory=".gpu.which_maker:make_gpu_collector", isolation=Isolation.PROCESS),
        CollectorPlan(
            name="kernel_log", factory=".collector_plans:make_kernel_log", options={"path": options.kernel_log}
        ),
        CollectorPlan(name="network", factory=".network.network_collector:NetworkCollector"),
        CollectorPlan(
            name="storage",
            factory=".storage.storage_collector:StorageCollector",
            options={"write_folders": options.write_folders},
            isolation=Isolation.PROCESS,
        ),
        CollectorPlan(
            name="scheduler",
            factory=".surroundings.scheduler_collector:SchedulerCollector",
            options={"node_file": options.kubernetes_node_file},
        ),
        CollectorPlan(
            name="versions",
            factory=".surroundings.versions_collector:VersionsCollector",
            options={"state_file": options.versions_file},
            isolation=Isolation.PROCESS,  # a rank's folder may lie on a dead mount
        ),
        CollectorPlan(
            name="bmc",
            factory=".chassis.bmc_collector:BmcCollector",
            isolation=Isolation.PROCESS,  # a management controller may not answer for minutes
        ),
        CollectorPlan(name="services", factory=".chassis.services_collector:ServicesCollector"),
        CollectorPlan(
            name="topology",
            factory=".surroundings.topology_collector:TopologyCollector",
            options={"table_file": options.topology_file},
        ),
    )


def make_checks(options: NodeOptions, ranks: Callable[[], Collection[JobProcess]]) -> Collector:
    """A collector that runs a site's own checks, and whichrank's while no job is here.

    Raises BadSiteChecks for a file that cannot be used.
    """
    site = read_site_checks(options.site_checks) if options.site_checks else []
    return ChecksCollector(site, options.check_command, options.check_idle_s, ranks)


def make_job_logs(ranks: Callable[[], Collection[JobProcess]], patterns: Sequence[str]) -> Collector:
    """A collector that follows the logs of ``ranks`` (of this node now), and files of the glob ``patterns``.

    Their lines are classified by the job-log rules.
    """
    events = JobLogEvents(ranks)
    return JobLogsCollector(events, lambda: tuple(ranks()), patterns, flush=events.flush)


def make_kernel_log(path: str) -> Collector:
    """A collector that follows the kernel log through the kernel-line rules. path "": where a node usually has it."""
    events = KernelEvents()
    return KernelLogCollector(events, default_sources(path), flush=events.flush)
