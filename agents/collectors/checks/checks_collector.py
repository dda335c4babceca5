"""Checks on a period: a site's own at any time, ``whichrank check`` while no job is here. Off unless it is set.

Runs in a thread of its own. ``whichrank check`` is a program of its own, as in a prolog: what hangs is its matter.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ....diagnosis.health_checks.site_checks import SiteCheck
from ...base.bounded_command import run_bounded
from ..base.collector import Collected, NodeEvent, Timestamps
from .check_results import SITE_SOURCE, events_of, read_document, source_of
from .site_programs import run_site_check

#: Between two looks at what is due.
_TURN_S = 5.0
_LIMIT_S = 90.0


@dataclass(slots=True, kw_only=True)
class _Due:
    """When something is to be run again (monotonic seconds)."""

    site: dict[str, float] = field(default_factory=dict)
    own: float = 0.0


class ChecksCollector:
    """``Collector``. command: of ``whichrank check --json``; ranks: of this node now; none: it is idle."""

    name = "checks"
    period_s = _TURN_S

    def __init__(
        self,
        site: Sequence[SiteCheck],
        command: Sequence[str],
        idle_period_s: float,
        ranks: Callable[[], Collection[object]],
    ) -> None:
        """idle_period_s: 0: whichrank's own check is not run."""
        self._site, self._command, self._idle_period_s, self._ranks = site, tuple(command), idle_period_s, ranks
        self._due = _Due()
        self._idle_since_s: float | None = None

    def collect(self, now: Timestamps) -> Collected:
        """Runs what is due, one after the other."""
        now_s = now.mono_ns / 1e9
        happenings: list[NodeEvent] = []
        problems: list[str] = []
        for check in self._site:
            if now_s >= self._due.site.get(check.name, 0.0):
                self._due.site[check.name] = now_s + check.period_s
                results = run_site_check(check)
                happenings += events_of(results, [source_of(SITE_SOURCE, check.name)], now)
        self._idle_since_s = None if self._ranks() else now_s if self._idle_since_s is None else self._idle_since_s
        is_idle = self._idle_since_s is not None and now_s - self._idle_since_s >= min(self._idle_period_s, 60.0)
        if self._idle_period_s and is_idle and now_s >= self._due.own:
            self._due.own = now_s + self._idle_period_s
            found, problem = self._own(now)
            happenings += found
            problems += [problem] if problem else []
        return Collected(happenings=happenings, problems=problems)

    def close(self) -> None:
        """Nothing is held."""

    def _own(self, now: Timestamps) -> tuple[list[NodeEvent], str]:
        try:
            _, said, _ = run_bounded(self._command, _LIMIT_S)
            results, looked, _ = read_document(said)
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            return [], f"whichrank check: {type(error).__name__}: {error}"
        # A job that began meanwhile holds GPUs and memory: that is no fault of the node.
        return ([], "") if self._ranks() else (events_of(results, looked, now, before="idle"), "")
