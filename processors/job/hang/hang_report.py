"""What a finding says of ranks that stand still. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....telemetry.vocabulary import Bucket, Kind, Phase, Scope, Severity
from ...finding_document import EvidenceRow, FindingBody
from ..detectors.hang.wait_graph import Blockage, Wait
from ..findings.finding_body import body, evidence, node_suspect, ruled_out, share, source_of, stands, suspect
from ..findings.wording import duration_words, op_word, phase_word, ranks_words
from ..intake.device_groups import launched_at
from ..intake.progress import last_device_move_ns, last_move_ns
from ..state.job_state import JobState
from ..topology.culprit import whose_slowness
from .urgency import Motion

#: Phases in which a rank that keeps the others waiting does what its script told it to.
BY_DESIGN = frozenset({Phase.EVAL, Phase.CHECKPOINT})

#: What the process of a suspect does while the others wait; its value is a word of ``urgency.Motion``.
MOTION_SIGNAL = "process.motion"
#: A suspect that did anything since then may yet get on; its last move says nothing of the onset.
STANDS_NS = 1_000_000_000


def blockage_body(
    job: JobState,
    kind: Kind,
    blockage: Blockage,
    suspects: Sequence[int],
    threshold_ns: int,
    severity: Severity,
    motions: Mapping[int, Motion],
    now: int,
) -> FindingBody:
    """The body for ranks that others wait for. suspects: not empty; threshold_ns: from which wait on it has this
    severity.

    motions: what each suspect does meanwhile.
    """
    wait = blockage.wait
    onset = _onset(job, kind, wait, suspects)
    waiting = [rank for rank in blockage.waiting if rank not in suspects]
    probability = share(suspects)
    certain = blockage.sort == "missing"
    proof = _waits_for(job, blockage, suspects, waiting, now)
    proof.append(threshold_evidence(job, "a wait at this place", threshold_ns, severity, now))
    proof += [_motion_evidence(job, rank, motions[rank], now) for rank in suspects[:3] if _may_move(job, rank, wait)]
    row = job.progress.row_of(suspects[0])
    step, phase = (int(row["step"]), phase_word(row["phase"])) if row is not None else (None, None)
    by_device = suspects[0] in wait.launched
    launched = launched_at(job, suspects[0], wait.group, wait.seq) if by_device else None
    if launched is not None:
        step, phase = launched[0], phase_word(launched[1])
    by_design = kind is Kind.RANK_NOT_ENTERED and row is not None and row["phase"] in BY_DESIGN and not by_device
    scope = Scope.APPLICATION if by_design or kind is Kind.DESYNC else Scope.RANK
    blamed = [suspect(job, rank, probability, phase) for rank in suspects]
    if by_design and (node := node_that_writes_late(job, suspects)):
        scope, blamed = Scope.NODE, [node_suspect(node, suspects)]
        shows = f"all ranks of {node}, and no others, still write their part of a checkpoint that all nodes write"
        proof.append(evidence("progress.saves", node, now, shows))
    return body(
        job,
        kind,
        bucket=Bucket.IMMEDIATE_CRASH if kind is Kind.RANK_DIED else Bucket.COMMUNICATION_HANG,
        scope=scope,
        severity=severity,
        suspects=blamed,
        victims=waiting,
        onset_ns=onset,
        now=now,
        proof=proof,
        cleared=[ruled_out(waiting, "stands still", f"waits for {ranks_words(suspects)}, directly or through others")],
        confidence=(0.95 if len(suspects) == 1 else 0.6) if certain else 0.4,
        step=step,
        group=wait.group,
        seq=wait.seq,
        op=wait.op,
    )


def _waits_for(
    job: JobState, blockage: Blockage, suspects: Sequence[int], waiting: Sequence[int], now: int
) -> list[EvidenceRow]:
    """Of the first suspects: where each is while the others wait."""
    wait = blockage.wait
    where = _place(job, wait)
    members = set(job.groups.members[wait.group].tolist())
    in_it = [rank for rank in waiting if rank in members] or waiting
    are_in = frozenset(in_it)
    behind = [rank for rank in waiting if rank not in are_in]
    proof: list[EvidenceRow] = []
    for rank in suspects[:3]:
        if rank in wait.launched:
            proof.append(
                evidence("progress.device", source_of(job, rank), now, _device_words(job, rank, wait, waiting))
            )
            continue
        verb = {"missing": "has not entered", "unknown": "may not have entered"}.get(blockage.sort, "is inside")
        proof.append(
            evidence(
                "progress",
                source_of(job, rank),
                now,
                f"rank {rank} {verb} {where}; {ranks_words(in_it)} wait{'s' if len(in_it) == 1 else ''} in it "
                f"since {duration_words(wait.age_ns)}{_behind_words(behind)}; {stands(job, rank)}",
            )
        )
    return proof


def _behind_words(ranks: Sequence[int]) -> str:
    return f", and {ranks_words(ranks)} wait{'s' if len(ranks) == 1 else ''} elsewhere behind them" if ranks else ""


def threshold_evidence(job: JobState, what: str, threshold_ns: int, severity: Severity, now: int) -> EvidenceRow:
    """A row that says from how long on ``what`` is said with this severity. what: begin of a sentence, for people."""
    said = {Severity.PAGE: "is a page", Severity.TICKET: "is a ticket"}.get(severity, "is noticed")
    shows = f"{what} {said} from {duration_words(threshold_ns)} on"
    return evidence("progress.threshold", f"job {job.job}", now, shows, severity.value)


def _may_move(job: JobState, rank: int, wait: Wait) -> bool:
    """Whether what its process does says anything: one that has left does nothing, and a device none of its host."""
    return rank not in wait.launched and not job.has_left(rank) and job.progress.row_of(rank) is not None


def _motion_evidence(job: JobState, rank: int, motion: Motion, now: int) -> EvidenceRow:
    row = job.progress.row_of(rank)
    if motion is not Motion.MOVES and row is not None and int(row["still_ns"]):
        shows = (
            f"rank {rank} has not moved for {duration_words(row['still_ns'])}: its code, CPU time, reads, writes, "
            f"connections and children stand still{', in a system call that waits for data' if row['in_io'] else ''}"
        )
    elif motion is Motion.STILL:
        shows = f"whether the process of rank {rank} does anything is not told by its node's agent"
    else:
        shows = f"rank {rank} is not known to stand still: it may be at work"
    return evidence(MOTION_SIGNAL, source_of(job, rank), now, shows, motion.value)


def node_that_writes_late(job: JobState, suspects: Sequence[int]) -> str:
    """The node whose ranks are exactly the suspects, all in a save, where ranks of other nodes have saved before; ""
    none.

    Who alone saves, or more than others, does what the script says.
    """
    saves, culprit = job.steps.saves, whose_slowness(job, suspects, always=False)
    rows = [job.progress.row_of(rank) for rank in suspects]
    if culprit.scope is not Scope.NODE or any(row is None or row["phase"] != Phase.CHECKPOINT for row in rows):
        return ""
    have_saved = saves.ranks[(saves.own_ns > 0).any(axis=0)].tolist()
    writers = {job.node_of(rank) for rank in have_saved}
    return culprit.node if len(writers) > 1 and culprit.node in writers else ""


def _device_words(job: JobState, rank: int, wait: Wait, waiting: Sequence[int]) -> str:
    return (
        f"the device of rank {rank} has not begun {_place(job, wait)}, which its host has launched: a kernel or copy "
        f"before it in its stream does not end; the devices of {ranks_words(waiting)} stand in it since "
        f"{duration_words(wait.age_ns)}; its host goes on until its launch queue is full ({stands(job, rank)})"
    )


def stall_body(job: JobState, blockage: Blockage, begun: bool, severity: Severity, now: int) -> FindingBody:
    """The body for a collective that all have entered and that does not end.

    begun: everybody is known to be inside; else it may as well be that one device has not come to it.
    """
    wait = blockage.wait
    members = [int(rank) for rank in job.groups.members[wait.group]]
    launched = launched_at(job, wait.rank, wait.group, wait.seq)
    on_device = job.groups.on_device[wait.group]
    if begun:
        who = f"the devices of {ranks_words(members)}" if on_device else ranks_words(members)
        shows = f"{who} are all in {_place(job, wait)} and it does not end"
        because = "has entered; what moves the data between the members does not get on, and nobody sees where"
    else:
        shows = (
            f"{ranks_words(members)} have all launched {_place(job, wait)} and it does not end; which devices have "
            "begun it is not known (TORCH_NCCL_ENABLE_TIMING=1 in the job would tell)"
        )
        because = "has launched it; a kernel that does not end on one device looks like a network that is silent"
    return body(
        job,
        Kind.COLLECTIVE_STALLED,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.LINK if begun else Scope.JOB,
        severity=severity,
        suspects=[],
        onset_ns=wait.since_ns,
        now=now,
        proof=[
            evidence(
                "progress.device" if on_device else "progress",
                ranks_words(members),
                now,
                f"{shows}, since {duration_words(wait.age_ns)}",
            )
        ],
        cleared=[ruled_out(members, "stands still", f"{because}: these remain")],
        confidence=0.7 if begun else 0.4,
        step=launched[0] if launched is not None else None,
        group=wait.group,
        seq=wait.seq,
        op=wait.op,
    )


def exchanges_body(job: JobState, blockage: Blockage, severity: Severity, now: int) -> FindingBody:
    """The body for devices of many ranks (``blockage.suspects``) that may all stand in sends and receives; nobody is
    blamed.
    """
    wait, held = blockage.wait, list(blockage.suspects)
    launched = launched_at(job, wait.rank, wait.group, wait.seq)
    nodes = len({job.node_of(rank) for rank in held})
    shows = (
        f"the devices of {ranks_words(held)}, on {nodes} nodes, have not begun what their hosts have launched, such as "
        f"{_place(job, wait)}, since {duration_words(wait.age_ns)}: each may stand in a send or receive before it, as "
        "nobody tells the ends of these"
    )
    because = (
        "may stand in a send or receive, as others do that have nothing to do with it: what moves the data does not "
        "get on"
    )
    cleared = [ruled_out(held, "stands still", because)]
    if waiting := [rank for rank in blockage.waiting if rank not in held]:
        cleared.append(ruled_out(waiting, "stands still", f"waits for {ranks_words(held)}, directly or through others"))
    return body(
        job,
        Kind.COLLECTIVE_STALLED,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.LINK,
        severity=severity,
        suspects=[],
        onset_ns=wait.since_ns,
        now=now,
        proof=[evidence("progress.device", ranks_words(held), now, shows)],
        cleared=cleared,
        confidence=0.6,
        step=launched[0] if launched is not None else None,
        group=wait.group,
        seq=wait.seq,
        op=wait.op,
    )


def unseen_body(job: JobState, blockage: Blockage, unseen: Sequence[int], now: int) -> FindingBody:
    """The body for ranks that wait for ``unseen``, ranks that cannot be seen from here: nobody is blamed."""
    wait = blockage.wait
    row = job.progress.row_of(wait.rank)
    waiting = list(blockage.waiting)
    shows = (
        f"{ranks_words(waiting)} wait{'s' if len(waiting) == 1 else ''} in {_place(job, wait)} since "
        f"{duration_words(wait.age_ns)}; {ranks_words(unseen)} cannot be seen from here, so nobody is named"
    )
    return body(
        job,
        Kind.RANK_NOT_ENTERED,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.JOB,
        severity=Severity.PAGE,
        suspects=[],
        victims=waiting,
        onset_ns=wait.since_ns,
        now=now,
        proof=[evidence("progress", f"job {job.job}", now, shows)],
        cleared=[ruled_out(waiting, "stands still", f"waits for {ranks_words(unseen)}")],
        confidence=0.4,
        step=int(row["step"]) if row is not None else None,
        group=wait.group,
        seq=wait.seq,
        op=wait.op,
    )


def _onset(job: JobState, kind: Kind, wait: Wait, suspects: Sequence[int]) -> int:
    """Since when it stands still: its own last sign of life.

    The others' waiting says less: in a pipeline they wait before anything is wrong, and elsewhere only once their own
    work is done.
    """
    if kind is not Kind.RANK_NOT_ENTERED or len(suspects) != 1:
        return wait.since_ns
    if suspects[0] in wait.launched:
        return last_device_move_ns(job, suspects[0]) or wait.since_ns
    row, moved_ns = job.progress.row_of(suspects[0]), last_move_ns(job, suspects[0])
    stands_still = row is not None and int(row["read_ns"]) - moved_ns >= STANDS_NS
    return moved_ns if stands_still and moved_ns else wait.since_ns


def cycle_waits(blockage: Blockage, waits: Sequence[Wait]) -> list[Wait]:
    """Those of all open operations that make the cycle of ``blockage``, at most four."""
    return [item for item in waits if item.rank in blockage.cycle and item.missing][:4]


def deadlock_body(
    job: JobState, blockage: Blockage, waits: Sequence[Wait], severity: Severity, now: int
) -> FindingBody:
    """The body for ranks that wait for each other in a cycle. waits: all open operations; up to four
    become evidence.
    """
    wait = blockage.wait
    shown = cycle_waits(blockage, waits)
    row = job.progress.row_of(wait.rank)
    proof = [
        evidence(
            "progress",
            source_of(job, item.rank),
            now,
            f"rank {item.rank} waits in {_place(job, item)} for {ranks_words(item.missing)}, since "
            f"{duration_words(item.age_ns)}",
        )
        for item in shown
    ]
    proof.append(
        evidence(
            "progress.cycle",
            f"job {job.job}",
            now,
            f"{ranks_words(blockage.cycle)} wait for each other in a circle: groups are used in different orders",
        )
    )
    return body(
        job,
        Kind.DEADLOCK,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.APPLICATION,
        severity=severity,
        suspects=[],
        onset_ns=wait.since_ns,
        now=now,
        proof=proof,
        cleared=[
            ruled_out(blockage.cycle, "stands still", "each waits for the others; the order of calls is at fault")
        ],
        confidence=0.9,
        step=int(row["step"]) if row is not None else None,
        group=wait.group,
        seq=wait.seq,
        op=wait.op,
    )


def stopped_body(job: JobState, rank: int, running: Sequence[int], now: int) -> FindingBody:
    """The body for a rank whose process is stopped by a signal. running: ranks that go on, not empty."""
    facts, row = job.facts(rank), job.progress.row_of(rank)
    phase = phase_word(row["phase"]) if row is not None else None
    where = f" in phase {phase} of step {int(row['step'])}" if row is not None else ""
    return body(
        job,
        Kind.RANK_STOPPED,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=Scope.RANK,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, 0.98, phase)],
        onset_ns=facts.stopped_ns,
        now=now,
        proof=[
            evidence(
                "process.state",
                source_of(job, rank),
                facts.stopped_ns,
                f"the process of rank {rank} is stopped (state T){where}, while {ranks_words(running)} "
                f"still run{'s' if len(running) == 1 else ''}",
                "T",
            )
        ],
        cleared=[ruled_out(running, "will wait", f"their processes run; rank {rank}'s does not")],
        confidence=0.98,
        step=int(row["step"]) if row is not None else None,
    )


def _place(job: JobState, wait: Wait) -> str:
    return f"{op_word(wait.op)} {wait.seq} of group {job.groups.name_of(wait.group)}"
