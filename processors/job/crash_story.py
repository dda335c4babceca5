"""What a finding says of ranks that ended, and of those that only ended because of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...telemetry.vocabulary import Bucket, Kind, Scope, Severity
from .crash_order import SIGABRT, SIGKILL, TOGETHER_NS, CrashVerdict, Ending, role_hint
from .no_room import no_room_body, without_room
from .state import JobState
from .story import Body, body, evidence, ruled_out, share, source_of, suspect
from .words import cut_short, duration_words, phase_word, ranks_words, signal_word

#: Where in torch's sources a victim's error was raised says nothing, and what follows its first words neither.
_LOCATION = re.compile(r"^\[[^\]]*\]\s*")
_MESSAGE_CHARS = 300
_BRIEF_CHARS = 120


def crash_body(job: JobState, verdict: CrashVerdict, now: int) -> tuple[Kind, Body]:
    cause = verdict.cause
    endings = [ending for ending, _ in verdict.roles if role_hint(ending) != "none"]
    began = min((ending.time_ns for ending in endings), default=now)
    if verdict.sort == "planned":
        return Kind.PLANNED_STOP, planned_body(job, endings, began, now)
    if verdict.sort == "unseen":
        return Kind.RANK_DIED, unseen_body(job, verdict, began, now)
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
    if refused := without_room(job, verdict):
        return Kind.RANK_RAISED, no_room_body(job, refused, _cause_words(job, verdict, cause), now)
    kind = Kind.RANK_RAISED if verdict.sort == "raised" else Kind.RANK_DIED
    bucket, scope = Bucket.IMMEDIATE_CRASH, Scope.RANK
    if verdict.sort == "left":
        # The script of this rank came to its end while the others went on: it had less to do than they.
        kind, bucket, scope = Kind.DESYNC, Bucket.COMMUNICATION_HANG, Scope.APPLICATION
    everyone = sorted({cause.rank, *verdict.same_error})
    if verdict.same_error and set(everyone) >= set(job.ranks):
        scope = Scope.APPLICATION
    proof = [
        evidence(f"rank.{cause.sort}", source_of(job, cause.rank), cause.time_ns, _cause_words(job, verdict, cause))
    ]
    blamed = [cause.rank]
    if verdict.same_error and verdict.sort == "died":
        blamed = everyone  # none of them is a consequence of another: a peer's death is answered by an error
        proof += [
            evidence(f"rank.{ending.sort}", source_of(job, ending.rank), ending.time_ns, ending_words(ending))
            for ending in endings
            if ending.rank in verdict.same_error and ending.signal == cause.signal
        ][:4]
    elif verdict.same_error:
        shows = (
            f"{ranks_words(verdict.same_error)} raised {cause.type} as well: one cause, seen on {len(everyone)} ranks"
        )
        proof.append(evidence("rank.exception", ranks_words(verdict.same_error), cause.time_ns, shows))
    phases = {ending.rank: ending.phase for ending in endings if ending.sort == cause.sort}
    return kind, body(
        job,
        kind,
        bucket=bucket,
        scope=scope,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, verdict.confidence, phases.get(rank) or cause.phase or None) for rank in blamed],
        onset_ns=_left_ns(job, cause) if verdict.sort == "left" else cause.time_ns,
        now=now,
        proof=proof,
        confidence=verdict.confidence,
        step=cause.step,
    )


def _left_ns(job: JobState, cause: Ending) -> int:
    """When a rank came to the end of its script: its last row may still show since when it is on its way out."""
    row = job.progress_row(cause.rank)
    if row is None or phase_word(row["phase"]) != cause.phase or not int(row["phase_age_ns"]):
        return cause.time_ns
    return min(cause.time_ns, int(row["read_ns"]) - int(row["phase_age_ns"]))


def ending_words(ending: Ending) -> str:
    if ending.sort == "exception":
        text = f"{ending.type}: {ending.message}" if ending.message else ending.type
        place = f" at {ending.file}:{ending.line}" if ending.file else ""
        who = f"rank {ending.rank}" if ending.in_main else f"a thread of rank {ending.rank}"
        return f"{who} raised {cut_short(text, _MESSAGE_CHARS)}{place}"
    if ending.signal > 0 and ending.by_itself:
        verb = "aborted" if ending.signal == SIGABRT else "ended"
        return f"rank {ending.rank} {verb} itself ({signal_word(ending.signal)})"
    if ending.signal > 0:
        sender = f" sent by {_sender_words(ending)}" if ending.sender_pid else ""
        return f"rank {ending.rank} was ended by {signal_word(ending.signal)}{sender}"
    if ending.normal:
        return f"rank {ending.rank} came to the end of its script and left"
    code = f"with exit code {ending.exit_code}" if ending.exit_code >= 0 else "without a word (exit code not visible)"
    return f"rank {ending.rank} ended {code}"


def _sender_words(ending: Ending) -> str:
    return f"the launcher (pid {ending.sender_pid})" if ending.by_launcher else f"pid {ending.sender_pid}"


def _cause_words(job: JobState, verdict: CrashVerdict, cause: Ending) -> str:
    words = ending_words(cause)
    if cause.step >= 0:
        words += f" in step {cause.step}"
    if cause.phase:
        words += f", phase {cause.phase}"
    if cause.signal == SIGKILL:
        words += (
            " (it leaves no trace in the process: look for the kernel's out-of-memory killer, a scheduler, a person)"
        )
    later = sorted({e.rank for e, role in verdict.roles if role_hint(e) != "none"} - {cause.rank, *verdict.same_error})
    if later:
        words += f", before {ranks_words(later)} failed"
    elif verdict.sort == "left":
        words += ", while the others still called collectives with it"
    return words


def unseen_body(job: JobState, verdict: CrashVerdict, began: int, now: int) -> Body:
    unseen = ranks_words(verdict.unseen)
    told = sorted({ending.rank for ending, _ in verdict.roles if role_hint(ending) == "stop"})
    shows = (
        f"the launcher ended {ranks_words(told)} before {unseen} of {job.world_size} had come as far as importing "
        f"torch: it failed at its first lines, or could not be started; its own log says why"
    )
    return body(
        job,
        Kind.RANK_DIED,
        bucket=Bucket.IMMEDIATE_CRASH,
        scope=Scope.RANK,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, share(verdict.unseen), "init") for rank in verdict.unseen],
        onset_ns=began,
        now=now,
        proof=[evidence("rank.unseen", unseen, began, shows)],
        confidence=verdict.confidence,
    )


def planned_body(job: JobState, endings: Sequence[Ending], began: int, now: int) -> Body:
    if job.signalled_ns:
        shows, began = "the job was asked to stop", min(began, job.signalled_ns)
    else:
        ended = ranks_words(ending.rank for ending in endings)
        shows = f"{ended} were all asked to stop within {duration_words(TOGETHER_NS)}, before any error"
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
        because = (
            f"that is how a launcher ends the rest; {cause}" if ending.by_launcher else f"only after that; {cause}"
        )
    elif ending.communication:
        because = f"its error only says that a peer went away or did not answer; {cause}"
    elif kind == Kind.DESYNC.value:
        because = f"failed inside the collective that did not match; {cause}"
    else:
        because = f"failed after that; {cause}"
    brief = replace(ending, message=cut_short(_LOCATION.sub("", ending.message), _BRIEF_CHARS))
    return ruled_out([ending.rank], ending_words(brief).removeprefix(f"rank {ending.rank} "), because)
