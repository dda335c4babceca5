"""A run's account as JSON (docs/accounting.md) and as tables and a timeline for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ...diagnosis.goodput.account import Downtime, InterruptionCause, RunAccount, account_of, downtime_of
from ...diagnosis.goodput.checkpoint_interval import WORTH_SHARE, CheckpointInterval
from ...diagnosis.goodput.interval import Interval
from ...diagnosis.goodput.mean_time_to_failure import TimeToFailure
from ...diagnosis.goodput.run_intervals import runs_of
from ...diagnosis.goodput.together import Together, together
from ...telemetry.incident import incident_id
from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.vocabulary import Kind, Scope, TimeBucket
from ..incident_text.incident_view import printable
from ..incident_text.utc_time import when
from ..run_folder.run_directory import Unusable
from ..support.stderr import say
from .account_document import share_of, write_account, write_together
from .injected_faults import InjectedFault, injected_at
from .interval_sources import GoodputInput

SCHEMA = 1
_NS = 1_000_000_000
_HARDWARE = frozenset({Scope.GPU, Scope.NODE, Scope.LINK, Scope.SWITCH})
#: A letter and a colour of the timeline.
_MARKS: Mapping[TimeBucket, tuple[str, str]] = {
    TimeBucket.QUEUED: ("q", "dim"),
    TimeBucket.STARTING: ("s", "cyan"),
    TimeBucket.PRODUCTIVE: ("#", "green"),
    TimeBucket.REWORK: ("w", "red"),
    TimeBucket.CHECKPOINT_SAVE: ("c", "blue"),
    TimeBucket.CHECKPOINT_RESTORE: ("l", "blue"),
    TimeBucket.DATA_STALL: ("d", "yellow"),
    TimeBucket.STRAGGLER_LOSS: ("g", "yellow"),
    TimeBucket.FAULT_BEFORE_DETECTION: ("F", "red"),
    TimeBucket.FAULT_AFTER_DETECTION: ("f", "red"),
    TimeBucket.SHUTDOWN: ("x", "magenta"),
    TimeBucket.RESTARTING: ("r", "magenta"),
    TimeBucket.PLANNED: ("p", "dim"),
    TimeBucket.SPARE: ("_", "dim"),
    TimeBucket.UNKNOWN: ("?", "dim"),
}
_COLUMNS = 72


def report(found: GoodputInput, *, as_json: bool) -> None:
    """Prints the accounts of all runs that were found. Raises Unusable when there is nothing to account for."""
    runs = runs_of(found.intervals)
    if not runs:
        raise Unusable(f"{found.where}: no second is accounted for: no step, no process was seen")
    causes = causes_of(found.intervals, found.incidents)
    accounts = {run: account_of(run, intervals, causes) for run, intervals in runs.items()}
    problems = [*found.problems, *_problems(found.intervals)]
    if as_json:
        document = {
            "schema": SCHEMA,
            "from": found.where,
            "kind": found.kind,
            "runs": [
                write_account(accounts[run], intervals, causes, found.injected) for run, intervals in runs.items()
            ],
            "together": write_together(together(list(accounts.values()))),
            "published": None if found.published is None else asdict(found.published),
            "injected": [asdict(fault) for fault in found.injected],
            "problems": problems,
        }
        print(json.dumps(document))
        return
    for problem in problems:
        say(problem)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for run, intervals in runs.items():
        console.print(_panel(accounts[run], intervals, causes, found.injected))
    if len(runs) > 1:
        console.print(_of_all(together(list(accounts.values()))))
    if found.published is not None and found.published.goodput is not None:
        console.print(f"by the source's own formula: goodput {percent(found.published.goodput)}")


def _problems(intervals: Iterable[Interval]) -> list[str]:
    """What went wrong where the seconds were accounted for, each once."""
    return list(dict.fromkeys(f"{each.job}: {each.problem}" for each in intervals if each.problem))


def causes_of(intervals: Iterable[Interval], incidents: Iterable[IncidentDocument]) -> dict[str, InterruptionCause]:
    """What interruptions are charged to, by key of the finding: the incident that it opened, or its kind alone."""
    by_id = {incident.id: incident for incident in incidents}
    causes: dict[str, InterruptionCause] = {}
    for interval in intervals:
        for part in interval.parts:
            if part.cause and part.cause not in causes:
                causes[part.cause] = _cause(part.cause, interval.job, by_id)
    return causes


def _cause(key: str, job: str, by_id: Mapping[str, IncidentDocument]) -> InterruptionCause:
    attempt, kind = _words_of_key(key)
    if kind is None:
        return InterruptionCause(kind=key)
    incident = by_id.get(incident_id(job, attempt, kind, key), IncidentDocument())
    while (into := incident.merged_into) is not None and into in by_id:
        incident = by_id[into]
    node = next((suspect.node for suspect in incident.suspects[:1]), None)
    is_hardware = incident.scope in _HARDWARE or kind is Kind.NODE_LOST
    return InterruptionCause(
        kind=word_of(incident.kind) or kind.value,
        incident=incident.id,
        node=node or "",
        tenant=incident.job.owner or "",
        is_hardware=is_hardware or (incident.cause is not None and incident.cause.domain == "hardware"),
    )


def _words_of_key(key: str) -> tuple[str, Kind | None]:
    """ATTEMPT/KIND/PLACE, as findings are named; an attempt or a place may hold slashes."""
    words = key.split("/")
    for place, word in enumerate(words):
        if place and word in {kind.value for kind in Kind}:
            attempt = "/".join(words[:place])
            return "" if attempt == "-" else attempt, Kind(word)
    return "", None


def _panel(
    account: RunAccount,
    intervals: Sequence[Interval],
    causes: Mapping[str, InterruptionCause],
    injected: Sequence[InjectedFault],
) -> Group:
    jobs = "" if account.jobs == (account.run,) else f", jobs {', '.join(account.jobs)}"
    usual = f", a step usually {duration(account.reference_ns)}" if account.reference_ns else ""
    head = Text(
        printable(
            f"run {account.run or '(no name)'}{jobs}: {duration(account.wall_ns)} from {when(account.begin_ns / _NS)}"
            f", {account.gpus} GPU{'s' * (account.gpus != 1)}, {account.steps} steps{usual}"
        ),
        style="bold",
    )
    parts: list[Any] = [head, *_strip(account, intervals), _buckets(account), _figures(account)]
    parts += [_of_injected(fault) for fault in injected]
    if account.interruptions:
        parts.append(_interruptions(account, causes, injected))
    if account.by_kind:
        parts.append(_causes(account))
    return Group(*parts, Text(""))


def _strip(account: RunAccount, intervals: Sequence[Interval]) -> list[Text]:
    """One mark for each equal share of the wall time: the bucket that took most of it."""
    span_ns = max(1, account.end_ns - account.begin_ns)
    taken: list[dict[TimeBucket, float]] = [{} for _ in range(_COLUMNS)]
    for interval in intervals:
        first = (interval.begin_ns - account.begin_ns) * _COLUMNS // span_ns
        last = min(_COLUMNS - 1, (interval.end_ns - account.begin_ns) * _COLUMNS // span_ns)
        for column in range(first, last + 1):
            left_ns = account.begin_ns + column * span_ns // _COLUMNS
            right_ns = account.begin_ns + (column + 1) * span_ns // _COLUMNS
            inside = min(interval.end_ns, right_ns) - max(interval.begin_ns, left_ns)
            for part in interval.parts if inside > 0 else ():
                share = part.ns * inside / max(1, interval.ns)
                taken[column][part.bucket] = taken[column].get(part.bucket, 0.0) + share
    line, shown = Text(), set()
    for times in taken:
        bucket = max(times.items(), key=lambda item: item[1], default=(TimeBucket.UNKNOWN, 0.0))[0]
        mark, style = _MARKS[bucket]
        shown.add(bucket)
        line.append(mark, style=style)
    legend = "  ".join(f"{_MARKS[bucket][0]} {_words(bucket)}" for bucket in TimeBucket if bucket in shown)
    return [line, Text(legend, style="dim")]


def _buckets(account: RunAccount) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("bucket")
    for heading in ("wall time", "share", "GPU-hours"):
        table.add_column(heading, justify="right")
    for bucket in TimeBucket:
        ns = account.ns[bucket]
        if ns or account.gpu_ns[bucket]:
            hours = f"{account.gpu_ns[bucket] / _NS / 3600:.3f}"
            table.add_row(_words(bucket), duration(ns), percent(ns / account.wall_ns), hours)
    total = f"{sum(account.gpu_ns.values()) / _NS / 3600:.3f}"
    table.add_row(Text("together", style="bold"), duration(account.wall_ns), percent(1.0), total)
    return table


def _figures(account: RunAccount) -> Text:
    hardware = account.hardware_downtime.total_ns
    lines = [
        f"goodput {percent(account.goodput)}, ETTR {percent(account.ettr)}"
        f" (without planned time {percent(account.ettr_without_planned)}"
        + (f", last hour {percent(account.ettr_hour[-1][1])})" if account.ettr_hour else ")"),
        _of_downtime(account.downtime),
        f"hardware downtime {duration(hardware)}: {percent(share_of(hardware, account.wall_ns))} of"
        f" wall time, {percent(share_of(hardware, account.downtime.total_ns))} of downtime",
        f"MTTF {_mttf(account.mttf)}; of hardware {_mttf(account.mttf_hardware)}",
        *([_of_checkpoints(account.checkpoints)] if account.checkpoints is not None else []),
    ]
    return Text("\n".join(lines))


def _of_checkpoints(found: CheckpointInterval) -> str:
    """How often is saved, what that costs, and what would cost least."""
    said = (
        f"{found.saves} checkpoints, one each {found.interval_s:.3g} s ({found.interval_steps:.3g} steps),"
        f" which hold the job up for {found.blocked_s:.3g} s each"
    )
    if found.best_interval_s is None or found.best_interval_steps is None:
        return said
    rate = "nothing has failed yet: with the lowest MTTF that fits" if found.is_bound else "with this MTTF"
    best = f"one each {found.best_interval_s:.3g} s ({found.best_interval_steps} steps)"
    if found.saved_share < WORTH_SHARE:
        return f"{said}; {rate} {best} would cost least, and save less than {percent(WORTH_SHARE)} of the time"
    return f"{said}; {rate} {best} would save {percent(found.saved_share)} of the time"


def _of_downtime(down: Downtime) -> str:
    return (
        f"downtime {duration(down.total_ns)} = checkpoint overhead {duration(down.checkpoint_overhead_ns)}"
        f" + detection {duration(down.detection_ns)} + lost work {duration(down.lost_work_ns)}"
        f" + shutdown {duration(down.shutdown_ns)} + restart {duration(down.restart_ns)}"
    )


def _of_all(all_runs: Together) -> Group:
    lines = [
        f"{all_runs.runs} runs together, {duration(all_runs.wall_ns)}",
        _of_downtime(all_runs.downtime),
        f"hardware downtime {duration(all_runs.hardware_downtime.total_ns)}: in the mean over runs"
        f" {percent(all_runs.hardware_share_of_wall)} of wall time,"
        f" {percent(all_runs.hardware_share_of_downtime)} of downtime",
        f"MTTF {_mttf(all_runs.mttf)}; of hardware {_mttf(all_runs.mttf_hardware)}",
    ]
    return Group(Text("\n".join(lines)), *([_causes(all_runs)] if all_runs.by_kind else []), Text(""))


def _causes(account: RunAccount | Together) -> Table:
    """What each kind of cause, each node and each tenant's jobs have cost, and how often they failed."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "charged to"):
        table.add_column(heading, overflow="fold")
    for heading in ("failures", "GPU-hours", "MTTF"):
        table.add_column(heading, justify="right")
    for sort, charged in (("kind", account.by_kind), ("node", account.by_node), ("tenant", account.by_tenant)):
        for name, each in charged.items():
            hours = f"{each.gpu_seconds / 3600:.3f}"
            table.add_row(sort, Text(printable(name)), str(each.failures), hours, _mttf(each.mttf))
    return table


