"""Runs a node's collectors, each where it can hurt nobody: in a thread of its own, or in a process that may be left.

``take`` gives what they saw since the last call, from any thread. A collector that raises is tried again after a pause
that doubles; one that does not come back is told as late, for that is news by itself: a driver that hangs, a dead
mount. A process that is late is killed and begun anew, unless the kernel does not let it go: then it is left alone
until it has ended.
"""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import IO, Any

from ...telemetry.missing_packages import in_words
from ...telemetry.records import Point
from .base.collector import Collected, Collector, FinalCollector, Isolation, Timestamps

MAX_WAITING = 2000
#: A failed look is tried again after so long, then twice as long, and so on.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
#: A look that takes longer than this, and than three periods, is told as late.
LATE_S = 10.0
#: A process that is so late is killed.
KILL_S = 60.0
#: Last looks together hold up the end by this at most.
LAST_LOOKS_S = 1.0
MAX_PROBLEMS = 64
MAX_FRAME_BYTES = 16 << 20
METRIC_LATE, METRIC_FAILURES = "whichrank.collector.late", "whichrank.collector.failures"
METRIC_WATCHING = "whichrank.collector.watching"
_LENGTH = struct.Struct("<I")
_SELF_REPORT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorPlan:
    """How a collector is made: ``factory`` (".module:function" of this package) is called with ``options``.

    Where it runs in a process of its own, the options must be plain data.
    """

    name: str
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    isolation: Isolation = Isolation.THREAD

    def make(self) -> Collector:
        """Makes the collector: imports the factory's module and calls it. Whatever either raises is passed on."""
        module, _, function = self.factory.partition(":")
        made: Collector = getattr(import_module(module, __package__), function)(**self.options)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one collector saw in one look."""

    collector: str
    collected: Collected


class NodeTelemetry:
    """``start``, then ``take`` now and then, at the end ``close``. Threads are daemons: none holds up an exit."""

    def __init__(
        self,
        plans: Sequence[CollectorPlan],
        *,
        report: Callable[[str], None],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._report = report
        self._wall_ns = wall_ns
        self._waiting: deque[Seen] = deque()
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._dropped = 0
        self._failures: Counter[str] = Counter()
        self._ending = threading.Event()
        self._next_report_ns = 0
        self._looks = [
            _ProcessLook(plan, self) if plan.isolation is Isolation.PROCESS else _ThreadLook(plan, self)
            for plan in plans
        ]

    def start(self) -> None:
        """Begins to look: starts a daemon thread for every collector."""
        for look in self._looks:
            look.start()

    def take(self) -> list[Seen]:
        """Takes away what the collectors saw since the last call, oldest first.

        Kills collectors' processes that are far too late. Every ten seconds it adds points on the collectors
        themselves.
        """
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        now = self.moment()
        for look in self._looks:
            look.watch(now)
        if now.mono_ns >= self._next_report_ns:
            self._next_report_ns = now.mono_ns + int(_SELF_REPORT_S * 1e9)
            taken.append(Seen(collector="collectors", collected=Collected(points=self._own_points(now))))
        return taken

    @property
    def counters(self) -> Mapping[str, int]:
        """Counters for AGENT_HEALTH: collectors that are late now, failed looks and dropped results so far."""
        late = sum(look.late_s(self.moment()) > 0 for look in self._looks)
        return {
            "collectors.late": late,
            "collectors.failures": sum(self._failures.values()),
            "collectors.dropped": self._dropped,
        }

    def close(self) -> None:
        """Asks for the last looks and waits for them, ``LAST_LOOKS_S`` seconds for all together."""
        self._ending.set()
        for look in self._looks:
            look.end()
        until_s = time.monotonic() + LAST_LOOKS_S
        for look in self._looks:
            look.wait_for_last(max(0.0, until_s - time.monotonic()))

    # --- for the looks ------------------------------------------------------------------------------------------------
    def moment(self) -> Timestamps:
        """Now, on both clocks of the node."""
        return Timestamps(wall_ns=self._wall_ns(), mono_ns=time.monotonic_ns())

    def hand_on(self, name: str, collected: Collected) -> None:
        """Queues a look's result for ``take`` and reports its problems; called from the collector's thread.

        Empty results are not queued. Beyond ``MAX_WAITING`` looks the oldest is dropped and counted.
        """
        with self._lock:
            for line in collected.problems:
                self._say(f"{name}: {line}")
            if not collected.points and not collected.happenings:
                return
            self._waiting.append(Seen(collector=name, collected=collected))
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self._dropped += 1

    def failed(self, name: str, what: str) -> None:
        """Counts and reports a look that raised or whose process died. what: the error in words."""
        with self._lock:
            self._failures[name] += 1
            self._say(f"{name}: {what}; tried again later")

    @property
    def ending(self) -> threading.Event:
        """Set once ``close`` has been called: the looks' threads wait on it between two looks."""
        return self._ending

    def _say(self, line: str) -> None:
        if line not in self._said and len(self._said) < MAX_PROBLEMS:
            self._said.add(line)
            self._report(line)

    def _own_points(self, now: Timestamps) -> list[Point]:
        points: list[Point] = []
        for look in self._looks:
            late_s = look.late_s(now)
            sees = look.sees and not late_s
            points += own_points(look.name, now, late_s=late_s, failures=self._failures[look.name], sees=sees)
        return points


