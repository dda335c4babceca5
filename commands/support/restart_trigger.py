"""For what the owner of a job lets ``whichrank run --restarts`` restart it: the words of ``--on``."""

from __future__ import annotations

from enum import Enum


class Trigger(str, Enum):
    HANG = "hang"
    CRASH = "crash"
    SLOW_NODE = "slow-node"
