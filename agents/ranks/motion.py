"""Whether a rank that shows no progress does anything at all: CPU, I/O, connections, children, its own code.

A rank that uploads, compiles or evaluates keeps the others waiting as one that hangs does; what tells them apart is
that the one moves. So of each rank whose ring stands still, /proc is looked at twice a second, and where in the
user's code its main thread is, which the rank itself writes into its ring once it is long in one phase. CPU time
alone is no motion for ever: a thread that for ``_LOOP_NS`` computes most of the time, is found at the same place of
the user's code, and reads, writes and sends nothing, is in a loop that does not end. One that sleeps in between is
found where it sleeps, whatever it does besides: a thread of the rank sees the other only when that lets go of the
interpreter.

Polling thread. It needs no more than the rights of the rank's own user; what may not be read is taken to move.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...telemetry.user_code import is_user_file
from ..base.user_frames import UserFrame
from ..processes.processes import read_stat
from ..processes.socket_bytes import inodes_of
from ..rings.crash_area import RingStack

#: Time between two looks at one rank, and how long its ring has to stand still before the first.
LOOK_NS = 500_000_000
#: CPU that the main thread uses without doing anything (ten polls a second: 0.02 ms each on bare metal, up to 1 ms on a
#: virtual machine), and that other threads and children do: heartbeats and watchdogs are among those.
#: Shares of one core.
_IDLE_SHARE, _OTHERS_IDLE_SHARE = 0.02, 0.2
#: Bytes between two looks that are no motion: a line of a log, a watchdog that asks its store.
_IDLE_BYTES = 4096
#: So long at one place of the user's code, with CPU time and nothing else: a loop that does not end.
_LOOP_NS = 30_000_000_000
#: Share of its time for which such a loop has a CPU or waits for one: it hardly ever sleeps, also on a crowded machine.
_LOOP_SHARE = 0.8
#: Two lines of one function this close are one place: a loop has more than one line.
_SAME_LINES = 2
#: CPU time counts for so long after it was seen: between two chunks of an upload there is none.
_BUSY_NS = 1_500_000_000
#: Where a thread sleeps in the kernel (/proc/PID/wchan) while it waits for a file, a pipe, a connection or a server;
#: not for locks and timers.
_IN_IO = re.compile(
    r"pipe|poll|select|wait_woken|sk_|inet_|tcp_|unix_|skb_|sock|accept|connect|recv|folio_wait|wait_on_page|io_schedule|"
    r"rpc_|nfs|fuse|request_wait_answer|ceph|cl_|ll_|ldlm|ptlrpc|gpfs|cifs|beegfs|p9_|n_tty_read|aio_|io_cqring"
)
#: Of those where it waits on a socket of this machine: nobody counts what that carries, but who waits for it is woken
#: by nothing else.
_ON_LOCAL_SOCKET = re.compile(r"^(unix_|sock_alloc_send|sock_wait_for_wmem)")
_MOST_DESCRIPTORS = 512
#: A connection that is opened while it stands still is seen after so long at most.
_SOCKETS_NS = 1_900_000_000
_MOST_CHILDREN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What was seen of a process at one moment. Counters only ever rise."""

    time_ns: int
    main_cpu_ns: int
    main_awake_ns: int
    cpu_ns: int  # of all its threads
    children_awake_ns: int  # CPU time and waits for a CPU: a compiler is at work on a crowded machine, too
    moved_bytes: int  # read and written, by it and its children
    faults: int  # pages read from disk
    processes: tuple[int, ...]  # it and its children
    woken: int | None  # how often its main thread was, if that waits on a socket of this machine


