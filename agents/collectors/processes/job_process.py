"""A rank's process, as collectors are told of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcess:
    """pid: in the agent's PID namespace. job: id of the job, empty if unknown. rank: -1 of a launcher."""

    pid: int
    job: str = ""
    rank: int = -1
