"""Asks a job's ranks for an emergency save when the scheduler says that their end is near. No root needed, nor used.

The ranks find the request in their ring folder, which is their user's: it is written only with that user's rights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ...agents.collectors.base.collector import NodeEvent
from ...diagnosis.scheduler_facts import slurm_job_id
from ...telemetry.emergency_words import BOARD_FOLDER, DEFAULT_LEAD_S, LISTENS, REQUEST_FILE, SaveReason
from ...telemetry.vocabulary import Action, EventName

#: What a scheduler tells, and the attribute with the time at which the job ends by it.
_DUE = {
    SaveReason.TIME_LIMIT.value: "end_s",
    SaveReason.PREEMPTION.value: "end_s",
    SaveReason.MAINTENANCE.value: "start_s",
}
#: Conditions of a node that may end it at any moment.
_POWER = frozenset({"power_supply_failed", "power_redundancy_lost", "power_unit_failed"})
#: Of a preemption that has begun, where nobody says how long its grace is; Slurm's own time to kill is as long.
_GRACE_S = 30.0
#: Where an end may come at any moment, ranks may try for so long.
_AT_ONCE_S = 60.0
#: Plans that are remembered.
_MOST_PLANS = 64
#: A plan that moves by less is the same.
_SAME_S = 1.0
#: Ranks of one job come to listen within that time.
_SETTLED_S = 1.0


def ask_for_save(rings: Path, reason: str, seconds: float) -> None:
    """Asks the ranks of this ring folder to save within ``seconds``.

    Raises OSError, PermissionError where the folder is another user's.
    """
    if os.stat(rings).st_uid != os.geteuid():
        raise PermissionError(f"{rings} is another user's: ask as that user")
    part = rings / f".{REQUEST_FILE}.{os.getpid()}"
    part.write_text(json.dumps({"reason": reason, "seconds": seconds}), encoding="utf-8")
    part.replace(rings / REQUEST_FILE)


def listening_ranks(rings: Path) -> dict[int, int]:
    """Ranks of this node that called ``on_checkpoint`` and live, and their pids."""
    ranks = {}
    for path in (rings / BOARD_FOLDER).glob(f"{LISTENS}*"):
        rank, _, pid = path.name.removeprefix(LISTENS).partition(".")
        if rank.isdigit() and pid.isdigit() and os.path.isdir(f"/proc/{pid}"):
            ranks[int(rank)] = int(pid)
    return ranks


class NearEnd:
    """Not thread-safe. job: the scheduler's id of the job whose rings these are, "" none; None: this process's.
    lead_s: so long before the end the save is asked for; 0: never. report: is told why one cannot be asked for.
    """

    def __init__(
        self, rings: Path, *, report: Callable[[str], None], job: str | None = None, lead_s: float = DEFAULT_LEAD_S
    ) -> None:
        self._rings, self._report, self._lead_s = rings, report, lead_s
        self._job = slurm_job_id(os.environ) if job is None else job
        #: When a job or node ends, by what is told and of whom; and which of these were asked for.
        self._due_s: dict[tuple[str, str], float] = {}
        self._asked_s: dict[tuple[str, str], float] = {}
        #: Ranks and their pids: who listens, since when that is so, and who was asked last.
        self._listening: frozenset[tuple[int, int]] = frozenset()
        self._listening_since_s = 0.0
        self._asked_of: frozenset[tuple[int, int]] = frozenset()

    def take(self, happening: NodeEvent) -> None:
        """Takes in what a collector saw; what is neither this job's nor the node's is left out."""
        told = happening.attributes
        if happening.name is EventName.NODE_CONDITION:
            self._take_condition(happening)
            return
        what, job = str(told.get("what")), str(told.get("job") or "")
        if happening.name is not EventName.SCHEDULER or what not in _DUE or (job and job != self._job):
            return
        key, due_s = (what, job or str(told.get("name") or "")), told.get(_DUE[what])
        if (
            due_s is None and what != SaveReason.TIME_LIMIT.value
        ):  # it has begun, or nobody says when it will (a notice of a cloud's)
            begun_s = told.get("start_s")
            due_s = max(begun_s if isinstance(begun_s, int | float) else 0.0, happening.time_ns / 1e9 + _GRACE_S)
        if told.get("over") or not isinstance(due_s, int | float):
            self._due_s.pop(key, None)
        elif len(self._due_s) < _MOST_PLANS or key in self._due_s:
            self._due_s[key] = float(due_s)

    def _take_condition(self, happening: NodeEvent) -> None:
        """A node that may lose its power, or that a check of the site's wants a checkpoint for: at once."""
        told = happening.attributes
        name = str(told.get("event"))
        is_advice = told.get("action") == Action.CHECKPOINT_NOW.value
        key = (SaveReason.ADVICE if is_advice else SaveReason.POWER).value, f"{name}/{told.get('device') or ''}"
        if told.get("over"):
            self._due_s.pop(key, None)
        elif (is_advice or name in _POWER) and len(self._due_s) < _MOST_PLANS:
            # As long as it goes on it is one and the same: it was asked for once.
            self._due_s.setdefault(key, happening.time_ns / 1e9 + _AT_ONCE_S)

    def look(self, now_s: float) -> None:
        """Asks for a save where an end is near; once for each, again when it was put off, and of the ranks of another
        start of the job. Not before ranks listen: what they find when they come they take for an earlier start's.
        now_s: Unix.
        """
        self._asked_s = {key: due_s for key, due_s in self._asked_s.items() if key in self._due_s}
        near = {key: due_s for key, due_s in self._due_s.items() if due_s - self._lead_s <= now_s < due_s}
        if not near or not self._lead_s or not self._is_listened_to(now_s):
            return
        for key, due_s in near.items():
            if abs(due_s - self._asked_s.get(key, 0.0)) > _SAME_S:
                self._asked_s[key], self._asked_of = due_s, self._listening
                try:
                    ask_for_save(self._rings, key[0], due_s - now_s)
                except OSError as error:
                    self._report(f"no emergency save asked for: {error}")

    def _is_listened_to(self, now_s: float) -> bool:
        """Ranks listen, and no further one has come for a moment."""
        listening = frozenset(listening_ranks(self._rings).items())
        if listening != self._listening:
            self._listening, self._listening_since_s = listening, now_s
        if self._asked_of.isdisjoint(listening):
            self._asked_s.clear()
        return bool(listening) and now_s - self._listening_since_s >= _SETTLED_S