@dataclass(slots=True)
class RankMotion:
    """Of one rank, from the moment its ring stands still. Monotonic ns of this node; 0: not yet."""

    #: Since when nothing of it has moved; 0: it moves, or cannot be looked at.
    still_since_ns: int = 0
    #: Whether its main thread stands in a read, a write or a wait for a server: that may be answered yet.
    is_in_io: bool = False
    _before: _Look | None = None
    _looked_ns: int = 0
    #: When it last moved otherwise than by CPU time, and when it last used that.
    _moved_ns: int = 0
    _busy_ns: int = 0
    _place: UserFrame | None = None
    #: Functions on the main thread's stack, and when they were last others: a loop that calls much is at work.
    _functions: tuple[tuple[str, str], ...] = ()
    _varied_ns: int = 0
    #: Since when it is found at one place, and how long its main thread had been running or ready to run then.
    _loop_since_ns: int = 0
    _loop_awake_ns: int = 0
    #: Its sockets' inodes, of which processes, and when they were looked for: that asks another process.
    _sockets: list[int] = field(default_factory=list)
    _socket_owners: tuple[int, ...] = ()
    _sockets_ns: int = 0
    _carried: int | None = None  # by its connections; asked only while nothing else of it moves

    def is_due(self, now_ns: int) -> bool:
        """Whether the last look at the process is ``LOOK_NS`` ago. now_ns: monotonic."""
        return now_ns - self._looked_ns >= LOOK_NS

    def forget(self) -> None:
        """Begins anew: the rank's ring has moved, so nothing that was seen of its process counts any more."""
        if self._looked_ns:
            self.still_since_ns = self._looked_ns = self._moved_ns = self._busy_ns = 0
            self._before = self._place = self._carried = None
            self._functions, self._varied_ns = (), 0
            self._loop_since_ns = self._loop_awake_ns = 0

    def look(
        self,
        pid: int,
        uid: int,
        ring_moved_ns: int,
        heartbeat_age_ns: int,
        stack: RingStack | None,
        carried: Callable[[], Mapping[int, int]],
        now_ns: int,
    ) -> None:
        """Looks at the rank's process, and sets ``still_since_ns`` and ``is_in_io``. now_ns: monotonic.

        pid: in our PID namespace; uid: its user's. stack: the newest that the rank has left in its ring. carried: bytes
        by socket.
        heartbeat_age_ns: with a heartbeat that is late nobody runs Python there, so its code stays where it is.
        """
        self._looked_ns = now_ns
        look = _look_at(pid, now_ns)
        if look is None:
            self.still_since_ns, self._before = 0, None
            return
        self._moved_ns = max(self._moved_ns, ring_moved_ns)
        before, self._before = self._before, look
        if before is None:
            self._busy_ns = now_ns  # nobody knows what it did until now
            self._moves_in_code(stack)
            return
        has_got = None not in (look.woken, before.woken) and look.woken != before.woken
        has_read = has_got or abs(look.moved_bytes - before.moved_bytes) >= _IDLE_BYTES or look.faults != before.faults
        functions = tuple((frame.file, frame.function) for frame in stack.frames) if stack is not None else ()
        if functions != self._functions:
            self._functions, self._varied_ns = functions, now_ns if self._functions else self._varied_ns
        if self._moves_in_code(stack) or has_read:
            self._moved_ns, self._carried = now_ns, None
        elif self._has_sent(look, uid, carried):
            self._moved_ns = now_ns
        if _used_cpu(before, look):
            self._busy_ns = now_ns
        self.still_since_ns = self._still_since(now_ns, look.main_awake_ns, heartbeat_age_ns)
        self.is_in_io = self.still_since_ns > 0 and _is_in_io(pid)

    def _still_since(self, now_ns: int, main_awake_ns: int, heartbeat_age_ns: int) -> int:
        if now_ns - self._busy_ns >= _BUSY_NS:
            since_ns = max(self._moved_ns, self._busy_ns)
            return since_ns if since_ns < now_ns else 0
        is_place_known = self._place is not None or heartbeat_age_ns >= _LOOP_NS
        since_ns = max(self._moved_ns, self._varied_ns)
        if since_ns != self._loop_since_ns:
            self._loop_since_ns, self._loop_awake_ns = since_ns, main_awake_ns
        computes = main_awake_ns - self._loop_awake_ns >= _LOOP_SHARE * (now_ns - since_ns)
        return since_ns if is_place_known and computes and now_ns - since_ns >= _LOOP_NS else 0

    def _has_sent(self, look: _Look, uid: int, carried: Callable[[], Mapping[int, int]]) -> bool:
        if look.processes != self._socket_owners or look.time_ns - self._sockets_ns >= _SOCKETS_NS:
            self._socket_owners, self._sockets_ns = look.processes, look.time_ns
            self._sockets = [inode for pid in look.processes for inode in inodes_of(pid, uid, _MOST_DESCRIPTORS)]
        inodes = self._sockets
        by_inode = carried() if inodes else {}
        before, self._carried = self._carried, sum(by_inode.get(inode, 0) for inode in inodes)
        return before is not None and abs(self._carried - before) >= _IDLE_BYTES

    def _moves_in_code(self, stack: RingStack | None) -> bool:
        """Whether the main thread is at another place of the user's code than before."""
        if stack is None:
            return False
        place = next((frame for frame in reversed(stack.frames) if is_user_file(frame.file)), None)
        before, self._place = self._place, place
        if before is None or place is None:
            return False
        same = (before.file, before.function) == (place.file, place.function)
        if same and abs(before.line - place.line) <= _SAME_LINES:
            self._place = before
            return False
        return True


