"""The processes of an attempt's ranks: which run, stand, wait in the kernel or are gone, and how they went.

Only a table and what follows from it: what becomes of whom and when is for ``simulated_attempt``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..telemetry.vocabulary import ExitState, ProcessState
from .clock import NEVER, to_ns
from .node_agents import ProcessLook
from .propagate import RankStandstill, Stop

Floats = NDArray[np.float64]
_BEAT_NS = 50_000_000
#: Of a rank's time that its process is on a core.
_BUSY = 0.9
SIGILL, SIGABRT, SIGKILL, SIGSEGV, SIGTERM = 4, 6, 9, 11, 15
#: Those that the instrumentation hears before the process is gone.
CAUGHT = (SIGILL, SIGABRT, SIGSEGV)


class Processes:
    """The processes of an attempt. All arrays are by rank; times are seconds of the simulation, ``inf`` never."""

    def __init__(self, count: int, first_pid: NDArray[np.int64], started_s: Floats) -> None:
        self.pid, self.started_s = first_pid, started_s
        self.ended_s = np.full(count, np.inf)
        self.exit_code = np.full(count, -1)
        self.signal = np.zeros(count, np.int64)
        self.raised = np.zeros(count, bool)
        self.stops = {kind: RankStandstill(np.full(count, np.inf), np.full(count, np.inf)) for kind in Stop}
        self.stopped = RankStandstill(np.full(count, np.inf), np.full(count, np.inf))
        #: Blocked in the kernel while they wait for their input: a mount that does not answer.
        self.in_kernel = np.zeros(count, bool)
        #: Since when they have been in a call of the GPU's driver that does not come back.
        self.in_driver_since_s = np.full(count, np.inf)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """By rank, whether it has not ended, nor is known to end later."""
        return np.asarray(np.isinf(self.ended_s))

    def active_stops(self) -> dict[Stop, RankStandstill]:
        """By kind, the standstills that have struck any rank at any time."""
        return {kind: stop for kind, stop in self.stops.items() if np.isfinite(stop.since_s).any()}

    def stand(self, kind: Stop, ranks: NDArray[np.int64], since_s: float) -> None:
        """Lets ranks stand still from ``since_s`` on, without end, unless they do already. ranks: their numbers, shape
        (n,).
        """
        stop = self.stops[kind]
        free = ranks[(stop.since_s[ranks] > since_s) | (stop.until_s[ranks] <= since_s)]
        stop.since_s[free], stop.until_s[free] = since_s, np.inf

    def go_on(self, kind: Stop, ranks: NDArray[np.int64], at_s: float) -> None:
        """Those of these ranks (numbers, one a rank) that stand for this reason and live."""
        stop = self.stops[kind]
        held = ranks[np.isfinite(stop.since_s[ranks]) & np.isinf(stop.until_s[ranks]) & self.alive[ranks]]
        stop.until_s[held] = at_s

    def end(self, ranks: NDArray[np.int64], at_s: Floats, *, code: int = -1, signal: int = 0) -> NDArray[np.int64]:
        """Ends ranks at ``at_s`` (by rank given, in seconds); returns those that had not ended before then.

        They stand still from then on in everything. code: exit code, -1 none; signal: 0 none.
        """
        new = self.ended_s[ranks] > at_s
        ranks, at_s = ranks[new], at_s[new]
        self.ended_s[ranks], self.exit_code[ranks], self.signal[ranks] = at_s, code, signal
        for kind in Stop:
            stop = self.stops[kind]
            # Who stood already goes on standing, now for ever.
            stands = (stop.since_s[ranks] <= at_s) & (stop.until_s[ranks] > at_s)
            stop.since_s[ranks] = np.where(stands, stop.since_s[ranks], at_s)
            stop.until_s[ranks] = np.inf
        return ranks

    @property
    def silent_from_ns(self) -> NDArray[np.int64]:
        """By rank, from when on nothing of it is written any more, in ns of the simulation."""
        return to_ns(self.ended_s)

    def look(self, at_ns: NDArray[np.int64], ranks: slice, waits_for_input: NDArray[np.bool_]) -> ProcessLook:
        """What agents see of these ranks' processes at ``at_ns`` (by rank, ns of the simulation).

        waits_for_input: by rank, whether it stands in such a wait.
        """
        ended = to_ns(self.ended_s[ranks])
        stopped_since, stopped_until = to_ns(self.stopped.since_s[ranks]), to_ns(self.stopped.until_s[ranks])
        is_stopped = (stopped_since <= at_ns) & (at_ns < stopped_until)
        state = np.full(at_ns.size, int(ProcessState.RUNNING))
        state[waits_for_input & self.in_kernel[ranks]] = int(ProcessState.DISK_WAIT)
        state[to_ns(self.in_driver_since_s[ranks]) <= at_ns] = int(ProcessState.DISK_WAIT)
        state[is_stopped] = int(ProcessState.STOPPED)
        state[ended <= at_ns] = int(ProcessState.DEAD)
        lives_until = np.minimum(np.minimum(ended, np.where(is_stopped, stopped_since, NEVER)), at_ns)
        started = to_ns(self.started_s[ranks])
        said = np.where(self.raised[ranks], int(ExitState.EXCEPTION), int(ExitState.RUNNING))
        said = np.where(np.isin(self.signal[ranks], CAUGHT), int(ExitState.SIGNAL), said)
        said = np.where((self.signal[ranks] == 0) & (self.exit_code[ranks] == 0), int(ExitState.NORMAL), said)
        return ProcessLook(
            pid=self.pid[ranks],
            state=state,
            heartbeat_ns=lives_until // _BEAT_NS * _BEAT_NS,
            cpu_ns=np.rint(_BUSY * np.maximum(lives_until - started, 0)).astype(np.int64),
            exit_state=np.where(ended <= at_ns, said, int(ExitState.RUNNING)),
            still_since_ns=self._still_since_ns(at_ns, ranks),
        )

    def _still_since_ns(self, at_ns: NDArray[np.int64], ranks: slice) -> NDArray[np.int64]:
        """Since when nothing of a process moves: its host stands, or it waits in the kernel for what does not come."""
        since_ns = np.zeros(at_ns.size, np.int64)
        for kind in (Stop.HOST, Stop.INPUT):
            stop = self.stops[kind]
            begin_ns, end_ns = to_ns(stop.since_s[ranks]), to_ns(stop.until_s[ranks])
            stands = (begin_ns <= at_ns) & (at_ns < end_ns)
            since_ns = np.where(stands & ((since_ns == 0) | (begin_ns < since_ns)), np.maximum(begin_ns, 1), since_ns)
        return since_ns


def oom_at_s(now_s: float, free_bytes: float, growth_bytes_per_s: float) -> float:
    """When ``free_bytes`` are used up, in seconds of the simulation; inf where nothing grows."""
    return now_s + free_bytes / growth_bytes_per_s if growth_bytes_per_s > 0 else np.inf
