"""The accounts of several runs as one: which causes, nodes and tenants cost what, and how often they failed. Pure.

A kind or a node can strike any run, so its time to failure is over the time of all of them; a tenant's is over the time
of the tenant's own. Shares of hardware downtime are means over runs: a long run says no more than a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .account import Charged, Downtime, RunAccount
from .mean_time_to_failure import TimeToFailure, time_to_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """hardware_share_*: means over the runs that there is something to divide by; None without one."""

    runs: int
    wall_ns: int
    downtime: Downtime
    hardware_downtime: Downtime
    hardware_share_of_wall: float | None
    hardware_share_of_downtime: float | None
    mttf: TimeToFailure
    mttf_hardware: TimeToFailure
    by_kind: Mapping[str, Charged]
    by_node: Mapping[str, Charged]
    by_tenant: Mapping[str, Charged]


def together(accounts: Sequence[RunAccount]) -> Together:
    """The accounts of several runs summed up as one. Raises ValueError without an account."""
    if not accounts:
        raise ValueError("no runs")
    running_s = sum(each.mttf.time_s for each in accounts)
    tenants = {name for each in accounts for name in each.by_tenant}
    time_of_tenant = {name: sum(each.mttf.time_s for each in accounts if name in each.by_tenant) for name in tenants}
    return Together(
        runs=len(accounts),
        wall_ns=sum(each.wall_ns for each in accounts),
        downtime=_sum(each.downtime for each in accounts),
        hardware_downtime=_sum(each.hardware_downtime for each in accounts),
        hardware_share_of_wall=_mean_share(accounts, lambda each: each.wall_ns),
        hardware_share_of_downtime=_mean_share(accounts, lambda each: each.downtime.total_ns),
        mttf=time_to_failure(sum(each.mttf.failures for each in accounts), running_s),
        mttf_hardware=time_to_failure(sum(each.mttf_hardware.failures for each in accounts), running_s),
        by_kind=_added([each.by_kind for each in accounts], lambda name: running_s),
        by_node=_added([each.by_node for each in accounts], lambda name: running_s),
        by_tenant=_added([each.by_tenant for each in accounts], lambda name: time_of_tenant[name]),
    )


def _added(tables: Iterable[Mapping[str, Charged]], time_of: Callable[[str], float]) -> dict[str, Charged]:
    failures: dict[str, int] = {}
    gpu_seconds: dict[str, float] = {}
    for table in tables:
        for name, charged in table.items():
            failures[name] = failures.get(name, 0) + charged.failures
            gpu_seconds[name] = gpu_seconds.get(name, 0.0) + charged.gpu_seconds
    return {
        name: Charged(
            failures=failures[name],
            gpu_seconds=gpu_seconds[name],
            mttf=time_to_failure(failures[name], time_of(name)),
        )
        for name in sorted(failures, key=lambda name: (-gpu_seconds[name], name))
    }


def _mean_share(accounts: Sequence[RunAccount], whole_ns: Callable[[RunAccount], int]) -> float | None:
    shares = [each.hardware_downtime.total_ns / whole_ns(each) for each in accounts if whole_ns(each) > 0]
    return fmean(shares) if shares else None


def _sum(parts: Iterable[Downtime]) -> Downtime:
    total = Downtime()
    for part in parts:
        total = total.plus(part)
    return total
