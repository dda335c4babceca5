"""Finding rings: which files of the ring directory are new, and whose process each one is.

Runs in the polling thread. A look at an unchanged directory costs one stat. The owner of a ring is the file's owner,
never what the ring says; a ring that points at a process of another user is read, and that process is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...telemetry import ring_layout as L
from ...telemetry.vocabulary import ProcessState
from ..base.health import AgentHealth
from ..processes import processes
from ..user_files.helper import MOST_NAMES
from ..user_files.system_calls import FileState, state_of
from ..user_files.user_files import files_of, open_own_folder
from .progress_page import heartbeat_time_ns
from .ring_file import RingDamaged, RingFile

_RESCAN_NS = 1_000_000_000
#: Rings that one look opens.
_MOST_NEW = 256
#: Ended rings that are kept, however small they are.
_MOST_KEPT = 1024


class EndedRings:
    """Rings whose ranks have ended and whose content has been shipped: kept for people, but not without bound."""

    def __init__(self, most_bytes: int, remove: Callable[[RingName], None]) -> None:
        """remove: with the rights of the ring's owner."""
        self._most_bytes = most_bytes
        self._remove = remove
        self._kept: deque[tuple[RingName, int]] = deque()
        self._bytes = 0

    def add(self, ring: RingFile) -> None:
        """Takes in an ended ring, and deletes the oldest files beyond the bound in bytes.

        What a file takes of the memory counts, not what it claims. What cannot be deleted stays.
        """
        size = ring.used_bytes
        self._kept.append((RingName(name=ring.path.name, uid=ring.uid), size))
        self._bytes += size
        while self._kept and (self._bytes > self._most_bytes or len(self._kept) > _MOST_KEPT) and len(self._kept) > 1:
            name, size = self._kept.popleft()
            self._bytes -= size
            with contextlib.suppress(OSError):
                self._remove(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingName:
    """A file of a folder of rings, and whose it is."""

    name: str
    uid: int


class RingDirectory:
    """A folder of rings, held by its descriptor: whatever its name leads to later, it stays this one."""

    def __init__(self, path: Path, health: AgentHealth, owner_uid: int | None = None, place: int = -1) -> None:
        """owner_uid: rings of others are left out; None: whoever put a ring here is read.

        place: the folder's open descriptor, which is closed with it; -1: it is opened by its name when it is there.
        """
        self._path = path
        self._place = place
        self._is_given = place >= 0
        self._owner_uid = owner_uid
        self._health = health
        self._seen: set[str] = set()
        self._changed_ns = -1
        self._scanned_ns = 0
        self._has_more = False

    def new_paths(self, now_ns: int) -> list[Path]:
        """Ring files not returned before, in name order; [] where the folder is absent or has not changed.

        At most ``_MOST_NEW``: the others come with the next calls. now_ns: monotonic.
        """
        try:
            changed_ns = self._state().changed_ns
        except OSError:
            self._changed_ns = -1
            return []
        # The clock behind mtime ticks in jiffies: a file that appears in the tick of our scan does not change it.
        if changed_ns == self._changed_ns and now_ns - self._scanned_ns < _RESCAN_NS and not self._has_more:
            return []
        self._changed_ns, self._scanned_ns = changed_ns, now_ns
        try:
            names = self._names()
        except OSError as error:
            self._health.report(f"ring directory {self._path}: {error.strerror or error}")
            return []
        new = sorted(names - self._seen)
        self._has_more = len(new) > _MOST_NEW
        del new[_MOST_NEW:]
        self._seen = (self._seen & names) | set(new)
        return [self._path / name for name in new]

    def open_ring(self, path: Path) -> RingFile | None:
        """The ring at this path, opened with its owner's rights; None where it is damaged, unreadable, gone or another
        owner's.

        Unless it is gone that is counted, and reported in the health record.
        """
        try:
            uid = state_of(self._place, path.name).uid
            if self._owner_uid is not None and uid != self._owner_uid:
                raise OSError(errno.EPERM, f"belongs to user {uid}, its folder to user {self._owner_uid}")
            ring = RingFile(path, fd=files_of(uid).open_file(self._place, path.name))
        except FileNotFoundError:
            return None  # removed between scan and open
        except RingDamaged as damage:
            self._health.rings_refused += 1
            self._health.report(str(damage))
            return None
        except OSError as error:
            self._health.rings_refused += 1
            self._health.report(f"ring {path}: {error.strerror or error}")
            return None
        if ring.header.identity_problem:
            self._health.report(f"ring {path}: {ring.header.identity_problem}")
        return ring

    def remove(self, ring: RingName) -> None:
        """Removes a ring's file with its owner's rights. Raises OSError."""
        files_of(ring.uid).remove(self._place, ring.name)

    def close(self) -> None:
        """Lets go of the folder; may be called again."""
        if self._place >= 0:
            os.close(self._place)
            self._place = -1

    def _state(self) -> FileState:
        """Raises OSError where the folder is not there (any more)."""
        if self._place < 0:
            if self._is_given:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._place = open_own_folder(self._path)
        state = state_of(self._place)
        if not state.links:  # removed; one that was opened by its name may be made again
            self.close()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return state

    def _names(self) -> set[str]:
        names: set[str] = set()
        with os.scandir(self._place) as entries:
            for entry in entries:
                if entry.name.endswith(L.RING_SUFFIX) and not entry.name.startswith("."):
                    names.add(entry.name)
                    if len(names) >= MOST_NAMES:
                        self._health.report(
                            f"ring directory {self._path}: more than {MOST_NAMES} rings; some are not read"
                        )
                        break
        return names


@dataclass(frozen=True, slots=True)
class RingProcess:
    """The process behind a ring: ``pid`` 0 = not known here; ``pidfd`` -1 = cannot be waited for."""

    pid: int
    start_ticks: int
    pidfd: int
    alive: bool
    problem: str = ""


def find_process(ring: RingFile) -> RingProcess:
    """The process that writes this ring, and whether it lives.

    The lock's holder is believed before the header: its pid is right in every namespace.
    """
    header = ring.header
    holder = processes.lock_holder(ring.fd)
    pid = holder if holder else header.pid
    stat = processes.read_stat(pid) if pid else None
    dead = RingProcess(pid, header.start_ticks, -1, False)
    if stat is None or stat.state in (ProcessState.ZOMBIE, ProcessState.DEAD):
        # Locked by a process that we cannot see (another PID namespace): alive, but nothing to wait for.
        if holder == 0:
            return RingProcess(0, 0, -1, True, "its process is in another PID namespace")
        if stat is not None and stat.start_ticks == header.start_ticks:
            return RingProcess(pid, header.start_ticks, processes.open_pidfd(pid), False)
        return dead
    if header.start_ticks and stat.start_ticks != header.start_ticks:
        return dead  # the pid was reused
    if not header.start_ticks and not holder:
        return dead
    if processes.process_uid(pid) != ring.uid:
        return RingProcess(0, 0, -1, bool(holder), f"claims process {pid}, which belongs to another user")
    # All of root's processes are root's: only the lock tells which one. (A process does not see its own.)
    if ring.uid == 0 and not holder and pid != os.getpid():
        return RingProcess(0, 0, -1, False, f"claims process {pid} of root, which does not hold its lock")
    pidfd = processes.open_pidfd(pid)
    again = processes.read_stat(pid)
    if again is None or again.start_ticks != stat.start_ticks:
        if pidfd >= 0:
            os.close(pidfd)
        return dead
    return RingProcess(pid, stat.start_ticks, pidfd, True)


def gave_sign_of_life(ring: RingFile, since_ns: int | None) -> bool:
    """Whether the ring's writer had a heartbeat, or began, at ``since_ns`` (monotonic) or later; False for None."""
    if since_ns is None:
        return False
    beat_ns = heartbeat_time_ns(*ring.read_page()) or 0
    return max(ring.header.created_mono_ns, beat_ns) >= since_ns


def identity_int(identity: dict[str, Any], key: str, default: int = 0) -> int:
    """An integer of the ring's identity, also where it is text, as launchers hand it over; else ``default``."""
    value = identity.get(key, default)
    if isinstance(value, bool):
        return default
    if isinstance(value, int):
        return value if abs(value) < 1 << 62 else default
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18:
        return int(value)
    return default
