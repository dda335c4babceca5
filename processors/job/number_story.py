"""What a finding says of numbers gone bad. Pure."""

from __future__ import annotations

from ...telemetry.vocabulary import Bucket, Kind, Scope, Severity
from .numeric import BadNumber
from .state import JobState
from .story import Body, body, evidence, ruled_out, share, source_of, suspect
from .words import ranks_words


def number_body(job: JobState, bad: BadNumber, now: int) -> tuple[Kind, Body]:
    fine = [rank for rank in bad.all_ranks if rank not in bad.ranks]
    kind = Kind.NUMERIC_ALL if bad.everywhere and len(job.ranks) > 1 else Kind.NUMERIC_FIRST_RANK
    named = bad.ranks if kind is Kind.NUMERIC_FIRST_RANK else ()
    where = f"in step {bad.step}" if bad.calls_before < 0 else f"after {bad.calls_before} calls of all ranks' group"
    shows = f"the {bad.what} of {ranks_words(bad.ranks)} is {bad.value} {where}"
    shows += f"; that of {ranks_words(fine)} is still good then" if fine else ", on all ranks at once"
    return kind, body(
        job,
        kind,
        bucket=Bucket.NUMERIC,
        scope=Scope.RANK if named else Scope.JOB,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, share(named)) for rank in named],
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
        cleared=[ruled_out(fine, "becomes bad in the next step", f"its {bad.what} was good {where}")] if fine else [],
        confidence=0.95 if len(named) == 1 else 0.7,
        step=bad.step,
    )
