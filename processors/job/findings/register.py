"""The register of what has been said: emits findings and their revisions, asks for stacks, ends what is over.

A finding keeps the key it was opened with. A revision is emitted when its body changes in substance (a line of code,
more innocents to rule out, a better suspect), at most twice a second except for a line of code, which people wait for.
"""

from __future__ import annotations

from dataclasses import replace

from ....telemetry.evidence_facts import EvidenceFact
from ....telemetry.kind_sets import SPEED_KINDS, STOPPING_KINDS
from ....telemetry.records import Event, Finding, Identity, Record
from ....telemetry.ring_layout import format_ranks
from ....telemetry.told_ranks import read_ranks
from ....telemetry.topics import TOPIC_FINDINGS, TOPIC_REQUESTS
from ....telemetry.vocabulary import EventName, Kind, Severity
from ...finding_document import CodePlace, EvidenceRow, FindingBody, SuspectEntry, write_body
from ...operator import Context
from ..detectors.crash.crash_order import Ending, role_hint
from ..state.finding_memory import FindingDetail
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from .call_sites import ask_for_calls, with_sites
from .endings import consequence, ending_row, fact_of
from .finding_body import evidence, source_of
from .ras_request import ask_ras
from .testimonies import with_witnesses
from .wording import seconds

REVISION_GAP_NS = 500_000_000
#: A stack older than the fault says nothing about it; allow for the time the fault took to be noticed.
STACK_LEAD_NS = 500_000_000
MOST_REQUESTS = 4
#: Findings of earlier attempts that stay open until an attempt has passed where they failed.
MOST_PAST = 8
#: Kinds whose suspect stands still, so that its stack shows where.
_STACK_KINDS = frozenset(
    {Kind.RANK_NOT_ENTERED.value, Kind.RANK_STOPPED.value, Kind.RANK_NEVER_JOINED.value, Kind.DESYNC.value}
)
_MOST_CONSEQUENCES = 64
_COSTS = SPEED_KINDS | {Kind.PLANNED_STOP.value}


def open_finding(
    job: JobState,
    ctx: Context,
    now: int,
    *,
    kind: Kind,
    place: str,
    body: FindingBody,
    group: int = -1,
    seq: int = -1,
    detail: FindingDetail | None = None,
) -> None:
    """Keeps and publishes a new finding, and asks ranks for stacks and lines of calls where its kind needs them.

    place: the first bad place, which with kind and attempt makes the key. Does nothing where another service judges the
    job.
    """
    if job.judged_by:
        return
    finding = OpenFinding(
        key="/".join([job.attempt or "-", kind.value, place]),
        kind=kind.value,
        attempt=job.attempt,
        found_ns=now,
        onset_ns=int(body.times.onset_s * 1e9),
        step=body.first_bad.step if body.first_bad.step is not None else -1,
        group=group,
        seq=seq,
        suspects=suspected_ranks(body),
        body=body,
        steps_before=job.checkpoints.steps_before,
        detail=detail or FindingDetail(),
    )
    job.findings.by_key[finding.key] = finding
    job.unsaved.facts = True
    _note_fault(job, finding)
    revise(job, ctx, now, finding)
    if _host_stands(finding):
        _request_stacks(job, ctx, now, finding)
    ask_for_calls(job, ctx, now, finding)
    ask_ras(job, ctx, now, finding)


def suspected_ranks(body: FindingBody) -> list[int]:
    """Ranks of all suspects, in their order; a suspected node stands for its ranks."""
    ranks: list[int] = []
    for item in body.suspects:
        ranks += [item.rank] if item.rank is not None else read_ranks(item.ranks or "")
    return ranks


def replace_finding(
    job: JobState,
    ctx: Context,
    now: int,
    finding: OpenFinding,
    *,
    kind: Kind,
    body: FindingBody,
    detail: FindingDetail | None = None,
) -> None:
    """Says something better of the same stop: publishes the finding anew at once, under its old key, so in its old
    incident.

    Stacks and lines are asked for where suspects or calls changed. detail: None keeps all that the finding remembers,
    else all of it is replaced.
    """
    body = replace(body, times=replace(body.times, detected_s=finding.body.times.detected_s))
    before, asked_before = finding.suspects, finding.detail.calls
    finding.kind, finding.body = kind.value, body
    finding.detail = finding.detail if detail is None else detail
    finding.suspects = suspected_ranks(body)
    finding.onset_ns = int(body.times.onset_s * 1e9)
    finding.shown_ns = 0
    job.unsaved.facts = True
    _note_fault(job, finding)
    revise(job, ctx, now, finding)
    if _host_stands(finding) and finding.suspects != before:
        _request_stacks(job, ctx, now, finding)
    if finding.detail.calls != asked_before:
        ask_for_calls(job, ctx, now, finding)


