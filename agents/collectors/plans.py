"""Which collectors a node has, by name, and where each of them runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ...telemetry.records import Identity
from .base.collector import Collector, Isolation
from .logs.job_log_events import JobLogEvents
from .logs.job_logs import JobLogsCollector
from .logs.kernel_events import KernelEvents
from .logs.kernel_log import KernelLogCollector, default_sources
from .options import NodeOptions
from .processes.job_process import JobProcess
from .schedule import Plan


def node_plans(options: NodeOptions, rank_processes: Callable[[], Mapping[int, Identity]]) -> list[Plan]:
    """rank_processes: the ranks of this node now, by pid; called in the collectors' threads."""

    def pids() -> Iterable[int]:
        return tuple(rank_processes())

    def ranks() -> Collection[JobProcess]:
        return [JobProcess(pid=pid, job=who.job, rank=who.rank) for pid, who in rank_processes().items()]

    plans = (
        Plan(name="gpu", factory=".gpu.gpu:GpuCollector", isolation=Isolation.PROCESS),
        Plan(name="kernel_log", factory=".plans:make_kernel_log", options={"path": options.kernel_log}),
        Plan(name="network", factory=".network.network:NetworkCollector"),
        Plan(
            name="storage",
            factory=".storage.storage:StorageCollector",
            options={"write_folders": options.write_folders},
            isolation=Isolation.PROCESS,
        ),
        Plan(name="host", factory=".host.host:HostCollector", options={"pids": pids}),
        Plan(name="processes", factory=".processes.processes:ProcessCollector", options={"ranks": ranks}),
        Plan(
            name="scheduler",
            factory=".surroundings.scheduler:SchedulerCollector",
            options={"node_file": options.kubernetes_node_file},
        ),
        Plan(
            name="versions",
            factory=".surroundings.versions:VersionsCollector",
            options={"state_file": options.versions_file},
            isolation=Isolation.PROCESS,  # a rank's folder may lie on a dead mount
        ),
        Plan(
            name="topology",
            factory=".surroundings.topology:TopologyCollector",
            options={"table_file": options.topology_file},
        ),
        Plan(
            name="job_logs",
            factory=".plans:make_job_logs",
            options={"ranks": ranks, "patterns": options.job_logs},
        ),
    )
    return [plan for plan in plans if plan.name in options.collect]


def make_job_logs(ranks: Callable[[], Collection[JobProcess]], patterns: Sequence[str]) -> Collector:
    events = JobLogEvents(ranks)
    return JobLogsCollector(events, lambda: tuple(ranks()), patterns, flush=events.flush)


def make_kernel_log(path: str) -> Collector:
    events = KernelEvents()
    return KernelLogCollector(events, default_sources(path), flush=events.flush)
