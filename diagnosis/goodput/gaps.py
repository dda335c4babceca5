"""What the time between two steps was that lie further apart than steps do: a fault, an end, a start.

The moments are those of one interruption in NVIDIA's cost model (detection, shutdown, restart): onset <= detected <=
first process gone <= last process gone <= first process of the next attempt <= its first step. Any may be unknown (0).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...telemetry.vocabulary import TimeBucket
from .partition import Claim, Piece, partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Unix ns, 0 unknown. cause: the finding that names the fault.

    asked_ns: when somebody asked for the stop. finished: the job had done what it was to do, or was stopped for good.
    restarted_ns: when the first process of the next attempt began. is_first: nothing ran before; was_over: the job had
    ended, and was started once more. worked: a step was under way. save_begin_ns, save_end_ns: of a checkpoint that was
    written after the last step; end 0: it was never whole. evaluation_begin_ns, evaluation_end_ns: the same. calls_ns:
    when the ranks of an attempt without steps made their first call: since then they do what nobody can tell.
    """

    cause: str = ""
    onset_ns: int = 0
    detected_ns: int = 0
    asked_ns: int = 0
    first_exit_ns: int = 0
    last_exit_ns: int = 0
    restarted_ns: int = 0
    is_first: bool = False
    was_over: bool = False
    worked: bool = True
    finished: bool = False
    save_begin_ns: int = 0
    save_end_ns: int = 0
    evaluation_begin_ns: int = 0
    evaluation_end_ns: int = 0
    calls_ns: int = 0


def classify_gap(begin_ns: int, end_ns: int, moments: Moments) -> list[Piece]:
    """Divides [begin_ns, end_ns) (Unix) into pieces by what the job did: fault, shutdown, restart, checkpoint and so
    on.

    begin_ns: the end of the last step, or of what was accounted for before.
    """
    m = moments
    gone = m.last_exit_ns or m.first_exit_ns
    if m.is_first or m.was_over:
        queued = [Claim(begin_ns, m.restarted_ns, TimeBucket.QUEUED, rank=1)] if m.was_over else []
        return partition(begin_ns, end_ns, [*queued, Claim(begin_ns, end_ns, TimeBucket.STARTING)])
    unfinished = TimeBucket.REWORK if m.worked else TimeBucket.STARTING
    is_fault = bool(m.onset_ns) and not (m.asked_ns and m.asked_ns < m.onset_ns)
    claims: list[Claim] = []
    if is_fault:
        detected = max(m.detected_ns, m.onset_ns) if m.detected_ns else gone or m.restarted_ns or end_ns
        leaves = max(m.first_exit_ns, detected) if m.first_exit_ns else m.restarted_ns or end_ns
        claims = [
            # The work of a step that never ended.
            Claim(begin_ns, m.onset_ns, unfinished, m.cause, rank=5),
            Claim(m.onset_ns, detected, TimeBucket.FAULT_BEFORE_DETECTION, m.cause, rank=4),
            Claim(detected, leaves, TimeBucket.FAULT_AFTER_DETECTION, m.cause, rank=3),
            Claim(leaves, gone, TimeBucket.SHUTDOWN, m.cause, rank=2),
            Claim(begin_ns, end_ns, TimeBucket.RESTARTING, m.cause),
        ]
    else:
        after = TimeBucket.PLANNED if m.asked_ns else TimeBucket.RESTARTING
        if m.asked_ns:
            claims.append(Claim(begin_ns, m.asked_ns, unfinished, m.cause, rank=3))
        if gone:
            claims.append(Claim(begin_ns, gone, TimeBucket.SHUTDOWN, m.cause, rank=2))
        if m.finished:
            claims.append(Claim(begin_ns, end_ns, TimeBucket.SHUTDOWN, m.cause))
        elif m.restarted_ns:
            claims += [
                Claim(begin_ns, m.restarted_ns, after, m.cause, rank=1),
                Claim(m.restarted_ns, end_ns, TimeBucket.RESTARTING, m.cause),
            ]
        else:
            claims.append(Claim(begin_ns, end_ns, after, m.cause))
    stands = min((ns for ns in (m.onset_ns, m.asked_ns, m.first_exit_ns) if ns), default=end_ns)
    for bucket, at_ns, until_ns in (
        (TimeBucket.PLANNED, m.evaluation_begin_ns, m.evaluation_end_ns),
        (TimeBucket.CHECKPOINT_SAVE, m.save_begin_ns, m.save_end_ns),
    ):
        if at_ns:
            claims.append(Claim(at_ns, min(until_ns or stands, stands), bucket, rank=6))
    if m.calls_ns and not m.worked:
        claims += [
            Claim(begin_ns, min(m.calls_ns, stands), TimeBucket.STARTING, rank=7),
            Claim(max(begin_ns, m.calls_ns), stands, TimeBucket.UNKNOWN, rank=7),
        ]
    # A process of the next attempt that began before the last of the old one was gone does not shorten the shutdown.
    return partition(begin_ns, end_ns, [claim for claim in claims if claim.end_ns > claim.begin_ns])
