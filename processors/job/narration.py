"""Turns verdicts into the fields of a finding: suspects, evidence and ruled-out ranks in words a person can check.

Pure: reads the job's state, changes nothing. Every sentence names ranks, numbers and times that were recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...telemetry.ring_layout import format_ranks
from ...telemetry.vocabulary import Bucket, Kind, Phase, ProcessState, Scope, Severity
from .crash_order import CrashVerdict, Ending, role_hint
from .matching import Divergence, Member, Mismatch, Signature, comparable
from .numeric import BadNumber
from .pace import PaceChange
from .state import JobState
from .straggler import Straggler
from .waiting import Blockage, Wait
from .words import (
    bytes_words,
    duration_words,
    op_word,
    phase_word,
    process_words,
    ranks_words,
    seconds,
    signal_word,
)

Body = dict[str, Any]
STALE_NS = 2_000_000_000
#: Phases in which a rank that keeps the others waiting does what its script told it to.
BY_DESIGN = frozenset({Phase.EVAL, Phase.CHECKPOINT})


def evidence(signal: str, source: str, time_ns: int, shows: str, value: Any = None) -> dict[str, Any]:
    return {"signal": signal, "source": source, "time": seconds(time_ns), "value": value, "shows": shows}


def source_of(job: JobState, rank: int) -> str:
    facts = job.ranks.get(rank)
    row = job.progress_row(rank)
    pid = facts.pid if facts and facts.pid else int(row["pid"]) if row is not None else 0
    return f"rank {rank}" + (f" (pid {pid})" if pid else "") + (f" on {facts.node}" if facts and facts.node else "")


def ruled_out(ranks: Iterable[int], looks_guilty: str, because: str) -> dict[str, Any]:
    members = sorted(set(ranks))
    return {
        "who": ranks_words(members),
        "ranks": format_ranks(members),
        "looks_guilty": looks_guilty,
        "because": because,
    }


def suspect(job: JobState, rank: int, probability: float, phase: str | None = None) -> dict[str, Any]:
    facts, row = job.ranks.get(rank), job.progress_row(rank)
    pid = facts.pid if facts and facts.pid else int(row["pid"]) if row is not None else 0
    return {
        "scope": "rank",
        "id": str(rank),
        "rank": rank,
        "node": facts.node or None if facts else None,
        "gpu": None,
        "pid": pid or None,
        "where": {"file": None, "line": None, "phase": phase} if phase else None,
        "probability": round(probability, 3),
    }


def body(
    job: JobState,
    kind: Kind,
    *,
    bucket: Bucket,
    scope: Scope,
    severity: Severity,
    suspects: Sequence[Mapping[str, Any]],
    onset_ns: int,
    now: int,
    proof: Sequence[Mapping[str, Any]],
    confidence: float,
    cleared: Sequence[Mapping[str, Any]] = (),
    victims: Iterable[int] | None = None,
    step: int | None = None,
    group: int | None = None,
    seq: int | None = None,
    op: int | None = None,
) -> Body:
    blamed = {item["rank"] for item in suspects}
    hurt = sorted(set(job.ranks if victims is None else victims) - blamed)
    expected = job.world_size or len(job.ranks)
    return {
        "bucket": bucket.value,
        "kind": kind.value,
        "scope": scope.value,
        "severity": severity.value,
        "suspects": list(suspects),
        "victims": {"count": len(hurt), "ranks": format_ranks(hurt)},
        "coverage": {"ranks_seen": len(job.ranks), "ranks_expected": expected},
        "first_bad": {
            "step": step if step is not None and step >= 0 else None,
            "group": job.group_name(group) if group is not None and group >= 0 else None,
            "sequence": seq,
            "operation": op_word(op) if op else None,
        },
        "times": {"onset": seconds(onset_ns), "detected": seconds(now), "attributed": seconds(now)},
        "evidence": list(proof),
        "ruled_out": list(cleared),
        "confidence": round(min(confidence, _coverage_limit(job)), 3),
        "job": {
            "run": job.run or None,
            "id": job.job,
            "name": None,
            "attempt": job.attempt or None,
            "owner": None,
            "now": "stopped" if job.finished_ns else "running",
        },
    }


def stands(job: JobState, rank: int) -> str:
    """``"rank 2 is in phase forward since 4.3 s, process sleeping (S), heartbeat fresh"``."""
    row, facts = job.progress_row(rank), job.ranks.get(rank)
    if facts and facts.exited_ns:
        return f"rank {rank} has left"
    if row is None:
        return f"rank {rank} was never seen"
    beat = int(row["heartbeat_age_ns"])
    words = [
        f"rank {rank} is in phase {phase_word(row['phase'])} since {duration_words(row['phase_age_ns'])}",
        process_words(row["process_state"]),
        f"heartbeat silent for {duration_words(beat)}" if beat > STALE_NS else "heartbeat fresh",
    ]
    if beat > STALE_NS and row["process_state"] in (ProcessState.RUNNING, ProcessState.SLEEPING):
        words.append("so something holds Python's interpreter lock")
    return ", ".join(words)


def call_words(signature: Signature, dtype: bool = False) -> str:
    op, size, kind, peer = signature
    words = op_word(op)
    if size >= 0:
        words += f" of {bytes_words(size)}" + (f" (dtype {kind})" if dtype else "")
    return words + (f" with root {peer}" if peer >= 0 else "")


# --- desync ---------------------------------------------------------------------------------------------------------
def mismatch_body(job: JobState, mismatch: Mismatch, divergence: Divergence, now: int) -> Body:
    guilty = divergence.guilty
    members = {member.rank: member for member in mismatch.members}
    name = job.group_name(mismatch.group)
    calls: dict[Signature, list[int]] = {}
    for member in mismatch.members:
        calls.setdefault(comparable(member), []).append(member.rank)
    with_dtype = len({(op, size, peer) for op, size, _, peer in calls}) < len(calls)
    said = "; ".join(
        f"{ranks_words(ranks)} called {call_words(call, with_dtype)}"
        for call, ranks in sorted(calls.items(), key=lambda item: item[1])
    )
    onset = min(members[rank].enqueued_ns for rank in guilty)
    proof = [
        evidence(
            "collectives.signature",
            source_of(job, rank),
            members[rank].enqueued_ns,
            f"collective {mismatch.seq} of group {name} differs between ranks: {said}",
            call_words(comparable(members[rank]), with_dtype),
        )
        for rank in guilty[:2]
    ]
    if divergence.expected is not None and divergence.innocent:
        proof.append(
            evidence(
                "collectives.history",
                f"group {name}",
                onset,
                f"one step earlier this place was {call_words(divergence.expected, with_dtype)}, as "
                f"{ranks_words(divergence.innocent)} called it again; {ranks_words(guilty)} left the pattern",
            )
        )
    cleared = []
    if divergence.innocent:
        because = f"called what {'earlier steps did' if divergence.by == 'history' else 'most ranks did'}"
        cleared.append(ruled_out(divergence.innocent, f"differs from {ranks_words(guilty)}", because))
    first = members[guilty[0]]
    return body(
        job,
        Kind.DESYNC,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.APPLICATION,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, _share(guilty), phase_word(members[rank].phase)) for rank in guilty],
        onset_ns=onset,
        now=now,
        proof=proof,
        cleared=cleared,
        confidence=divergence.confidence,
        step=min(member.step for member in mismatch.members),
        group=mismatch.group,
        seq=mismatch.seq,
        op=_usual_op(mismatch.members, divergence, first),
    )


def short_step_body(
    job: JobState, group: int, step: int, counts: Mapping[int, int], guilty: Sequence[int], onset_ns: int, now: int
) -> Body:
    name = job.group_name(group)
    said = "; ".join(
        f"{ranks_words([r for r in counts if counts[r] == count])} called {count}"
        for count in sorted(set(counts.values()))
    )
    innocent = [rank for rank in counts if rank not in guilty]
    shows = f"in step {step} the ranks called different numbers of collectives of group {name}: {said}"
    return body(
        job,
        Kind.DESYNC,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.APPLICATION,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, _share(guilty)) for rank in guilty],
        onset_ns=onset_ns,
        now=now,
        proof=[
            evidence("collectives.count", source_of(job, rank), onset_ns, shows, counts[rank]) for rank in guilty[:2]
        ],
        cleared=[ruled_out(innocent, "out of step with the others", "called as many as in the steps before")]
        if innocent
        else [],
        confidence=0.9 if innocent else 0.5,
        step=step,
        group=group,
    )


# --- hang -----------------------------------------------------------------------------------------------------------
def blockage_body(
    job: JobState, kind: Kind, blockage: Blockage, suspects: Sequence[int], threshold_ns: int, now: int
) -> Body:
    wait = blockage.wait
    where = _place(job, wait)
    onset = wait.since_ns
    waiting = [rank for rank in blockage.waiting if rank not in suspects]
    probability = _share(suspects)
    certain = blockage.sort == "missing"
    proof = []
    for rank in suspects[:3]:
        verb = "has not entered" if certain else "may not have entered" if blockage.sort == "unknown" else "is inside"
        proof.append(
            evidence(
                "progress",
                source_of(job, rank),
                now,
                f"rank {rank} {verb} {where}; {ranks_words(waiting)} wait{'s' if len(waiting) == 1 else ''} in it "
                f"since {duration_words(wait.age_ns)}; {stands(job, rank)}",
            )
        )
    proof.append(
        evidence(
            "progress.threshold",
            f"job {job.job}",
            now,
            f"waits of this job for a rank in this phase have never taken longer than {duration_words(threshold_ns)}",
        )
    )
    row = job.progress_row(suspects[0])
    phase = phase_word(row["phase"]) if row is not None else None
    by_design = kind is Kind.RANK_NOT_ENTERED and row is not None and row["phase"] in BY_DESIGN
    return body(
        job,
        kind,
        bucket=Bucket.IMMEDIATE_CRASH if kind is Kind.RANK_DIED else Bucket.COMMUNICATION_HANG,
        scope=Scope.APPLICATION if by_design or kind is Kind.DESYNC else Scope.RANK,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, probability, phase) for rank in suspects],
        victims=waiting,
        onset_ns=onset,
        now=now,
        proof=proof,
        cleared=[ruled_out(waiting, "stands still", f"waits for {ranks_words(suspects)}, directly or through others")],
        confidence=(0.95 if len(suspects) == 1 else 0.6) if certain else 0.4,
        step=int(row["step"]) if row is not None else None,
        group=wait.group,
        seq=wait.seq,
        op=wait.op,
    )


def deadlock_body(job: JobState, blockage: Blockage, waits: Sequence[Wait], now: int) -> Body:
    """waits: all open operations; those of the cycle become evidence, at most four."""
    wait = blockage.wait
    shown = [item for item in waits if item.rank in blockage.cycle and item.missing][:4]
    row = job.progress_row(wait.rank)
    proof = [
        evidence(
            "progress",
            source_of(job, item.rank),
            now,
            f"rank {item.rank} waits in {_place(job, item)} for {ranks_words(item.missing)}, since "
            f"{duration_words(item.age_ns)}",
        )
        for item in shown
    ]
    proof.append(
        evidence(
            "progress.cycle",
            f"job {job.job}",
            now,
            f"{ranks_words(blockage.cycle)} wait for each other in a circle: groups are used in different orders",
        )
    )
    return body(
        job,
        Kind.DEADLOCK,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.APPLICATION,
        severity=Severity.PAGE,
        suspects=[],
        onset_ns=wait.since_ns,
        now=now,
        proof=proof,
        cleared=[
            ruled_out(blockage.cycle, "stands still", "each waits for the others; the order of calls is at fault")
        ],
        confidence=0.9,
        step=int(row["step"]) if row is not None else None,
        group=wait.group,
        seq=wait.seq,
        op=wait.op,
    )


def stopped_body(job: JobState, rank: int, running: Sequence[int], now: int) -> Body:
    facts, row = job.facts(rank), job.progress_row(rank)
    phase = phase_word(row["phase"]) if row is not None else None
    where = f" in phase {phase} of step {int(row['step'])}" if row is not None else ""
    return body(
        job,
        Kind.RANK_STOPPED,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.RANK,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, 0.98, phase)],
        onset_ns=facts.stopped_ns,
        now=now,
        proof=[
            evidence(
                "process.state",
                source_of(job, rank),
                facts.stopped_ns,
                f"the process of rank {rank} is stopped (state T){where}, while {ranks_words(running)} still run",
                "T",
            )
        ],
        cleared=[ruled_out(running, "will wait", f"their processes run; rank {rank}'s does not")],
        confidence=0.98,
        step=int(row["step"]) if row is not None else None,
    )


def never_joined_body(job: JobState, missing: Sequence[int], waiting: Sequence[int], now: int) -> Body:
    rows = [job.progress[rank] for rank in waiting]
    since = min(int(row["read_ns"]) - int(row["phase_age_ns"]) for row in rows)
    age_ns = max(int(row["phase_age_ns"]) for row in rows)
    return body(
        job,
        Kind.RANK_NEVER_JOINED,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.RANK,
        severity=Severity.INFO,
        suspects=[suspect(job, rank, _share(missing), "init") for rank in missing],
        victims=waiting,
        onset_ns=since,
        now=now,
        proof=[
            evidence(
                "progress",
                ranks_words(missing),
                now,
                f"{ranks_words(missing)} of {job.world_size} never came; {ranks_words(waiting)} wait in init since "
                f"{duration_words(age_ns)}",
            )
        ],
        cleared=[ruled_out(waiting, "stands in init", "started and waits for the rest")],
        confidence=0.8,
    )


# --- crash ----------------------------------------------------------------------------------------------------------
def crash_body(job: JobState, verdict: CrashVerdict, now: int) -> tuple[Kind, Body]:
    cause = verdict.cause
    endings = [ending for ending, _ in verdict.roles if role_hint(ending) != "none"]
    began = min((ending.time_ns for ending in endings), default=now)
    if verdict.sort == "planned":
        return Kind.PLANNED_STOP, planned_body(job, endings, began, now)
    if cause is None:
        ends = "; ".join(ending_words(ending) for ending in endings[:4])
        shows = f"all ranks ended together: {ends}" if verdict.sort == "together" else f"only victims' errors: {ends}"
        return Kind.RANK_DIED, body(
            job,
            Kind.RANK_DIED,
            bucket=Bucket.IMMEDIATE_CRASH,
            scope=Scope.JOB,
            severity=Severity.PAGE,
            suspects=[],
            onset_ns=began,
            now=now,
            proof=[evidence("rank.exit", f"job {job.job}", began, shows)],
            confidence=min(verdict.confidence, 0.6),
            step=max((ending.step for ending in endings), default=-1),
        )
    kind = Kind.RANK_RAISED if verdict.sort == "raised" else Kind.RANK_DIED
    bucket, scope = Bucket.IMMEDIATE_CRASH, Scope.RANK
    if verdict.sort == "left":
        # The script of this rank came to its end while the others went on: it had less to do than they.
        kind, bucket, scope = Kind.DESYNC, Bucket.COMMUNICATION_HANG, Scope.APPLICATION
    everyone = {cause.rank, *verdict.same_error}
    if verdict.same_error and everyone >= set(job.ranks):
        scope = Scope.APPLICATION
    proof = [
        evidence(f"rank.{cause.sort}", source_of(job, cause.rank), cause.time_ns, _cause_words(job, verdict, cause))
    ]
    if verdict.same_error:
        shows = (
            f"{ranks_words(verdict.same_error)} raised {cause.type} as well: one cause, seen on {len(everyone)} ranks"
        )
        proof.append(evidence("rank.exception", ranks_words(verdict.same_error), cause.time_ns, shows))
    return kind, body(
        job,
        kind,
        bucket=bucket,
        scope=scope,
        severity=Severity.PAGE,
        suspects=[suspect(job, cause.rank, verdict.confidence, cause.phase or None)],
        onset_ns=cause.time_ns,
        now=now,
        proof=proof,
        confidence=verdict.confidence,
        step=cause.step,
    )


def ending_words(ending: Ending) -> str:
    if ending.sort == "exception":
        text = f"{ending.type}: {ending.message}" if ending.message else ending.type
        place = f" at {ending.file}:{ending.line}" if ending.file else ""
        return f"rank {ending.rank} raised {text[:300]}{place}"
    if ending.signal > 0:
        sender = f" sent by pid {ending.sender_pid}" if ending.sender_pid else ""
        return f"rank {ending.rank} was ended by {signal_word(ending.signal)}{sender}"
    if ending.normal:
        return f"rank {ending.rank} came to the end of its script and left"
    code = f"with exit code {ending.exit_code}" if ending.exit_code >= 0 else "without a word (exit code not visible)"
    return f"rank {ending.rank} ended {code}"


def _cause_words(job: JobState, verdict: CrashVerdict, cause: Ending) -> str:
    words = ending_words(cause)
    if cause.step >= 0:
        words += f" in step {cause.step}"
    if cause.phase:
        words += f", phase {cause.phase}"
    later = sorted({e.rank for e, role in verdict.roles if role_hint(e) != "none"} - {cause.rank})
    if later:
        words += f", before {ranks_words(later)} failed"
    elif verdict.sort == "left":
        words += ", while the others still called collectives with it"
    return words


def planned_body(job: JobState, endings: Sequence[Ending], began: int, now: int) -> Body:
    if job.signalled_ns:
        shows, began = "the job was asked to stop", min(began, job.signalled_ns)
    else:
        ended = ranks_words(ending.rank for ending in endings)
        shows = f"{ended} were all asked to stop within {duration_words(300_000_000)}, before any error"
    return body(
        job,
        Kind.PLANNED_STOP,
        bucket=Bucket.PLANNED,
        scope=Scope.JOB,
        severity=Severity.INFO,
        suspects=[],
        victims=(),
        onset_ns=began,
        now=now,
        proof=[evidence("job.signalled", f"job {job.job}", began, shows)],
        confidence=0.95,
        step=max((ending.step for ending in endings), default=-1),
    )


def consequence(ending: Ending, kind: str, suspects: Sequence[int]) -> dict[str, Any]:
    """A ruled-out entry for a rank that printed an error or died, and is not to blame."""
    cause = f"{ranks_words(suspects)} came first" if suspects else "the job as a whole was ended or blocked"
    if role_hint(ending) == "stop":
        because = f"was told to stop after that; {cause}"
    elif ending.communication:
        because = f"its error only says that a peer went away or did not answer; {cause}"
    elif kind == Kind.DESYNC.value:
        because = f"failed inside the collective that did not match; {cause}"
    else:
        because = f"failed after that; {cause}"
    return ruled_out([ending.rank], ending_words(ending).partition(" ")[2].partition(" ")[2], because)


# --- speed, numbers -------------------------------------------------------------------------------------------------
def straggler_body(job: JobState, found: Straggler, now: int) -> Body:
    others = [int(rank) for rank in job.times.ranks if rank != found.rank]
    phase = phase_word(found.phase)
    usual = f" (usual: {found.usual:+.0%})" if found.usual > 0.01 else ""
    shows = (
        f"rank {found.rank} works {duration_words(found.self_ns)} per step where {ranks_words(others)} work "
        f"{duration_words(found.others_self_ns)}: {duration_words(found.excess_ns)} more, {found.excess:.0%} of a step"
        f"{usual}, mostly in phase {phase}, in {found.slow_steps} of the last {found.window} steps, since step "
        f"{found.onset_step}"
    )
    waits = f"{ranks_words(others)} wait for it in their collectives; step time is {duration_words(found.step_ns)}"
    return body(
        job,
        Kind.RANK_SLOW,
        bucket=Bucket.SPEED_REGRESSION,
        scope=Scope.RANK,
        severity=Severity.TICKET,
        suspects=[suspect(job, found.rank, 0.95, phase)],
        onset_ns=found.onset_ns,
        now=now,
        proof=[
            evidence("steps.self_time", source_of(job, found.rank), now, shows, round(found.excess, 4)),
            evidence("steps.waiting", ranks_words(others), now, waits),
        ],
        cleared=[ruled_out(others, "spends long in collectives", f"only waits there for rank {found.rank}")],
        confidence=min(0.97, 0.6 + found.z / 30.0),
        step=found.onset_step,
    )


def slow_together_body(job: JobState, change: PaceChange, now: int) -> Body:
    shows = (
        f"since step {change.step} a step takes {duration_words(change.after_ns)} instead of "
        f"{duration_words(change.before_ns)} ({change.ratio - 1:+.0%}), on all ranks alike"
    )
    return body(
        job,
        Kind.SLOW_TOGETHER,
        bucket=Bucket.SPEED_REGRESSION,
        scope=Scope.JOB,
        severity=Severity.TICKET,
        suspects=[],
        onset_ns=change.onset_ns,
        now=now,
        proof=[evidence("steps.pace", f"job {job.job}", now, shows, round(change.ratio, 3))],
        confidence=0.7,
        step=change.step,
    )


def number_body(job: JobState, bad: BadNumber, now: int) -> tuple[Kind, Body]:
    fine = [rank for rank in bad.all_ranks if rank not in bad.ranks]
    kind = Kind.NUMERIC_ALL if bad.everywhere and len(job.ranks) > 1 else Kind.NUMERIC_FIRST_RANK
    named = bad.ranks if kind is Kind.NUMERIC_FIRST_RANK else ()
    shows = f"the {bad.what} of {ranks_words(bad.ranks)} is {bad.value} in step {bad.step}"
    shows += f"; that of {ranks_words(fine)} is still good" if fine else ", on all ranks in the same step"
    return kind, body(
        job,
        kind,
        bucket=Bucket.NUMERIC,
        scope=Scope.RANK if named else Scope.JOB,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, _share(named)) for rank in named],
        onset_ns=bad.onset_ns,
        now=now,
        proof=[
            evidence(
                f"steps.{bad.what.replace(' ', '_')}",
                source_of(job, bad.ranks[0]) if named else ranks_words(bad.ranks),
                bad.onset_ns,
                shows,
                bad.value,
            )
        ],
        cleared=[ruled_out(fine, "becomes bad in the next step", f"its {bad.what} was good in step {bad.step}")]
        if fine
        else [],
        confidence=0.95 if len(named) == 1 else 0.7,
        step=bad.step,
    )


# --- shared ---------------------------------------------------------------------------------------------------------
def _share(ranks: Sequence[int]) -> float:
    return 0.95 if len(ranks) == 1 else 1.0 / max(1, len(ranks))


def _coverage_limit(job: JobState) -> float:
    """Unseen ranks leave room for another cause."""
    expected = job.world_size or len(job.ranks) or 1
    return 0.5 + 0.49 * min(1.0, len(job.ranks) / expected)


def _place(job: JobState, wait: Wait) -> str:
    return f"{op_word(wait.op)} {wait.seq} of group {job.group_name(wait.group)}"


def _usual_op(members: Sequence[Member], divergence: Divergence, first: Member) -> int:
    """The operation that should have been there."""
    if divergence.expected is not None:
        return divergence.expected[0]
    return next((member.op for member in members if member.rank in divergence.innocent), first.op)
