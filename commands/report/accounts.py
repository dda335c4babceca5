"""Where the seconds went, as tables for the page. Pure; the figures are those of ``whichrank goodput``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...diagnosis.goodput.account import RunAccount, account_of
from ...diagnosis.goodput.interval import Interval
from ...diagnosis.goodput.run_intervals import runs_of
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.vocabulary import TimeBucket
from ..goodput.goodput_report import causes_of, duration, percent

_NS_PER_HOUR = 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShare:
    """look: its colour in the bar; share: of wall time."""

    name: str
    look: str
    share: float
    wall: str
    percent: str
    gpu_hours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTable:
    run: str
    wall: str
    gpus: int
    steps: int
    usual_step: str
    rows: tuple[BucketShare, ...]
    figures: tuple[tuple[str, str], ...]
    downtime: tuple[tuple[str, str], ...]
    interruptions: tuple[tuple[str, ...], ...]


def accounts_of(
    intervals: Sequence[Interval], incidents: Sequence[IncidentDocument]
) -> tuple[list[AccountTable], list[Interval]]:
    """(a table per run, all intervals in order, with revisions over what they replace)."""
    runs = runs_of(intervals)
    causes = causes_of(intervals, incidents)
    accounts = []
    for run, ordered in runs.items():
        account = account_of(run, ordered, causes)
        interruptions = tuple(
            (
                "asked for" if each.planned else causes[each.cause].kind if each.cause in causes else "cause unknown",
                duration(each.end_ns - each.begin_ns),
                "yes" if each.went_on else "no",
                f"{each.gpu_ns / _NS_PER_HOUR:.3f}",
            )
            for each in account.interruptions
        )
        accounts.append(_account(account, interruptions))
    return accounts, [interval for ordered in runs.values() for interval in ordered]


def _account(account: RunAccount, interruptions: tuple[tuple[str, ...], ...]) -> AccountTable:
    down = account.downtime
    return AccountTable(
        run=account.run,
        wall=duration(account.wall_ns),
        gpus=account.gpus,
        steps=account.steps,
        usual_step=duration(account.reference_ns) if account.reference_ns else "not known",
        rows=tuple(
            BucketShare(
                name=bucket.value.replace("_", " "),
                look=f"bucket-{bucket.value}",
                share=account.ns[bucket] / max(1, account.wall_ns),
                wall=duration(account.ns[bucket]),
                percent=percent(account.ns[bucket] / max(1, account.wall_ns)),
                gpu_hours=f"{account.gpu_ns[bucket] / _NS_PER_HOUR:.3f}",
            )
            for bucket in TimeBucket
            if account.ns[bucket] or account.gpu_ns[bucket]
        ),
        figures=(
            ("goodput", percent(account.goodput)),
            ("ETTR", percent(account.ettr)),
            ("unknown", percent(account.unknown_share)),
        ),
        downtime=(
            ("checkpoint overhead", duration(down.checkpoint_overhead_ns)),
            ("detection", duration(down.detection_ns)),
            ("lost work", duration(down.lost_work_ns)),
            ("shutdown", duration(down.shutdown_ns)),
            ("restart", duration(down.restart_ns)),
            ("together", duration(down.total_ns)),
        ),
        interruptions=interruptions,
    )
