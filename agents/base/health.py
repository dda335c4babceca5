"""The agent's own counters: what it read, lost, sent and dropped, and what its looking cost.

Written by the thread that polls; shipped as AGENT_HEALTH. Never decides anything.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, fields

from ...telemetry.printable import printable

logger = logging.getLogger("whichrank.agents")

#: Distinct problem lines remembered; more are only counted.
MAX_PROBLEMS = 256


@dataclass(slots=True, kw_only=True)
class AgentHealth:
    """Running totals since the agent started. ``drops`` counts lost data by reason."""

    rings_found: int = 0
    rings_refused: int = 0
    rings_closed: int = 0
    events_read: int = 0
    #: Overwritten by the writer before the agent came by.
    events_lost: int = 0
    #: Never completed by their writer (it died in the middle, or the ring is damaged).
    events_torn: int = 0
    #: Said by the writers themselves (header word).
    events_dropped_by_writers: int = 0
    rows_torn: int = 0
    blocks_sent: int = 0
    records_sent: int = 0
    bytes_sent: int = 0
    stacks_taken: int = 0
    stacks_failed: int = 0
    polls: int = 0
    poll_ns: int = 0
    poll_max_ns: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    problems: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count what was thrown away, by reason; a count of 0 leaves no entry."""
        if count:
            self.drops[reason] += count

    def report(self, problem: str) -> None:
        """Logs the problem as a warning the first time, later only counts it in ``problems``.

        Beyond ``MAX_PROBLEMS`` different ones it is only counted, in ``drops``.
        """
        problem = printable(problem)  # names of folders and rings are in it
        if problem in self.problems:
            self.problems[problem] += 1
        elif len(self.problems) < MAX_PROBLEMS:
            self.problems[problem] = 1
            logger.warning(problem)
        else:
            self.drop("problem_lines")

    def attributes(self) -> dict[str, int | str]:
        """Flat counters for the AGENT_HEALTH event: each by its name, ``drops.REASON``, how many problems and the
        newest.
        """
        flat: dict[str, int | str] = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("drops", "problems")
        }
        flat.update({f"drops.{reason}": count for reason, count in sorted(self.drops.items())})
        flat["problems"] = len(self.problems)
        if self.problems:
            flat["last_problem"] = next(reversed(self.problems))
        return flat
