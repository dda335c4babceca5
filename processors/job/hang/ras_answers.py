"""What NCCL's RAS answers becomes a testimony: ranks that are behind in a communicator, processes that do not answer.

RAS knows processes by pid and node as NCCL names them, and ranks by their place in a communicator. A global rank is
known where a pid is of one rank alone, or where the communicator is as large as the job. Who cannot be resolved so is
told in RAS's words, and nobody is named for him.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....diagnosis.nccl_ras import RasFinding, RasProblem
from ....diagnosis.ras_facts import read_ras_facts
from ....telemetry.records import Event
from ....telemetry.vocabulary import Bucket, Kind, Scope
from ...operator import Context
from ..detectors.hang.second_opinion import NamedRank, Testimony
from ..findings.ras_request import ask_ras
from ..findings.register import revise_all
from ..state.job_state import JobState

SIGNAL = "nccl_ras"
#: A rank that RAS finds behind, one that it cannot reach; several alike share it.
_BEHIND, _DEAD = 0.75, 0.6
#: RAS itself lists so few; whoever lists more names nobody.
_MOST_NAMED = 10
_MOST_WORDS = 200


def take_ras(job: JobState, event: Event, stamp_ns: int, ctx: Context) -> None:
    """Takes an NCCL_RAS event; an answer that cannot be read, or none, is a testimony that cannot tell."""
    values = event.attributes
    try:
        found = read_ras_facts(str(values.get("findings", ""))) if values.get("status") == "answered" else ()
        problem = str(values.get("problem") or "")
    except ValueError as wrong:
        found, problem = (), str(wrong)
    if not found and job.findings.witnesses.said.get(SIGNAL) is not None and problem:
        return  # what it has said before is worth more than that it is silent now
    job.findings.witnesses.said[SIGNAL] = testimony_of(job, found, " ".join(problem.split())[:_MOST_WORDS], stamp_ns)
    job.unsaved.facts = True
    revise_all(job, ctx, stamp_ns)


def judge_ras(job: JobState, now: int, ctx: Context) -> None:
    """Asks again where the hang lasts and that is due."""
    due_ns, finding = job.findings.witnesses.ras_due_ns, job.findings.stopping()
    if not due_ns or finding is None or finding.body.bucket is not Bucket.COMMUNICATION_HANG or job.ends.finished_ns:
        return
    if now < due_ns:
        job.schedule(due_ns)
    else:
        ask_ras(job, ctx, now, finding)


def testimony_of(job: JobState, found: Sequence[RasFinding], problem: str, stamp_ns: int) -> Testimony:
    """What RAS says of the job. problem: why it says nothing, "" where it does. stamp_ns: when, by the bus."""
    named: dict[int, NamedRank] = {}
    words: list[str] = []
    for finding in found:
        ranks = sorted(_ranks(job, finding))
        what = f"communicator {finding.communicator}" if finding.communicator else "a process"
        words.append(f"{finding.problem.value} {what}: {finding.says}" if finding.says else finding.problem.value)
        if finding.problem is RasProblem.TIMEOUT or not 0 < len(ranks) <= _MOST_NAMED:
            continue
        is_behind = finding.problem is RasProblem.MISMATCH
        because = f"is behind in {what}" if is_behind else f"does not answer RAS ({finding.problem.value} in {what})"
        probability = (_BEHIND if is_behind else _DEAD) / len(ranks)
        for rank in ranks:
            known = named.get(rank)
            if known is None or known.probability < probability:
                named[rank] = NamedRank(rank, round(probability, 3), because)
    summary = "; ".join(words[:3]) or problem or "finds no rank behind and no process that does not answer"
    told = tuple(sorted(named.values(), key=lambda one: (-one.probability, one.rank)))[:_MOST_NAMED]
    return Testimony(
        signal=SIGNAL,
        source="NCCL's RAS",
        summary=summary[: 2 * _MOST_WORDS],
        kind=Kind.RANK_NOT_ENTERED if told else None,
        scope=Scope.RANK if told else None,
        named=told,
        confidence=max((one.probability for one in told), default=0.0),
        written_ns=stamp_ns,
    )


def _ranks(job: JobState, finding: RasFinding) -> Iterator[int]:
    """Global ranks of those that a finding lists, as far as they are known."""
    if finding.size and finding.size == job.world_size:
        yield from (rank for rank in finding.ranks if rank in job.ranks)
        return
    for process in finding.processes:
        of_pid = [rank for rank, facts in job.ranks.items() if process.pid and facts.pid == process.pid]
        if len(of_pid) == 1:
            yield of_pid[0]
