"""The fields of a finding that all kinds share: suspects, evidence, ruled-out ranks, coverage. Pure.

Every sentence names ranks, numbers and times that were recorded, in words a person can check at three in the morning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ....telemetry.evidence_facts import EvidenceFact
from ....telemetry.ring_layout import format_ranks
from ....telemetry.trust import trust_of_signal
from ....telemetry.vocabulary import Bucket, Kind, ProcessState, Scope, Severity
from ...finding_document import (
    CodePlace,
    EvidenceRow,
    FindingBody,
    FindingTimes,
    FirstBadPlace,
    JobReference,
    RuledOutEntry,
    SuspectEntry,
    Value,
)
from ..state.job_state import JobState
from .wording import duration_words, op_word, phase_word, process_words, ranks_words, seconds

STALE_NS = 2_000_000_000
#: Of thousands of suspects, a whole pipeline stage, so many are named one by one, and all in words: a message of the
#: bus holds a megabyte.
MOST_SUSPECTS = 256


def evidence(
    signal: str, source: str, time_ns: int, shows: str, value: Value | None = None, *, fact: EvidenceFact | None = None
) -> EvidenceRow:
    """A row of evidence. time_ns: Unix; shows: the sentence for people; value: a number or text beside it, or None.

    fact: what the sentence was made of, for programs; none reads the sentence.
    """
    return EvidenceRow(
        signal=signal,
        source=source,
        time_s=seconds(time_ns),
        shows=shows,
        value=value,
        fact=fact,
        trust=trust_of_signal(signal),
    )


def source_of(job: JobState, rank: int) -> str:
    """The rank as the source of evidence: ``rank 3 (pid 4711) on node-1``, as far as that is known."""
    facts = job.ranks.get(rank)
    row = job.progress.row_of(rank)
    pid = facts.pid if facts and facts.pid else int(row["pid"]) if row is not None else 0
    return f"rank {rank}" + (f" (pid {pid})" if pid else "") + (f" on {facts.node}" if facts and facts.node else "")


def ruled_out(ranks: Iterable[int], looks_guilty: str, because: str) -> RuledOutEntry:
    """A row for ranks that only look guilty, named as ranges. looks_guilty, because: ends of sentences, for people."""
    members = sorted(set(ranks))
    return RuledOutEntry(
        who=ranks_words(members), ranks=format_ranks(members), looks_guilty=looks_guilty, because=because
    )


def suspect(job: JobState, rank: int, probability: float, phase: str | None = None) -> SuspectEntry:
    """A suspect for a rank, with what is known of its process. phase: where its program was, None unknown."""
    facts, row = job.ranks.get(rank), job.progress.row_of(rank)
    pid = facts.pid if facts and facts.pid else int(row["pid"]) if row is not None else 0
    return SuspectEntry(
        scope=Scope.RANK,
        id=str(rank),
        rank=rank,
        node=facts.node or None if facts else None,
        gpu=facts.gpu or None if facts else None,
        pid=pid or None,
        where=CodePlace(phase=phase) if phase else None,
        probability=round(probability, 3),
    )


def node_suspect(name: str, ranks: Sequence[int]) -> SuspectEntry:
    """A suspect for a whole node, blamed with 0.95 in place of its ranks."""
    return SuspectEntry(scope=Scope.NODE, id=name, node=name, probability=0.95, ranks=format_ranks(list(ranks)))


def body(
    job: JobState,
    kind: Kind,
    *,
    bucket: Bucket,
    scope: Scope,
    severity: Severity,
    suspects: Sequence[SuspectEntry],
    onset_ns: int,
    now: int,
    proof: Sequence[EvidenceRow],
    confidence: float,
    cleared: Sequence[RuledOutEntry] = (),
    victims: Iterable[int] | None = None,
    step: int | None = None,
    group: int | None = None,
    seq: int | None = None,
    op: int | None = None,
) -> FindingBody:
    """A finding of this job, with what all findings say alike. onset_ns, now: Unix.

    cleared: ranks ruled out; victims: None for all ranks but the suspects; step, group, seq, op: the first bad place,
    as far as known. confidence: lowered where not all ranks are seen.
    """
    blamed = {item.rank for item in suspects}
    hurt = sorted(set(job.ranks if victims is None else victims) - blamed)
    expected = job.world_size or len(job.ranks)
    # Time stands still while the rings of a killed run are read, and another node's clock may be ahead of ours.
    seen_ns = max(now, onset_ns)
    return FindingBody(
        bucket=bucket,
        kind=kind,
        scope=scope,
        severity=severity,
        suspects=_spread(suspects),
        victim_count=len(hurt),
        victims=format_ranks(hurt),
        ranks_seen=len(job.ranks) - len(job.hidden_ranks()),
        ranks_expected=expected,
        first_bad=FirstBadPlace(
            step=step if step is not None and step >= 0 else None,
            group=job.groups.name_of(group) if group is not None and group >= 0 else None,
            sequence=seq,
            operation=op_word(op) if op else None,
        ),
        times=FindingTimes(onset_s=seconds(onset_ns), detected_s=seconds(seen_ns), attributed_s=seconds(seen_ns)),
        evidence=tuple(proof),
        ruled_out=tuple(cleared),
        confidence=round(min(confidence, _coverage_limit(job)), 3),
        job=JobReference(
            run=job.run or None,
            id=job.job,
            name=job.name or None,
            attempt=job.attempt or None,
            now="stopped" if job.ends.finished_ns else "running",
        ),
    )


def _spread(suspects: Sequence[SuspectEntry]) -> tuple[SuspectEntry, ...]:
    """All, or as many as are named from the first to the last of them; then these share what all had."""
    count = len(suspects)
    if count <= MOST_SUSPECTS:
        return tuple(suspects)
    chosen = [suspects[place * (count - 1) // (MOST_SUSPECTS - 1)] for place in range(MOST_SUSPECTS)]
    return tuple(replace(item, probability=round(1.0 / MOST_SUSPECTS, 3)) for item in chosen)


def stands(job: JobState, rank: int) -> str:
    """What a rank does by its newest progress row, for people, or that it has left or was never seen.

    ``"rank 2 is in phase forward since 4.3 s, process sleeping (S), heartbeat fresh"``
    """
    row, facts = job.progress.row_of(rank), job.ranks.get(rank)
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


def share(ranks: Sequence[int]) -> float:
    """Probability of each of several suspects alike; a single one is blamed with 0.95."""
    return 0.95 if len(ranks) == 1 else 1.0 / max(1, len(ranks))


def _coverage_limit(job: JobState) -> float:
    """Unseen ranks leave room for another cause."""
    expected = job.world_size or len(job.ranks) or 1
    return 0.5 + 0.49 * min(1.0, (len(job.ranks) - len(job.hidden_ranks())) / expected)
