"""Ranks that stand still with no collective open: they wait outside c10d, in shared memory, on files or on flags.

Nothing says who waits for whom there, so it takes longer until a word is said, and a rank is named only where it alone
stands elsewhere in the program than all others. Where all stand at one place, nobody is: it may be a pause of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....telemetry.vocabulary import Bucket, Kind, Phase, ProcessState, Scope, Severity
from ...finding_document import FindingBody
from ...operator import Context
from ..findings.finding_body import body, evidence, ruled_out, source_of, stands, suspect
from ..findings.register import open_finding, replace_finding
from ..findings.wording import duration_words, phase_word, ranks_words
from ..intake.progress import last_moves_ns
from ..intake.wait_thresholds import longest_here_ns, waited_ns
from ..state.job_state import FRESH_NS, JobState
from .hang_report import BY_DESIGN, MOTION_SIGNAL, threshold_evidence
from .urgency import IO_TIMES_LONGEST, PAGE_TIMES_LONGEST, Ladder, Motion, is_graver, ladder, motion_of

FLOOR_NS = 10_000_000_000
#: The same of processes that provably do nothing.
STILL_NS = 7_000_000_000
STEPS_OF_PATIENCE = 4
TIMES_LONGEST = 2.0
#: In the order of a step. A rank further back than another, in the same step, has yet to do what that one has done.
_ORDER = {Phase.DATA: 0, Phase.FORWARD: 1, Phase.BACKWARD: 2, Phase.OPTIMIZER: 3}
#: Where no rank stays for its own sake; between steps, and behind the last one, a script may do what it likes.
_IN_STEP = frozenset({Phase.DATA, Phase.FORWARD, Phase.BACKWARD})
_MOVES = (ProcessState.RUNNING, ProcessState.SLEEPING, ProcessState.DISK_WAIT, ProcessState.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Ranks that all stand still. behind: the one that stands elsewhere, -1 nobody; since_ns: when the last came to
    stand.
    """

    behind: int
    others: tuple[int, ...]
    age_ns: int
    since_ns: int


def judge_standstill(job: JobState, now: int, ctx: Context) -> None:
    """Opens a finding on ranks that stand still with no operation open for long enough, or makes the open one graver.

    To be called when no operation has been open for long, and nothing or only a wait is told of this attempt.
    """
    found = find_standstill(job)
    if found is None:
        return
    judged = found.others if found.behind < 0 else (found.behind,)
    motions = {rank: motion_of(job, rank) for rank in judged}
    motion = next(each for each in (Motion.MOVES, Motion.IN_IO, Motion.STILL) if each in motions.values())
    steps = _ladder(job, found, motion)
    severity = steps.severity(found.age_ns, motion)
    if severity is None:
        return
    body_now = standstill_body(job, found, severity, motion, now, limit_ns=steps.limit_ns(severity, motion))
    rank = found.behind if found.behind >= 0 else min(found.others)
    row = job.progress.row_of(rank)
    place = f"outside:{int(row['step']) if row is not None else -1}"
    finding = job.findings.noticed_wait()
    if finding is None:
        open_finding(job, ctx, now, kind=Kind.RANK_NOT_ENTERED, place=place, body=body_now)
    elif is_graver(severity, finding.body.severity):
        replace_finding(job, ctx, now, finding, kind=Kind.RANK_NOT_ENTERED, body=body_now)


def find_standstill(job: JobState) -> Standstill | None:
    """How all ranks stand still; None while any rank moves, cannot be seen, or has a call open: then
    other rules speak.
    """
    seen = job.progress.stamps > 0
    if not seen.any() or int(job.progress.rows["phase_age_ns"][seen].min()) < STILL_NS:
        return None  # cheap, and nearly always the answer
    ranks = job.alive()
    if len(ranks) < 2 or len(ranks) < job.world_size or job.blind_ranks:
        return None
    if not _step_ns(job) and not _repeats_without_steps(job):
        return None
    if any(job.ranks[rank].stopped_ns for rank in ranks) or (job.groups.rows["open"] != 0).any():
        return None
    newest = int(job.progress.stamps.max())
    places: dict[int, tuple[int, int]] = {}
    for rank in ranks:
        row = job.progress.row_of(rank)
        if row is None or job.progress.stamps[rank] < newest - FRESH_NS or row["process_state"] not in _MOVES:
            return None
        places[rank] = (int(row["step"]), int(row["phase"]))
    if min(step for step, _ in places.values()) < 1 and not _repeats_without_steps(job):
        return None
    behind = _one_behind(places) if job.steps.are_seen() else -1
    others = tuple(rank for rank in ranks if rank != behind)
    moved_ns = last_moves_ns(job)
    stood_ns = job.progress.rows["read_ns"] - moved_ns
    age_ns = min(waited_ns(job, int(stood_ns[rank]), rank) for rank in ranks)
    return Standstill(behind=behind, others=others, age_ns=age_ns, since_ns=int(moved_ns[ranks].max()))


def _one_behind(places: Mapping[int, tuple[int, int]]) -> int:
    """The one rank that stands at an earlier place of the program than all others, which share theirs; -1 none."""
    counts = Counter(places.values())
    if len(counts) != 2:
        return -1
    (shared, _), (single, alone) = counts.most_common()
    if alone != 1:
        return -1
    if len(places) == 2 and not _earlier(single, shared):
        single, shared = shared, single
    if not _earlier(single, shared):
        return -1
    return next(rank for rank, place in places.items() if place == single)


