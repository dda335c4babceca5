"""Losses that are not finite in loops without steps: no step row tells of them, so ranks say it one by one.

What one rank has is everybody's after the next sum. So the first is who had issued the fewest calls of the world's
group when it was known: the calls are numbered alike on all ranks, and no clocks are compared.
"""

from __future__ import annotations

from ....telemetry.vocabulary import Kind
from ...operator import Context
from ..detectors.numeric.bad_numbers import BadNumber
from ..state.job_state import JobState
from .number_findings import open_number_finding

#: Ranks of other nodes are flushed a little later.
BAD_LOSS_HOLD_NS = 1_000_000_000


def judge_bad_losses(job: JobState, now: int, ctx: Context) -> None:
    """Opens a finding on ranks whose loss went bad first, BAD_LOSS_HOLD_NS after it came; sets a timer until then.

    For loops without steps: nothing where a numeric finding is open.
    """
    if not job.progress.may_have_bad_loss:
        return  # nearly always, and this is asked at every look
    bad = [rank for rank, facts in job.ranks.items() if facts.bad_loss]
    job.progress.may_have_bad_loss = bool(bad)
    if not bad or job.findings.has_kind(Kind.NUMERIC_ALL) or job.findings.has_kind(Kind.NUMERIC_FIRST_RANK):
        return
    due_ns = min(job.ranks[rank].bad_loss_ns for rank in bad) + BAD_LOSS_HOLD_NS
    if now < due_ns:
        job.schedule(due_ns)
        return
    first = min(job.ranks[rank].bad_loss_calls for rank in bad)
    ranks = tuple(sorted(rank for rank in bad if job.ranks[rank].bad_loss_calls == first))
    found = BadNumber(
        step=int(job.progress.rows["step"][ranks[0]]) if job.progress.row_of(ranks[0]) is not None else -1,
        what="loss",
        value=job.ranks[ranks[0]].bad_loss,
        ranks=ranks,
        all_ranks=tuple(sorted(job.ranks)),
        onset_ns=min(job.ranks[rank].bad_loss_ns for rank in ranks),
        calls_before=first,
    )
    open_number_finding(job, ctx, now, found, place=f"call {first}")
