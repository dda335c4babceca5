"""Checks on a period: a site's own at any time, ``whichrank check`` while no job is here. Off unless it is set.

Looks run in the collector's thread, programs in another one, which holds up no end. ``whichrank check`` is a program,
too, as in a prolog: what hangs is its matter.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ....diagnosis.health_checks.site_checks import SiteCheck
from ...base.bounded_command import run_bounded
from ..base.collector import Collected, NodeEvent, Timestamps
from .check_results import SITE_SOURCE, CheckResult, events_of, read_document, source_of
from .site_programs import run_site_check

#: Between two looks at what is due.
_TURN_S = 5.0
_LIMIT_S = 90.0
#: A look that takes longer would be told as late.
_WAIT_S = 3.0
_MOST_WAITING = 128


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
        self._asked: queue.SimpleQueue[Callable[[], _Run]] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[_Run] = queue.SimpleQueue()
        self._open = 0
        self._thread: threading.Thread | None = None

    def collect(self, now: Timestamps) -> Collected:
        """Starts what is due, and tells of what has ended; a program that takes long is told of with a later look."""
        now_s = now.mono_ns / 1e9
        for check in self._site:
            if now_s >= self._due.site.get(check.name, 0.0):
                self._due.site[check.name] = now_s + check.period_s
                self._begin(partial(_run_site, check))
        self._idle_since_s = None if self._ranks() else now_s if self._idle_since_s is None else self._idle_since_s
        is_idle = self._idle_since_s is not None and now_s - self._idle_since_s >= min(self._idle_period_s, 60.0)
        if self._idle_period_s and is_idle and now_s >= self._due.own:
            self._due.own = now_s + self._idle_period_s
            self._begin(partial(_run_own, self._command))
        happenings: list[NodeEvent] = []
        problems: list[str] = []
        for run in self._ended():
            problems += [run.problem] if run.problem else []
            # A job that began meanwhile holds GPUs and memory: that is no fault of the node.
            if not run.is_of_idle or not self._ranks():
                happenings += events_of(run.results, run.looked, now, before="idle" if run.is_of_idle else "")
        return Collected(happenings=happenings, problems=problems)

    def close(self) -> None:
        """What waits is not begun any more; what runs ends by its own limit."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._asked.get_nowait()

    def _begin(self, task: Callable[[], _Run]) -> None:
        if self._open >= _MOST_WAITING:
            return  # they take longer than their periods
        self._open += 1
        self._asked.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="whichrank-programs", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        """One after the other: checks are not to be what a node is busy with."""
        while True:
            self._said.put(self._asked.get()())

    def _ended(self) -> Iterator[_Run]:
        until_s = time.monotonic() + _WAIT_S
        with contextlib.suppress(queue.Empty):
            while self._open:
                yield self._said.get(timeout=max(until_s - time.monotonic(), 0.0))
                self._open -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one program has said. problem: why it has said nothing."""

    results: Sequence[CheckResult] = ()
    looked: Sequence[str] = ()
    problem: str = ""
    is_of_idle: bool = False


def _run_site(check: SiteCheck) -> _Run:
    return _Run(results=run_site_check(check), looked=[source_of(SITE_SOURCE, check.name)])


def _run_own(command: Sequence[str]) -> _Run:
    try:
        _, said, _ = run_bounded(command, _LIMIT_S)
        results, looked, _ = read_document(said)
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        return _Run(problem=f"whichrank check: {type(error).__name__}: {error}"[:300], is_of_idle=True)
    return _Run(results=results, looked=looked, is_of_idle=True)
