"""The JSON of ``whichrank goodput`` (docs/accounting.md): accounts in, plain data out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...diagnosis.goodput.account import Charged, Downtime, InterruptionCause, RunAccount, downtime_of
from ...diagnosis.goodput.checkpoint_interval import CheckpointInterval
from ...diagnosis.goodput.interval import Interval
from ...diagnosis.goodput.run_intervals import Interruption
from ...diagnosis.goodput.together import Together
from .injected_faults import InjectedFault, injected_at

_NS = 1_000_000_000


def write_account(
    account: RunAccount,
    intervals: Sequence[Interval],
    causes: Mapping[str, InterruptionCause],
    injected: Sequence[InjectedFault] = (),
) -> dict[str, Any]:
    """The account of one run as JSON data, an entry of "runs".

    Nanoseconds are whole and sum exactly; times are Unix seconds.
    """
    return {
        "run": account.run,
        "jobs": list(account.jobs),
        "begin": account.begin_ns / _NS,
        "end": account.end_ns / _NS,
        "gpus": account.gpus,
        "steps": account.steps,
        "reference_step_s": account.reference_ns / _NS or None,
        "wall_ns": account.wall_ns,
        "ns": {bucket.value: ns for bucket, ns in account.ns.items()},
        "gpu_ns": {bucket.value: ns for bucket, ns in account.gpu_ns.items()},
        "goodput": account.goodput,
        "ettr": account.ettr,
        "ettr_without_planned": account.ettr_without_planned,
        "ettr_hour": [[at / _NS, share] for at, share in account.ettr_hour],
        "unknown_share": account.unknown_share,
        "downtime": _downtime(account.downtime),
        "hardware_downtime": {
            **_downtime(account.hardware_downtime),
            "share_of_wall": share_of(account.hardware_downtime.total_ns, account.wall_ns),
            "share_of_downtime": share_of(account.hardware_downtime.total_ns, account.downtime.total_ns),
        },
        "mttf": asdict(account.mttf),
        "mttf_hardware": asdict(account.mttf_hardware),
        "checkpoints": None if account.checkpoints is None else _checkpoints(account.checkpoints),
        "by_kind": {name: _charged(each) for name, each in account.by_kind.items()},
        "by_node": {name: _charged(each) for name, each in account.by_node.items()},
        "by_tenant": {name: _charged(each) for name, each in account.by_tenant.items()},
        "interruptions": [_interruption(each, causes, injected) for each in account.interruptions],
        "timeline": list(_timeline(intervals)),
    }


def _downtime(downtime: Downtime) -> dict[str, int]:
    return {**asdict(downtime), "total_ns": downtime.total_ns}


def write_together(all_runs: Together) -> dict[str, Any]:
    """The accounts of all runs together as JSON data, the entry "together"."""
    return {
        "runs": all_runs.runs,
        "wall_ns": all_runs.wall_ns,
        "downtime": _downtime(all_runs.downtime),
        "hardware_downtime": {
            **_downtime(all_runs.hardware_downtime),
            "mean_share_of_wall": all_runs.hardware_share_of_wall,
            "mean_share_of_downtime": all_runs.hardware_share_of_downtime,
        },
        "mttf": asdict(all_runs.mttf),
        "mttf_hardware": asdict(all_runs.mttf_hardware),
        "by_kind": {name: _charged(each) for name, each in all_runs.by_kind.items()},
        "by_node": {name: _charged(each) for name, each in all_runs.by_node.items()},
        "by_tenant": {name: _charged(each) for name, each in all_runs.by_tenant.items()},
    }


def _checkpoints(found: CheckpointInterval) -> dict[str, Any]:
    return {**asdict(found), "saved_share": found.saved_share}


def _charged(charged: Charged) -> dict[str, Any]:
    return asdict(charged)


def _interruption(
    each: Interruption, causes: Mapping[str, InterruptionCause], injected: Sequence[InjectedFault]
) -> dict[str, Any]:
    cause = causes.get(each.cause)
    fault = injected_at(injected, each.begin_ns / _NS)
    return {
        "job": each.job,
        "begin": each.begin_ns / _NS,
        "end": each.end_ns / _NS,
        "finding": each.cause or None,
        "kind": cause.kind if cause else None,
        "incident": (cause.incident or None) if cause else None,
        "node": (cause.node or None) if cause else None,
        "hardware": cause.is_hardware if cause else None,
        "planned": each.planned,
        "injected": None if fault is None else fault.kind,
        "went_on": each.went_on,
        "lost_steps": each.lost_steps,
        "gpu_seconds": each.gpu_ns / _NS,
        "downtime": _downtime(downtime_of(each)),
    }


def _timeline(intervals: Sequence[Interval]) -> Iterator[dict[str, Any]]:
    """Stretches of one bucket: of the intervals in a row that spent most of their time in it."""
    stretch: list[Interval] = []
    for interval in [*intervals, None]:
        if stretch and (interval is None or _sort_of(interval) != _sort_of(stretch[-1])):
            ns: dict[str, int] = {}
            for part in (part for each in stretch for part in each.parts):
                ns[part.bucket.value] = ns.get(part.bucket.value, 0) + part.ns
            steps = [each for each in stretch if each.steps]
            yield {
                "begin": stretch[0].begin_ns / _NS,
                "end": stretch[-1].end_ns / _NS,
                "job": stretch[0].job,
                "attempt": stretch[0].attempt,
                "bucket": stretch[0].bucket.value,
                "ns": ns,
                "gpus": stretch[0].gpus,
                "first_step": steps[0].first_step if steps else None,
                "last_step": steps[-1].last_step if steps else None,
            }
            stretch = []
        if interval is not None:
            stretch.append(interval)


def _sort_of(interval: Interval) -> tuple[object, ...]:
    return interval.bucket, interval.job, interval.world, interval.attempt, interval.gpus


def share_of(part: int, whole: int) -> float | None:
    """Which share ``part`` is of ``whole``; None where that is 0."""
    return part / whole if whole else None
