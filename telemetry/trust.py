"""Who says something, as far as it matters whether a user could have written it. Standard library only."""

from __future__ import annotations

from enum import Enum


class IdBy(str, Enum):
    """Who says that a job has its id."""

    #: The control group or the step daemon that root has put the rank's process into, or kubelet's folder of its pod.
    KERNEL = "kernel"
    #: Slurm itself, asked for that job: it belongs to this user.
    SCHEDULER = "scheduler"
    #: Only the rank's environment says that this is a scheduler's id: nothing is ever done to a job of that id.
    CLAIMED = "claimed"
    #: A name that people or a launcher chose: no scheduler has a job of this id as far as we know.
    NAMED = "named"


class Trust(str, Enum):
    """Where a signal comes from, and so who could have written it."""

    KERNEL = "kernel"
    DRIVER = "driver"
    #: Measured by an agent or an exporter: of processes, mounts, ports, counters.
    AGENT = "agent"
    SCHEDULER = "scheduler"
    #: Text that a user's process wrote: lines of its log, what it raised, a log file that any user can add to.
    USER = "user"


#: Of the signals of a job's own findings. What ranks tell of themselves comes through rings and stacks of the user's
#: processes. The longest beginning counts.
_SIGNALS = {
    "rank.exit": Trust.AGENT,
    "rank.unseen": Trust.AGENT,
    "peer": Trust.AGENT,
    "process": Trust.AGENT,
    "rank": Trust.USER,
    "steps": Trust.USER,
    "collectives": Trust.USER,
    "progress": Trust.USER,
    "flight_recorder": Trust.USER,
    "nccl_ras": Trust.USER,
    "checkpoint": Trust.USER,
    "emergency": Trust.USER,
    "kernel.run_delay": Trust.USER,
}


def trust_of_signal(signal: str) -> Trust | None:
    """Who could have written what a job's finding rests on, by the signal's name; None: the judge says it itself."""
    name = signal
    while name:
        if name in _SIGNALS:
            return _SIGNALS[name]
        name = name.rpartition(".")[0]
    return None
