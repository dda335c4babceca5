"""Findings about ranks for which the others wait before there is a process group: information first, then a page.

Start-up may take long for good reasons (an image is pulled, a container starts), so first it is only said who waits for
whom; what remains when most of the time-out is gone ends the job and becomes a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....telemetry.vocabulary import Bucket, Kind, Phase, Scope, Severity
from ...finding_document import FindingBody
from ...operator import Context
from ..findings.finding_body import body, evidence, ruled_out, share, source_of, stands, suspect
from ..findings.register import clear_finding, open_finding, replace_finding
from ..findings.wording import duration_words, ranks_words
from ..intake.wait_thresholds import DEFAULT_TIMEOUT_S, SHARE_OF_TIMEOUT
from ..state.job_state import JobState

TOLD_NS = 25_000_000_000
#: Every node sends progress each second, and each look goes over all ranks of the world.
LOOK_NS = 900_000_000
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """Ranks that others wait for before there is a group. missing: those that have not called init_process_group.

    waiting: those that have, and stand in it. age_ns: how long the first of them has waited; timeout_ns: after which
    wait the first of them gives up.
    """

    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    since_ns: int
    age_ns: int
    timeout_ns: int

    @property
    def told_after_ns(self) -> int:
        """How long the first rank must have waited before it is told, as information."""
        return min(TOLD_NS, self.paged_after_ns)

    @property
    def paged_after_ns(self) -> int:
        """How long the first rank must have waited for a page: a share of the time-out after which torch gives up."""
        return int(SHARE_OF_TIMEOUT * self.timeout_ns)


def judge_joining(job: JobState, now: int, ctx: Context) -> None:
    """Opens a finding on ranks the others have waited for in init_process_group for long; tells it anew when it becomes
    a page.

    Looks at most each LOOK_NS, and not once steps are seen.
    """
    if not job.world_size or job.steps.are_seen() or now - job.progress.joining_looked_ns < LOOK_NS:
        return
    job.progress.joining_looked_ns = now
    stopping = job.findings.stopping()
    if stopping is not None and stopping.kind != Kind.RANK_NEVER_JOINED.value:
        return
    joining = find_joining(job)
    if joining is None:
        return
    severity = Severity.PAGE if joining.age_ns >= joining.paged_after_ns else Severity.INFO
    if stopping is not None:
        told = (stopping.suspects, stopping.body.severity)
        if told != (list(joining.missing), severity):
            replace_finding(
                job,
                ctx,
                now,
                stopping,
                kind=Kind.RANK_NEVER_JOINED,
                body=never_joined_body(job, joining, severity, now),
            )
    elif joining.age_ns >= joining.told_after_ns:
        body_now = never_joined_body(job, joining, severity, now)
        place = f"ranks {joining.missing[0]}"
        open_finding(job, ctx, now, kind=Kind.RANK_NEVER_JOINED, place=place, body=body_now)


def end_joining(job: JobState, now: int, ctx: Context) -> None:
    """To be called after a rank has come: clears findings of ranks that never joined once all of them have."""
    for finding in job.findings.of_kind(Kind.RANK_NEVER_JOINED):
        left = [rank for rank in finding.suspects if not has_come(job, rank)]
        if not left:
            came = ranks_words(finding.suspects)
            clear_finding(job, ctx, now, finding, f"{came} {'has' if len(finding.suspects) == 1 else 'have'} come")


def find_joining(job: JobState) -> Joining | None:
    """Who waits in init_process_group and for whom; None: nobody waits, all have come, or none has."""
    says = _says_when_joining(job)
    absent = [rank for rank in range(job.world_size) if not _has_come(job, rank, says=says)]
    unseen = job.nodes.are_missing()  # then who was never seen may be on a node from which nothing comes
    missing = tuple(rank for rank in absent if not unseen or rank in job.ranks)
    if not missing or len(absent) == job.world_size:
        return None
    waits: list[tuple[int, int, int]] = []  # rank, since, read
    is_missing = frozenset(missing)
    for rank in job.alive():
        row, facts = job.progress.row_of(rank), job.ranks[rank]
        if row is None or rank in is_missing or facts.joined:
            continue
        if facts.joining_ns:
            waits.append((rank, facts.joining_ns, int(row["read_ns"])))
        elif row["phase"] == int(Phase.INIT) and not says:
            waits.append((rank, int(row["read_ns"]) - int(row["phase_age_ns"]), int(row["read_ns"])))
    if not waits:
        return None
    timeouts = [job.ranks[rank].join_timeout_s or DEFAULT_TIMEOUT_S for rank, _, _ in waits]
    return Joining(
        missing=missing,
        waiting=tuple(rank for rank, _, _ in waits),
        since_ns=min(since for _, since, _ in waits),
        age_ns=max(read - since for _, since, read in waits),
        timeout_ns=int(min(timeouts) * 1e9),
    )


def has_come(job: JobState, rank: int) -> bool:
    """Whether the rank has called init_process_group, or left, or did what only members of a group do."""
    return _has_come(job, rank, says=_says_when_joining(job))


def _has_come(job: JobState, rank: int, *, says: bool) -> bool:
    facts = job.ranks.get(rank)
    if facts is None:
        return False
    if facts.joining_ns or facts.exited_ns or not says:
        return True
    row = job.progress.row_of(rank)
    return row is not None and (int(row["step"]) >= 1 or row["phase"] != int(Phase.INIT))


def _says_when_joining(job: JobState) -> bool:
    """An instrumentation that tells of init_process_group (older ones do not)."""
    return any(facts.joining_ns for facts in job.ranks.values())


def never_joined_body(job: JobState, joining: Joining, severity: Severity, now: int) -> FindingBody:
    """The body for ranks that do not come to init_process_group, in which others wait."""
    missing, waiting = joining.missing, joining.waiting
    verb = "waits" if len(waiting) == 1 else "wait"
    proof = [
        evidence(
            "rank.joining",
            source_of(job, rank),
            now,
            f"rank {rank} has not called init_process_group, in which {ranks_words(waiting)} {verb} since "
            f"{duration_words(joining.age_ns)}; {_whereabouts(job, rank)}",
        )
        for rank in missing[:_MOST_SHOWN]
    ]
    left_ns = max(0, joining.timeout_ns - joining.age_ns)
    proof.append(
        evidence(
            "rank.joining.timeout",
            f"job {job.job}",
            now,
            f"{len(missing)} of {job.world_size} ranks are missing; the others give up after "
            f"{duration_words(joining.timeout_ns)}, in {duration_words(left_ns)}",
        )
    )
    return body(
        job,
        Kind.RANK_NEVER_JOINED,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.RANK,
        severity=severity,
        suspects=[suspect(job, rank, share(missing), "init") for rank in missing],
        victims=waiting,
        onset_ns=joining.since_ns,
        now=now,
        proof=proof,
        cleared=[ruled_out(waiting, "stands in init", f"has come and waits for {ranks_words(missing)}")],
        confidence=_confidence(missing),
    )


def _confidence(missing: Sequence[int]) -> float:
    return 0.9 if len(missing) == 1 else 0.7


def _whereabouts(job: JobState, rank: int) -> str:
    if rank in job.ranks:
        return stands(job, rank)
    return "no process of it has imported torch where we can see it: not started, or still at its first lines"