def _look_at(pid: int, now_ns: int) -> _Look | None:
    """None where the process is gone, or its counters may not be read."""
    stat, io = read_stat(pid), _read_io(pid)
    main_ns = _read_main_ns(pid)
    if stat is None or io is None or main_ns is None:
        return None
    children = _children_of(pid)
    of_children = [(read_stat(child), _read_io(child)) for child in children]
    return _Look(
        time_ns=now_ns,
        main_cpu_ns=main_ns[0],
        main_awake_ns=sum(main_ns),
        cpu_ns=stat.cpu_ns,
        children_awake_ns=sum(child.cpu_ns for child, _ in of_children if child is not None)
        + sum(_waited_ns(child) for child in children),
        moved_bytes=io + sum(moved or 0 for _, moved in of_children),
        faults=stat.major_faults,
        processes=(pid, *children),
        woken=_times_woken(pid) if _ON_LOCAL_SOCKET.match(_waits_in(pid)) else None,
    )


def _used_cpu(before: _Look, look: _Look) -> bool:
    span_ns = max(1, look.time_ns - before.time_ns)
    main_ns = look.main_cpu_ns - before.main_cpu_ns
    others_ns = look.cpu_ns - before.cpu_ns - main_ns
    # Children that have ended take their time with them.
    children_ns = abs(look.children_awake_ns - before.children_awake_ns)
    return (
        main_ns > _IDLE_SHARE * span_ns
        or others_ns > _OTHERS_IDLE_SHARE * span_ns
        or children_ns > _OTHERS_IDLE_SHARE * span_ns
    )


def _read_main_ns(pid: int) -> tuple[int, int] | None:
    """For how long the main thread has had a CPU, and has waited for one: to the nanosecond where the kernel keeps it,
    else in ticks of its clock, and nothing is known of waiting."""
    try:
        cpu, waited, *_ = _read(f"/proc/{pid}/schedstat").split()
        return int(cpu), int(waited)
    except (OSError, ValueError):
        stat = read_stat(pid, thread=pid)
        return (stat.cpu_ns, 0) if stat is not None else None


def _waited_ns(pid: int) -> int:
    main_ns = _read_main_ns(pid)
    return main_ns[1] if main_ns is not None else 0


def _read_io(pid: int) -> int | None:
    """Bytes read and written, through the page cache and past it."""
    try:
        words = _read(f"/proc/{pid}/io").split()
        values = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    except (OSError, ValueError):
        return None
    return sum(values.get(name, 0) for name in (b"rchar:", b"wchar:", b"read_bytes:", b"write_bytes:"))


def _is_in_io(pid: int) -> bool:
    return bool(_IN_IO.search(_waits_in(pid)))


def _waits_in(pid: int) -> str:
    """Where in the kernel its main thread sleeps; "" not known."""
    try:
        return _read(f"/proc/{pid}/wchan").decode("ascii", "replace")
    except OSError:
        return ""


def _times_woken(pid: int) -> int | None:
    """How often its main thread has slept: it has been woken as often, or is asleep."""
    with contextlib.suppress(OSError, ValueError):
        _, _, value = _read(f"/proc/{pid}/task/{pid}/status").partition(b"\nvoluntary_ctxt_switches:")
        return int(value.split()[0])
    return None


def _children_of(pid: int) -> list[int]:
    """Processes that it has started, and those that they have; at most ``_MOST_CHILDREN``."""
    found: list[int] = []
    frontier = [pid]
    while frontier and len(found) < _MOST_CHILDREN:
        parent = frontier.pop()
        try:
            children = [int(word) for word in _read(f"/proc/{parent}/task/{parent}/children").split()]
        except (OSError, ValueError):
            continue
        found += children
        frontier += children
    return found[:_MOST_CHILDREN]


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
