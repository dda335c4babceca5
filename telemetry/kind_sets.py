"""Kinds of incidents that are asked for together, each set once: who adds a kind decides here what it belongs to."""

from __future__ import annotations

from .vocabulary import Kind

#: After these the attempt does not go on: only one of them is ever open per attempt, the rest follows from it.
STOPPING_KINDS = frozenset(
    {
        Kind.RANK_DIED,
        Kind.RANK_RAISED,
        Kind.RANK_STOPPED,
        Kind.RANK_NOT_ENTERED,
        Kind.RANK_NEVER_JOINED,
        Kind.DESYNC,
        Kind.DEADLOCK,
        Kind.NODE_LOST,
        Kind.COLLECTIVE_STALLED,
    }
)
#: Of them those that begin as a wait.
WAIT_KINDS = frozenset({Kind.RANK_NOT_ENTERED, Kind.DEADLOCK, Kind.COLLECTIVE_STALLED})
#: Of them those that are concluded from somebody's waiting: what is seen directly explains it.
CONCLUDED_FROM_WAITS = frozenset({Kind.RANK_NOT_ENTERED, Kind.RANK_NEVER_JOINED, Kind.COLLECTIVE_STALLED})
#: Of them those that no node can cause: the program's ranks disagree.
PROGRAM_DEFECT_KINDS = frozenset({Kind.DESYNC, Kind.DEADLOCK})
#: The job goes on, slower.
SPEED_KINDS = frozenset({Kind.RANK_SLOW, Kind.SLOW_TOGETHER})
#: The job goes on, and what it does is not kept.
SAVE_KINDS = frozenset({Kind.CHECKPOINT_FAILED, Kind.CHECKPOINT_UNFINISHED, Kind.EMERGENCY_SAVE_MISSED})
NUMERIC_KINDS = frozenset({Kind.NUMERIC_FIRST_RANK, Kind.NUMERIC_ALL})
