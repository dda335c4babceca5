"""What a finding says of ranks that did not do the same thing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ...finding_document import FindingBody
from ..detectors.desync.matching import Divergence, Member, Mismatch, Signature, comparable
from ..findings.finding_body import body, evidence, ruled_out, share, source_of, suspect
from ..findings.wording import bytes_words, op_word, phase_word, ranks_words
from ..state.job_state import JobState


def mismatch_body(job: JobState, mismatch: Mismatch, divergence: Divergence, now: int) -> FindingBody:
    """The body for members of a group that called different operations at one sequence number. now: Unix ns."""
    guilty = divergence.guilty
    members = {member.rank: member for member in mismatch.members}
    name = job.groups.name_of(mismatch.group)
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
        suspects=[suspect(job, rank, share(guilty), phase_word(members[rank].phase)) for rank in guilty],
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
) -> FindingBody:
    """The body for ranks that called a group's collectives more or less often in a step than the others.

    counts: calls by rank; guilty: who is blamed. onset_ns, now: Unix.
    """
    name = job.groups.name_of(group)
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
        suspects=[suspect(job, rank, share(guilty)) for rank in guilty],
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


def call_words(signature: Signature, dtype: bool = False) -> str:
    """A call in words: ``all_reduce of 4,096 bytes with root 0``. dtype: name it too, where calls differ in nothing
    else.
    """
    op, size, kind, peer = signature
    words = op_word(op)
    if size >= 0:
        words += f" of {bytes_words(size)}" + (f" (dtype {kind})" if dtype else "")
    return words + (f" with root {peer}" if peer >= 0 else "")


def _usual_op(members: Sequence[Member], divergence: Divergence, first: Member) -> int:
    """The operation that should have been there."""
    if divergence.expected is not None:
        return divergence.expected[0]
    return next((member.op for member in members if member.rank in divergence.innocent), first.op)