def _earlier(one: tuple[int, int], other: tuple[int, int]) -> bool:
    if one[0] != other[0]:
        return one[0] < other[0]
    last = len(_ORDER)
    return _ORDER.get(Phase(one[1]), last) < _ORDER.get(Phase(other[1]), last)


def _ladder(job: JobState, found: Standstill, motion: Motion) -> Ladder:
    """Beyond anything that the phase of the rank in question, or that of each of them, has taken. Nobody is seen to
    wait here, so it takes longer until it is noticed."""
    timeout_s = max((group.timeout_s for group in job.groups.known), default=0.0)
    ranks = found.others if found.behind < 0 else (found.behind,)
    # Without steps of an optimizer nobody knows whether a loop is over: a minute, as wherever nothing is known.
    has_steps = job.steps.are_seen() and not job.inferred
    longest = [longest_here_ns(job, rank) for rank in ranks] if has_steps else [None]
    known = [each for each in longest if each is not None]
    in_step = found.behind >= 0 or not has_steps or all(_is_in_step(job, rank) for rank in ranks)
    steps = ladder(job, max(known) if len(known) == len(longest) and in_step else None, timeout_s)
    usual_ns = max(
        FLOOR_NS if motion is Motion.MOVES else STILL_NS,
        STEPS_OF_PATIENCE * _step_ns(job),
        int(TIMES_LONGEST * max(known, default=0)),
    )
    if not in_step:
        # Between steps, or past the last one, they may do as their script says, and nobody waits for anybody. No
        # time-out will end it either, so a minute in which none of them does anything asks for somebody.
        longest_ns = max(known, default=0)
        page_ns = max(steps.page_ns, int(PAGE_TIMES_LONGEST * longest_ns))
        io_page_ns = min(max(page_ns, IO_TIMES_LONGEST * longest_ns), max(page_ns, steps.moving_page_ns))
        steps = replace(steps, page_ns=page_ns, io_page_ns=io_page_ns)
        usual_ns = max(usual_ns, steps.ticket_ns)
    elif motion is Motion.MOVES and found.behind < 0:
        usual_ns = max(usual_ns, steps.ticket_ns)  # all ranks at work, and nobody waits: as a job does that evaluates
    return replace(steps, notice_ns=max(steps.notice_ns, usual_ns))


def _repeats_without_steps(job: JobState) -> bool:
    """Of a job without steps: whether its calls are known to come again and again."""
    return not job.steps.are_seen() and job.progress.call_gaps.longest_of_all_ns() is not None


def _is_in_step(job: JobState, rank: int) -> bool:
    row = job.progress.row_of(rank)
    return row is not None and Phase(row["phase"]) in _IN_STEP


def _step_ns(job: JobState) -> int:
    """A usual step; of a job that has made only the first few, what its phases have taken at most. 0: none is known."""
    return job.steps.median_length_ns() or sum(int(job.steps.longest_ns[phase]) for phase in _ORDER)


def standstill_body(
    job: JobState, found: Standstill, severity: Severity, motion: Motion, now: int, *, limit_ns: int
) -> FindingBody:
    """The body for ranks that stand still outside collectives. limit_ns: from how long on it is said with this
    severity.
    """
    row = job.progress.row_of(found.behind)
    shown = [found.behind] if row is not None else []
    proof = [
        evidence(
            "progress.standstill",
            source_of(job, rank),
            now,
            f"nothing has moved on any rank for {duration_words(found.age_ns)} and no collective is open, so the ranks "
            f"wait for each other outside torch.distributed; {stands(job, rank)}",
        )
        for rank in (shown or found.others[:1])
    ]
    proof.append(
        evidence("progress", ranks_words(found.others), now, _whereabouts(job, found.others)),
    )
    proof.append(threshold_evidence(job, "that all stand at such a place", limit_ns, severity, now))
    shows = "nothing of it moves" if motion is not Motion.MOVES else "it is not known to stand still: it may be at work"
    source = source_of(job, found.behind) if row is not None else f"job {job.job}"
    proof.append(evidence(MOTION_SIGNAL, source, now, shows, motion.value))
    cleared = []
    if row is not None:
        because = f"have done in this step what rank {found.behind} has yet to do"
        cleared.append(ruled_out(found.others, "stand still", because))
    by_design = row is not None and row["phase"] in BY_DESIGN
    phase = phase_word(row["phase"]) if row is not None else None
    return body(
        job,
        Kind.RANK_NOT_ENTERED,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.JOB if row is None else Scope.APPLICATION if by_design else Scope.RANK,
        severity=severity,
        suspects=[suspect(job, found.behind, 0.8, phase)] if row is not None else [],
        victims=found.others,
        onset_ns=found.since_ns,
        now=now,
        proof=proof,
        cleared=cleared,
        confidence=0.7 if row is not None else 0.4,
        step=int(row["step"]) if row is not None else None,
    )


def _whereabouts(job: JobState, ranks: Sequence[int]) -> str:
    """``"ranks 0-2 stand in phase other of step 41"``."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        row = job.progress.row_of(rank)
        if row is not None:
            places.setdefault(f"in phase {phase_word(row['phase'])} of step {int(row['step'])}", []).append(rank)
    return "; ".join(
        f"{ranks_words(here)} {'stands' if len(here) == 1 else 'stand'} {place}" for place, here in places.items()
    )