def raise_severity(job: JobState, ctx: Context, now: int, finding: OpenFinding, severity: Severity) -> None:
    """Gives the finding another severity and publishes it at once."""
    finding.body = replace(finding.body, severity=severity)
    finding.shown_ns = 0
    revise(job, ctx, now, finding)


def _note_fault(job: JobState, finding: OpenFinding) -> None:
    """What stops or slows the job, or ends it as somebody wanted, costs seconds."""
    if finding.kind in STOPPING_KINDS or finding.kind in _COSTS:
        job.ledger.note_fault(finding.key, finding.kind, finding.onset_ns, finding.found_ns)


def _host_stands(finding: OpenFinding) -> bool:
    """Whether the suspect's stack shows where it stands: not where its device does, which its host knows nothing of."""
    return finding.kind in _STACK_KINDS and not finding.detail.by_device


def revise(job: JobState, ctx: Context, now: int, finding: OpenFinding) -> None:
    """Publishes the finding again if what is known by now changes its body; nothing otherwise.

    Within REVISION_GAP_NS of its last revision it only sets a timer, unless a line of code changes.
    """
    due_ns = finding.shown_ns + REVISION_GAP_NS
    is_early = finding.shown is not None and now < due_ns
    if is_early and _has_many_endings(job):
        job.schedule(due_ns)  # what each of a large job's ends adds is put together when it may be said
        return
    shown = _complete(job, finding)
    if shown == finding.shown:
        return
    if is_early and finding.shown is not None and _places(shown) == _places(finding.shown):
        job.schedule(due_ns)
        return
    finding.shown, finding.shown_ns = shown, now
    job.unsaved.facts = True
    _emit(job, ctx, now, finding, cleared=False)


def _has_many_endings(job: JobState) -> bool:
    return len(job.ends.endings) > _MOST_CONSEQUENCES


def revise_all(job: JobState, ctx: Context, now: int) -> None:
    """Revises all findings of the current attempt, as something new is known of ranks."""
    for finding in job.findings.all():
        if finding.attempt == job.attempt:
            revise(job, ctx, now, finding)


def follow_restart(job: JobState, ctx: Context, now: int) -> None:
    """Revises open findings of earlier attempts as another one has begun; clears all but the newest
    MOST_PAST of them.
    """
    past = [finding for finding in job.findings.by_key.values() if finding.attempt != job.attempt]
    for finding in past[: max(0, len(past) - MOST_PAST)]:
        clear_finding(job, ctx, now, finding, f"{MOST_PAST} later attempts have failed since; their findings stay open")
    for finding in past[-MOST_PAST:]:
        revise(job, ctx, now, finding)


def clear_finding(job: JobState, ctx: Context, now: int, finding: OpenFinding, why: str) -> None:
    """Publishes the finding as cleared and forgets it; ``why`` is its last piece of evidence."""
    noticed = job.findings.noticed_wait()
    last = finding.shown
    if last is None or finding.attempt != job.attempt:
        last = _complete(job, finding)
    last = last.with_evidence(evidence("resolved", f"job {job.job}", now, why))
    finding.shown = replace(last, times=replace(last.times, resolved_s=seconds(now)))
    _emit(job, ctx, now, finding, cleared=True)
    if finding is noticed:
        job.ledger.forget_fault(finding.key)  # a wait as sound jobs have them, and over
    job.ledger.note_cleared(finding.key, now)
    del job.findings.by_key[finding.key]
    job.unsaved.facts = True


def _emit(job: JobState, ctx: Context, now: int, finding: OpenFinding, *, cleared: bool) -> None:
    identity = Identity(cluster=job.cluster, run=job.run, job=job.job, attempt=finding.attempt)
    said = write_body(finding.shown if finding.shown is not None else finding.body)
    if finding.steps_before:
        said["steps_before"] = finding.steps_before
    payload = Finding(identity=identity, key=finding.key, cleared=cleared, time_ns=now, body=said)
    ctx.emit(Record(topic=TOPIC_FINDINGS, key=job.cluster, stamp_ns=now, payload=payload))


