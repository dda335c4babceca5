"""What a finding says of numbers gone bad. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ...finding_document import EvidenceRow, FindingBody
from ..detectors.numeric.bad_numbers import BadNumber
from ..findings.finding_body import body, evidence, ruled_out, share, source_of, suspect
from ..findings.wording import ranks_words
from ..state.job_state import JobState
from ..state.rank_state import BadInput

_GOT_IT = "whatever it fed into operations was good until it had called one into which a NaN was fed"


def number_body(job: JobState, bad: BadNumber, feeders: Mapping[int, BadInput], now: int) -> tuple[Kind, FindingBody]:
    """Kind and body for numbers gone bad. feeders: the ranks that fed the first NaN into an operation, empty if not
    known.
    """
    fine = [rank for rank in bad.all_ranks if rank not in bad.ranks]
    kind = Kind.NUMERIC_ALL if bad.everywhere and len(job.ranks) > 1 else Kind.NUMERIC_FIRST_RANK
    kind = Kind.NUMERIC_FIRST_RANK if feeders else kind
    named = tuple(sorted(feeders)) or (bad.ranks if kind is Kind.NUMERIC_FIRST_RANK else ())
    where = f"in step {bad.step}" if bad.calls_before < 0 else f"after {bad.calls_before} calls of all ranks' group"
    fed = [rank for rank in bad.ranks if rank not in feeders] if feeders else []
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
            ),
            *(_fed(job, rank, found, bad.onset_ns) for rank, found in sorted(feeders.items())),
        ],
        cleared=[
            *([ruled_out(fine, "becomes bad in the next step", f"its {bad.what} was good {where}")] if fine else []),
            *([ruled_out(fed, f"its {bad.what} is {bad.value} as well", _GOT_IT)] if fed else []),
        ],
        confidence=0.95 if len(named) == 1 else 0.7,
        step=bad.step,
    )


def _fed(job: JobState, rank: int, found: BadInput, onset_ns: int) -> EvidenceRow:
    group = job.groups.name_of(found.group)
    call = f"{'operation' if found.point_to_point else 'collective'} {found.seq} of group {group}"
    shows = f"{ranks_words([rank])} fed a NaN into {call} in step {found.step}, and could have it from nobody by then"
    return evidence("collectives.inputs", source_of(job, rank), onset_ns, shows, "NaN")