def own_points(collector: str, now: Timestamps, *, late_s: float, failures: int, sees: bool) -> list[Point]:
    """Points about a collector itself: seconds it is late, failures so far, whether its last look saw anything."""
    told = ((METRIC_LATE, late_s), (METRIC_FAILURES, float(failures)), (METRIC_WATCHING, float(sees)))
    where = {"whichrank.collector": collector}
    return [Point(name=name, value=value, attributes=where, time_ns=now.wall_ns) for name, value in told]


class _Look:
    """One collector at work. ``busy_since_ns``: monotonic, 0 while it pauses. ``sees``: its last look did."""

    def __init__(self, plan: CollectorPlan, owner: NodeTelemetry) -> None:
        self.name = plan.name
        self.plan = plan
        self.owner = owner
        self.period_s = 10.0
        self.busy_since_ns = 0
        self.sees = False

    def late_s(self, now: Timestamps) -> float:
        """For how long it has been late; 0 while it is not."""
        since_ns = self.busy_since_ns
        busy_s = (now.mono_ns - since_ns) / 1e9 if since_ns else 0.0
        return busy_s if busy_s > max(LATE_S, 3 * self.period_s) else 0.0

    def start(self) -> None:
        threading.Thread(target=self.run, name=f"whichrank-{self.name}", daemon=True).start()

    def run(self) -> None:
        raise NotImplementedError

    def watch(self, now: Timestamps) -> None:
        """Called now and then from the owner's thread."""

    def end(self) -> None:
        """The agent ends."""

    def wait_for_last(self, timeout_s: float) -> None:
        """Until it has looked for the last time, where it is one that does."""


class _ThreadLook(_Look):
    def __init__(self, plan: CollectorPlan, owner: NodeTelemetry) -> None:
        super().__init__(plan, owner)
        self._last_is_over = threading.Event()
        self._last_is_over.set()

    def run(self) -> None:
        collector: Collector | None = None
        pause_s = FIRST_PAUSE_S
        while not self.owner.ending.is_set():
            self.busy_since_ns = time.monotonic_ns()
            try:
                collector = collector or self._make()
                self.period_s = collector.period_s
                collected = collector.collect(self.owner.moment())
            except Exception as error:  # edge: whatever a file of /proc, or a bug of ours, can do
                self.busy_since_ns, self.sees = 0, False
                self.owner.failed(self.name, in_words(error, "agent"))
                self.owner.ending.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            took_s = (time.monotonic_ns() - self.busy_since_ns) / 1e9
            self.busy_since_ns, pause_s = 0, FIRST_PAUSE_S
            self.sees = not collected.blind
            self.owner.hand_on(self.name, collected)
            self.owner.ending.wait(max(self.period_s - took_s, self.period_s / 10))
        if isinstance(collector, FinalCollector):
            try:
                self.owner.hand_on(self.name, collector.last_look(self.owner.moment()))
            except Exception as error:  # edge: as above
                self.owner.failed(self.name, in_words(error, "agent"))
            self._last_is_over.set()
        if collector is not None:
            collector.close()

    def _make(self) -> Collector:
        collector = self.plan.make()
        if isinstance(collector, FinalCollector):
            self._last_is_over.clear()
        return collector

    def wait_for_last(self, timeout_s: float) -> None:
        self._last_is_over.wait(timeout_s)


class _ProcessLook(_Look):
    """The parent's end: reads frames of ``collector_child``."""

    def __init__(self, plan: CollectorPlan, owner: NodeTelemetry) -> None:
        super().__init__(plan, owner)
        self._child: subprocess.Popen[bytes] | None = None
        self._killed = False

    def run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self.owner.ending.is_set():
            self._killed = False
            self.busy_since_ns = time.monotonic_ns()
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "whichrank.agents.collectors.collector_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the agent
            )
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                write_frame(child.stdin, self.plan)
                while (frame := read_frame(child.stdout)) is not None:
                    self._take(frame)
                    pause_s = FIRST_PAUSE_S
            except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
                self.owner.failed(self.name, f"its process: {type(error).__name__}: {error}")
            child.stdout.close()
            status = child.wait()
            self.busy_since_ns, self.sees = 0, False
            if self.owner.ending.is_set():
                return
            self.owner.failed(self.name, "did not answer" if self._killed else f"its process ended with {status}")
            self.owner.ending.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _take(self, frame: object) -> None:
        """A number: the look that now begins has this period. True: it listens. Text: it failed. Else what it saw."""
        if frame is True:
            self.busy_since_ns = time.monotonic_ns()
        elif isinstance(frame, float):
            self.period_s, self.busy_since_ns = frame, time.monotonic_ns()
        elif isinstance(frame, str):
            self.busy_since_ns, self.sees = 0, False
            self.owner.failed(self.name, frame)
        elif isinstance(frame, Collected):
            self.busy_since_ns, self.sees = 0, not frame.blind
            self.owner.hand_on(self.name, frame)

    def watch(self, now: Timestamps) -> None:
        child = self._child
        if child is not None and not self._killed and self.late_s(now) > KILL_S:
            self._killed = True
            child.kill()

    def end(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()


def write_frame(pipe: IO[bytes], value: object) -> None:
    """Writes a value pickled, behind its length; flushed, so that the other end sees it at once. Raises OSError."""
    content = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(content)) + content)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> object | None:
    """The next value that ``write_frame`` sent, None at the pipe's end. Only for pipes of our own: it unpickles.

    Raises ValueError for a frame that is too long, EOFError for half a frame.
    """
    head = pipe.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise EOFError("half a frame")
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    content = pipe.read(length)
    if len(content) < length:
        raise EOFError("half a frame")
    value: object = pickle.loads(content)
    return value