def _complete(job: JobState, finding: OpenFinding) -> FindingBody:
    """The body as found, with what came later: stacks, pids, the suspects' ends, the innocents' errors."""
    if finding.attempt != job.attempt:
        said = finding.shown or finding.body
        return said.as_of(
            "stopped" if job.ends.finished_ns else "running" if job.steps.closed_step >= 0 else "restarting"
        )
    body = with_witnesses(job, finding, finding.body.as_of("stopped" if job.ends.finished_ns else "running"))
    suspects, stacks = [], []
    for item in body.suspects:
        if item.rank is not None:
            item, row = _with_stack(job, finding, item, item.rank)
            stacks += [row] if row is not None else []
        suspects.append(item)
    body = with_sites(job, finding, replace(body, suspects=tuple(suspects)).with_evidence(*stacks))
    if finding.kind == Kind.RANK_SLOW.value or finding.kind == Kind.SLOW_TOGETHER.value:
        return body
    return _with_endings(job, finding, body)


def _with_stack(
    job: JobState, finding: OpenFinding, item: SuspectEntry, rank: int
) -> tuple[SuspectEntry, EvidenceRow | None]:
    """A suspect with its device and where it stands, and the row that says so."""
    item = replace(item, gpu=job.facts(rank).gpu or item.gpu)
    raised = [e for e in job.ends.endings if e.rank == rank and e.sort == "exception" and e.file]
    own = next((e for e in raised if role_hint(e) == "error"), None)
    stack = job.facts(rank).stack
    stuck = _host_stands(finding)
    fell = finding.kind == Kind.RANK_DIED.value and stack is not None and stack.method == "signal"
    if own is None and stack is not None and (stuck or fell) and stack.time_ns >= finding.onset_ns - STACK_LEAD_NS:
        where = CodePlace(file=stack.file, line=stack.line, phase=item.phase or stack.phase or None)
        place = f"{stack.file}:{stack.line}"
        if fell:
            shows = f"rank {rank} was at {place} in {stack.function} when the signal came"
        else:
            shows = f"rank {rank} stands at {place} in {stack.function}, says its stack (by {stack.method})"
        fact = EvidenceFact(rank=rank, file=stack.file, line=stack.line, function=stack.function)
        row = evidence("rank.stack", source_of(job, rank), stack.time_ns, shows, place, fact=fact)
        return replace(item, where=where), row
    # Where a stuck rank was when its peers' failure ended it is where it was stuck.
    last = own or (raised[0] if raised and stuck else None)
    if last is not None:
        item = replace(item, where=CodePlace(file=last.file, line=last.line, phase=last.phase or item.phase))
    return item, None


def _with_endings(job: JobState, finding: OpenFinding, body: FindingBody) -> FindingBody:
    """Suspects' ends are evidence; everybody else's errors are ruled out, one entry per rank."""
    cleared: dict[int, Ending] = {}
    told = {row.fact.without_place() for row in body.evidence if row.fact is not None}
    blamed = suspected_ranks(body)
    suspects = set(blamed)
    own = []
    for ending in sorted(job.ends.endings, key=lambda e: (e.time_ns, e.rank, e.sort)):
        is_suspect = ending.rank in suspects
        if not is_suspect and ending.rank in cleared:
            continue
        # A thread that raised ended nothing by itself, but what its rank stands still for may be its work.
        if role_hint(ending) == "none" and not (ending.sort == "exception" and is_suspect):
            continue
        if is_suspect:
            if fact_of(ending) not in told:
                own.append(ending_row(job, ending))
        else:
            cleared[ending.rank] = ending
    named = sorted(cleared) if len(cleared) <= _MOST_CONSEQUENCES else [min(cleared)]
    entries = [consequence(cleared[rank], body.kind.value, blamed) for rank in named]
    if len(named) < len(cleared):
        ranks = format_ranks(sorted(cleared))
        entries = [replace(entries[0], who=f"ranks {ranks}", ranks=ranks)]
    known = set(cleared)
    kept = [entry for entry in body.ruled_out if not set(read_ranks(entry.ranks or "")) <= known]
    return replace(body.with_evidence(*own), ruled_out=(*kept, *entries))


def _places(body: FindingBody) -> list[tuple[int | None, int | None]]:
    return [(item.rank, item.line) for item in body.suspects]


def _request_stacks(job: JobState, ctx: Context, now: int, finding: OpenFinding) -> None:
    """Best effort: the finding stands without an answer. The id is stable, so that repeats coincide."""
    for rank in finding.suspects[:MOST_REQUESTS]:
        node = job.node_of(rank)
        identity = Identity(
            cluster=job.cluster, run=job.run, job=job.job, attempt=job.attempts.launch_of(rank), node=node, rank=rank
        )
        request = Event(
            name=EventName.EVIDENCE_REQUEST,
            identity=identity,
            time_ns=now,
            attributes={"id": f"{finding.key}/stack/{rank}", "action": "stack", "rank": rank, "node": node},
        )
        ctx.emit(Record(topic=TOPIC_REQUESTS, key=node, stamp_ns=now, payload=request))
