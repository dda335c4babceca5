"""Facts of flight-recorder dumps, as nodes tell them, become one testimony: by the analysis that files are read with.

Dumps of a job come within a moment of each other, so they are judged once all ranks' are there, or once none has come
for a while. What they say joins the finding that stops the attempt (``findings.testimonies``). A finding of its own
they open only where rings are off: then nothing else can tell.
"""

from __future__ import annotations

from dataclasses import replace

from ....diagnosis.flight_recorder.analysis import Diagnosis, analyse
from ....diagnosis.flight_recorder.dump_facts import BadFacts, read_facts
from ....diagnosis.flight_recorder.dump_suspects import EVEN
from ....diagnosis.flight_recorder.group_state import GroupFinding
from ....diagnosis.flight_recorder.rank_dump import RankDump
from ....telemetry.records import Event
from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ...operator import Context
from ..detectors.hang.second_opinion import NamedRank, Testimony
from ..findings.finding_body import MOST_SUSPECTS, body, evidence
from ..findings.register import open_finding, revise_all
from ..findings.wording import ranks_words
from ..intake.progress import last_moves_ns
from ..state.job_state import JobState
from ..state.witness_state import RankDumpFacts

SIGNAL = "flight_recorder"
#: Others may be on their way, and each judgement goes through all: of many it is made seldom.
QUIET_NS, QUIET_NS_PER_DUMP = 1_000_000_000, 10_000_000
#: Ranks whose rings tell no calls have stood for so long by their step and phase, or have ended.
STAND_NS = 5_000_000_000
_AGAIN_NS = 2_000_000_000
#: Dumps of one stop come within minutes; what is older than the newest by more is of another.
SAME_STOP_NS = 600_000_000_000
_MOST_WORDS = 300
#: Before the testimony is weighed: that rings are off says nothing.
_CONFIDENCE_ALONE = 0.4