def _of_injected(fault: InjectedFault) -> Text:
    until = "" if fault.end is None else f", for {fault.end - fault.begin:.0f} s"
    return Text(printable(f"injected on purpose: {fault.kind}, {fault.target}, at {when(fault.begin)}{until}"))


def _interruptions(
    account: RunAccount, causes: Mapping[str, InterruptionCause], injected: Sequence[InjectedFault]
) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("interruption (UTC)", "kind", "node", "incident"):
        table.add_column(heading, overflow="fold")
    for heading in ("detection", "lost work", "lost steps", "shutdown", "restart", "GPU-hours"):
        table.add_column(heading, justify="right")
    for each in account.interruptions:
        cause, down = causes.get(each.cause, InterruptionCause()), downtime_of(each)
        kind = "asked for" if each.planned else cause.kind
        if (fault := injected_at(injected, each.begin_ns / _NS)) is not None:
            kind = f"{kind} (injected: {fault.kind})"
        table.add_row(
            when(each.begin_ns / _NS),
            *(Text(printable(word)) for word in (kind, cause.node, cause.incident)),
            *(duration(ns) for ns in (down.detection_ns, down.lost_work_ns)),
            str(each.lost_steps),
            *(duration(ns) for ns in (down.shutdown_ns, down.restart_ns)),
            f"{each.gpu_ns / _NS / 3600:.3f}",
        )
    return table


def _words(bucket: TimeBucket) -> str:
    return bucket.value.replace("_", " ")


def percent(share: float | None) -> str:
    """A share from 0 to 1 in per cent with two decimals; "unknown" for None."""
    return "unknown" if share is None else f"{100 * share:.2f} %"


def duration(ns: int) -> str:
    """Nanoseconds as milliseconds, seconds, minutes or hours, whichever reads best."""
    seconds = ns / _NS
    if 0 < ns < _NS:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120.0:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200.0 else f"{seconds / 3600:.2f} h"


def _mttf(figure: TimeToFailure) -> str:
    low = duration(round(figure.low_s * _NS))
    if figure.mean_s is None or figure.high_s is None:
        return f"above {low} ({figure.confidence:.0%} confidence, no failure)"
    mean, high = duration(round(figure.mean_s * _NS)), duration(round(figure.high_s * _NS))
    return f"{mean} ({figure.failures} failures, {low} to {high} at {figure.confidence:.0%})"
