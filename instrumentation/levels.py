"""Which level applies: what the environment says, what the ring directory's ``level`` file says, what our cost allows.

Pure decisions and one small file read per second by the heartbeat thread. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..telemetry.ring_layout import LEVEL_FILE
from ..telemetry.vocabulary import Level

LEVELS = {"off": Level.OFF, "status": Level.STATUS, "events": Level.EVENTS}
#: The level file is one word; anything longer is not ours.
MAX_LEVEL_FILE_BYTES = 64

#: Own cost allowed, as a fraction of the time of the steps it is part of.
COST_LIMIT = 0.01
#: A verdict on our own cost needs this much time and this many steps: shorter windows measure the scheduler.
COST_WINDOW_NS = 20_000_000_000
COST_WINDOW_STEPS = 20


def parse_level(text: str) -> Level | None:
    """The level of this name ("off", "status", "events"); None for anything else."""
    return LEVELS.get(text.strip().lower())


def level_of_environment(environ: Mapping[str, str]) -> Level:
    """The level in WHICHRANK_LEVEL; EVENTS where unset or not understood."""
    level = parse_level(environ.get("WHICHRANK_LEVEL", ""))
    return Level.EVENTS if level is None else level


def cost_limit_of_environment(environ: Mapping[str, str]) -> float:
    """WHICHRANK_COST_LIMIT (per cent of a step) as a fraction; 0 means no limit. Default 0.01."""
    try:
        percent = float(environ.get("WHICHRANK_COST_LIMIT", ""))
    except ValueError:
        return COST_LIMIT
    return percent / 100 if percent >= 0 else COST_LIMIT


def checks_inputs(environ: Mapping[str, str]) -> bool:
    """Whether NaN is to be looked for in the inputs of operations (``input_checks``): WHICHRANK_CHECK_INPUTS is 1."""
    return environ.get("WHICHRANK_CHECK_INPUTS") == "1"


class LevelFile:
    """The switch in the ring directory. Read only when its time stamp or size has changed."""

    __slots__ = ("_path", "_seen", "level")

    def __init__(self, directory: Path) -> None:
        self._path = os.fspath(directory / LEVEL_FILE)
        self._seen: tuple[int, int] | None = None
        #: What the file says; None where there is none or it says nothing known.
        self.level: Level | None = None

    def look(self) -> Level | None:
        """The level in the file, which is read again if it has changed; None without one. Never raises."""
        try:
            state = os.stat(self._path)
            seen = (state.st_mtime_ns, state.st_size)
            if seen != self._seen:
                self._seen = seen
                # Another file than the ring: closing it does not drop the ring's lock.
                with open(self._path, encoding="utf-8", errors="replace") as file:
                    self.level = parse_level(file.read(MAX_LEVEL_FILE_BYTES))
        except OSError:
            self._seen = self.level = None
        return self.level


class CostLimit:
    """Watches the own cost over windows of steps; lowers the level by one when it is too much."""

    __slots__ = ("_begin_cost_ns", "_begin_ns", "_begin_step", "limit", "measured")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        #: Fraction of the last whole window that was our own cost; -1 before the first.
        self.measured = -1.0
        self._begin_ns = -1
        self._begin_cost_ns = 0
        self._begin_step = 0

    def exceeded(self, now_ns: int, cost_ns: int, step: int) -> bool:
        """Whether the window that ends now cost more than the limit. Call with running totals, about once a second."""
        if self._begin_ns < 0 or step < self._begin_step:
            self._restart(now_ns, cost_ns, step)
            return False
        if now_ns - self._begin_ns < COST_WINDOW_NS or step - self._begin_step < COST_WINDOW_STEPS:
            return False
        self.measured = (cost_ns - self._begin_cost_ns) / (now_ns - self._begin_ns)
        self._restart(now_ns, cost_ns, step)
        return 0 < self.limit < self.measured

    def _restart(self, now_ns: int, cost_ns: int, step: int) -> None:
        self._begin_ns, self._begin_cost_ns, self._begin_step = now_ns, cost_ns, step


def lowered(level: Level) -> Level:
    """The level below; OFF stays OFF."""
    return Level(max(level - 1, Level.OFF))