def take_dump(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """Keeps what a RANK_FLIGHT_RECORDER event tells, and judges all dumps where this was the last one missing."""
    values, witnesses = event.attributes, job.findings.witnesses
    facts, problem = values.get("facts"), values.get("problem")
    written_ns = values.get("written_ns")
    dump = RankDumpFacts(
        facts=facts if isinstance(facts, str) else "",
        problem=" ".join(str(problem or "").split())[:_MOST_WORDS],
        written_ns=written_ns if type(written_ns) is int and 0 < written_ns <= stamp_ns else stamp_ns,
    )
    witnesses.note_dump(event.identity.rank, dump)
    job.unsaved.facts = True
    if len(witnesses.dumps) == job.world_size or job.ends.finished_ns:
        _judge(job, stamp_ns, ctx)
    elif not witnesses.due_ns:
        witnesses.due_ns = stamp_ns + QUIET_NS + QUIET_NS_PER_DUMP * len(witnesses.dumps)
        job.schedule(witnesses.due_ns)


def judge_dumps(job: JobState, now: int, ctx: Context) -> None:
    """Judges the dumps that have come, if that is due by now."""
    if not job.findings.witnesses.due_ns:
        return
    if now < job.findings.witnesses.due_ns:
        job.schedule(job.findings.witnesses.due_ns)
        return
    _judge(job, now, ctx)


def _judge(job: JobState, now: int, ctx: Context) -> None:
    job.findings.witnesses.due_ns = 0
    job.unsaved.facts = True
    testimony = testimony_of(job)
    if testimony is None:
        return
    job.findings.witnesses.said[SIGNAL] = testimony
    revise_all(job, ctx, now)
    if job.findings.stopping() is None and not job.findings.has_kind(Kind.PLANNED_STOP) and not job.ends.finished_ns:
        _judge_alone(job, testimony, now, ctx)


def testimony_of(job: JobState) -> Testimony | None:
    """What all dumps of the attempt say together; None where there are none."""
    told = job.findings.witnesses.dumps
    if not told:
        return None
    newest_ns = max(dump.written_ns for dump in told.values())
    dumps: dict[int, RankDump] = {}
    unread: list[str] = []
    for rank, dump in sorted(told.items()):
        if dump.written_ns < newest_ns - SAME_STOP_NS:
            continue
        try:
            if dump.problem or not dump.facts:
                raise BadFacts(dump.problem or "has no facts")
            dumps[rank] = read_facts(dump.facts, rank, job.node_of(rank))
        except BadFacts as wrong:
            unread.append(f"the dump of rank {rank} {wrong}")
    said = _said(job, analyse(dumps), dumps) if dumps else _nothing(job)
    if unread:
        said = replace(said, summary=f"{said.summary}; {'; '.join(unread[:2])}"[: 2 * _MOST_WORDS])
    if job.findings.witnesses.left_out:
        said = replace(said, summary=f"{said.summary}; {job.findings.witnesses.left_out} dumps were more than is kept")
    return replace(said, written_ns=newest_ns)


def _nothing(job: JobState) -> Testimony:
    return Testimony(
        signal=SIGNAL,
        source="the flight recorder",
        summary="no dump can be read",
        kind=None,
        unseen=tuple(sorted(job.ranks)),
    )


def _said(job: JobState, diagnosis: Diagnosis, dumps: dict[int, RankDump]) -> Testimony:
    expected = max(job.world_size, diagnosis.ranks_expected)
    unseen = tuple(rank for rank in range(expected) if rank not in dumps)
    named = tuple(
        NamedRank(one.rank, one.probability, one.because)
        for one in diagnosis.suspects
        if one.finding is not GroupFinding.NO_DUMP
    )[:MOST_SUSPECTS]
    summary, state = diagnosis.summary, diagnosis.state
    if diagnosis.finding is GroupFinding.NO_DUMP:
        summary = "all calls that the dumps show wait, or may wait, for ranks without one"
    is_sure = bool(named) and max(one.probability for one in named) >= EVEN
    # That everybody is in the call is known only where everybody has told.
    is_sure |= not named and (diagnosis.kind is Kind.DEADLOCK or not unseen)
    call = state.call if state is not None else None
    return Testimony(
        signal=SIGNAL,
        source=f"the flight recorder of {len(dumps)} of {expected} ranks",
        summary=summary,
        kind=None if diagnosis.finding is GroupFinding.NO_DUMP else diagnosis.kind,
        scope=diagnosis.scope,
        named=named,
        confidence=diagnosis.confidence,
        unseen=unseen,
        is_clear=is_sure,
        group=state.group.label if state is not None else None,
        sequence=state.sequence if state is not None else None,
        operation=call.op if call is not None else None,
    )


def _judge_alone(job: JobState, testimony: Testimony, now: int, ctx: Context) -> None:
    """Opens a finding on what dumps alone show: where those that they name, or all, are not seen, and nobody moves."""
    concerned = {one.rank for one in testimony.named} or set(job.ranks)
    if testimony.kind is None or not testimony.is_clear or not job.blind_ranks or not concerned <= job.blind_ranks:
        return
    alive = job.alive()
    if alive and not _stand(job, alive, testimony.written_ns):
        if now - testimony.written_ns < SAME_STOP_NS:
            job.findings.witnesses.due_ns = now + _AGAIN_NS
            job.schedule(job.findings.witnesses.due_ns)
        return
    shows = f"the rings of {ranks_words(sorted(job.blind_ranks))} are off and tell no calls; dumps do"
    found = body(
        job,
        testimony.kind,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=testimony.scope or Scope.JOB,
        severity=Severity.PAGE,
        suspects=[],  # whom the dumps name is said with the testimony, as of every finding
        onset_ns=testimony.written_ns,
        now=now,
        proof=[evidence("progress.level", f"job {job.job}", now, shows)],
        confidence=_CONFIDENCE_ALONE,
    )
    found = replace(
        found,
        first_bad=replace(
            found.first_bad, group=testimony.group, sequence=testimony.sequence, operation=testimony.operation
        ),
    )
    open_finding(job, ctx, now, kind=testimony.kind, place=f"dumps:{testimony.sequence}", body=found)


def _stand(job: JobState, ranks: list[int], written_ns: int) -> bool:
    """Whether none of them has begun a step or phase since it dumped, and for a while."""
    moved_ns, read_ns = last_moves_ns(job), job.progress.rows["read_ns"]
    return all(
        rank < moved_ns.size and 0 < moved_ns[rank] < written_ns and read_ns[rank] - moved_ns[rank] >= STAND_NS
        for rank in ranks
    )
