"""How many collectives each member of a group called in a step: who left the pattern, whether anybody waits or not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ....telemetry.tables import NO_GROUP
from ..columns.rows import pick
from ..detectors.desync.matching import short_steps
from ..state.job_state import JobState

#: Steps in which all members agreed before a difference means something.
EVEN_STEPS = 3
#: Of a step and a sequence number in one number; more than those that come together differ by.
_SEQ_BITS = 28
_SEQ_MASK, _STEP_MASK = (1 << _SEQ_BITS) - 1, (1 << 48 - _SEQ_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortStep:
    """Members of a group that called different numbers of collectives in one step. guilty: who left the pattern."""

    group: int
    step: int
    counts: dict[int, int]
    guilty: tuple[int, ...]
    onset_ns: int


def differ_in_count(job: JobState, rows: np.ndarray) -> bool:
    """Whether members of a group tell different sequence numbers after the same step, in a group that was even for some
    steps.

    rows: (n,) of STEP_GROUPS that came together. Cheap, for it is asked of every message.
    """
    if rows.size < 2:
        return False
    group, step, seq = rows["group"].astype(np.int64), rows["step"], rows["last_seq"]
    key = (group << 48) | ((step & _STEP_MASK) << _SEQ_BITS) | (seq & _SEQ_MASK)
    key.sort()
    change = key[1:] ^ key[:-1]  # below the step's bits: of the sequence number alone
    if not ((change > 0) & (change <= _SEQ_MASK)).any():
        return False
    place = (group << 44) + step
    order = place.argsort(kind="stable")
    place, seq = place[order], seq[order]
    differ = (place[1:] == place[:-1]) & (seq[1:] != seq[:-1])
    groups = rows["group"][order][1:][differ].tolist()
    return any(job.steps.even_steps.get(group, 0) >= EVEN_STEPS for group in groups)


def check_counts(job: JobState, horizon: int, blind: Collection[tuple[int, int]]) -> ShortStep | None:
    """The first step whose members called a group's collectives differently often, where they were even before; else
    None.

    Takes the rows up to step ``horizon`` out of what is kept, and remembers their counts. blind: (group, rank) pairs.
    """
    rows = job.open_steps.group_counts.all()
    done = rows["step"] <= horizon
    left = pick(rows, ~done)
    # What comes in after its step was closed (a rank far behind the others) has nothing left to be compared with.
    rows = pick(rows, done & (rows["group"] != NO_GROUP) & (rows["step"] > job.steps.closed_step))
    job.open_steps.group_counts.keep(left)
    if not rows.size:
        return None
    place = ((rows["step"] - rows["step"].min()) << 16) | rows["group"]  # numpy sorts one number several times faster
    order = place.argsort(kind="stable")
    rows, place = pick(rows, order), place[order]
    first = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1]]))
    last_seq = np.ascontiguousarray(rows["last_seq"])
    low, high = np.minimum.reduceat(last_seq, first), np.maximum.reduceat(last_seq, first)
    even = low == high
    groups = rows["group"][first]
    if even.all():
        _remember_counts(job, groups, low)
        return None
    found: ShortStep | None = None
    for start, end, equal in zip(first, np.append(first[1:], rows.size), even, strict=True):
        members = rows[start:end]
        if equal:
            _remember_counts(job, members["group"][:1], members["last_seq"][:1])
        elif found is None and job.steps.even_steps.get(int(members["group"][0]), 0) >= EVEN_STEPS:
            found = _judge_counts(job, int(members["group"][0]), int(members["step"][0]), members, blind)
        else:
            job.steps.even_steps[int(members["group"][0])] = 0
    return found


def _remember_counts(job: JobState, groups: np.ndarray, last_seqs: np.ndarray) -> None:
    """groups, last_seqs: one per step and group, steps in order, all members alike."""
    of_group: dict[int, list[int]] = {}
    for group, last_seq in zip(groups.tolist(), last_seqs.tolist(), strict=True):
        of_group.setdefault(group, []).append(last_seq)
    for group, seqs in of_group.items():
        before = seqs[-2] if len(seqs) > 1 else job.steps.last_seqs.get(group, seqs[-1])
        job.steps.even_steps[group] = job.steps.even_steps.get(group, 0) + len(seqs)
        job.steps.usual_counts[group] = seqs[-1] - before
        job.steps.last_seqs[group] = seqs[-1]


def _judge_counts(
    job: JobState, group: int, step: int, members: np.ndarray, blind: Collection[tuple[int, int]]
) -> ShortStep | None:
    before = job.steps.last_seqs.get(group, 0)
    members = pick(members, members["rank"].argsort(kind="stable"))
    counts = {
        int(row["rank"]): int(row["last_seq"]) - before for row in members if (group, int(row["rank"])) not in blind
    }
    usual = job.steps.usual_counts.get(group)
    guilty = short_steps(counts, usual)
    job.steps.even_steps[group] = 0
    if usual is not None and max(counts.values(), default=0) - min(counts.values(), default=0) >= max(usual, 2):
        return None  # a whole step's worth: some have made more steps than others, as uneven inputs may have it
    if not guilty:
        return None
    return ShortStep(group=group, step=step, counts=counts, guilty=guilty, onset_ns=0)
