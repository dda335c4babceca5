"""Processes of ranks as the kernel sees them: state, CPU time, death, exit code, lock holder, launcher.

Called from the agent's polling thread; every call is one or two system calls and never blocks. What the kernel will
not tell is None, never a guess. A process is identified by pid and start time, because pids are reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from dataclasses import dataclass

from ...telemetry.vocabulary import ProcessState

_STATES = {
    "R": ProcessState.RUNNING,
    "S": ProcessState.SLEEPING,
    "I": ProcessState.SLEEPING,
    "D": ProcessState.DISK_WAIT,
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "Z": ProcessState.ZOMBIE,
    "X": ProcessState.DEAD,
}
_ENDED = (ProcessState.ZOMBIE, ProcessState.DEAD)
_TICK_NS = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") or 100)
#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
#: PIDFD_GET_INFO = _IOWR(0xFF, 11, 64 bytes): Linux 6.13; the exit code is kept past reaping since 6.15.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO_BYTES = 64
_PIDFD_INFO_EXIT_CODE = struct.Struct("<i")
_MAX_ANCESTORS = 8


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """From /proc/PID/stat. ``wait_status`` is meaningful for a zombie (and only with the right to read it)."""

    state: ProcessState
    traced: bool
    parent_pid: int
    cpu_ns: int
    start_ticks: int
    wait_status: int
    major_faults: int = 0  # pages that had to be read from disk


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended. ``exit_code`` None = unknown; ``signal`` 0 = none."""

    exit_code: int | None
    signal: int
    core: bool


UNKNOWN_EXIT = ExitStatus(None, 0, False)


def parse_stat(raw: bytes) -> ProcessStat | None:
    """One /proc/PID/stat line. The command name may hold spaces and brackets, so fields start after the last ')'."""
    fields = raw[raw.rfind(b")") + 2 :].split()
    try:
        letter = fields[0].decode()
        return ProcessStat(
            state=_STATES.get(letter, ProcessState.UNKNOWN),
            traced=letter == "t",
            parent_pid=int(fields[1]),
            cpu_ns=(int(fields[11]) + int(fields[12])) * _TICK_NS,
            start_ticks=int(fields[19]),
            wait_status=int(fields[49]) if len(fields) > 49 else 0,
            major_faults=int(fields[9]),
        )
    except (IndexError, ValueError):
        return None


def read_stat(pid: int, *, thread: int = 0) -> ProcessStat | None:
    """The state of a process, or of one ``thread`` (id) of it; None if there is none, or it may not be read."""
    try:
        path = f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat"
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_stat(os.read(fd, 2048))
    except OSError:
        return None
    finally:
        os.close(fd)


def process_uid(pid: int, proc: str | os.PathLike[str] = "/proc") -> int | None:
    """Effective uid of a process; None if it is gone.

    From the status file, because /proc/PID itself belongs to root where a process is not dumpable.
    """
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"{os.fspath(proc)}/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Uid:"):
                return int(line.split()[2])
    return None


def started_wall_ns(pid: int) -> int:
    """Unix time (ns) at which a process began, by the kernel's word, to a tick; 0 where there is none."""
    stat = read_stat(pid)
    if stat is None:
        return 0
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - stat.start_ticks * _TICK_NS
    return time.time_ns() - age_ns - _TICK_NS


def decode_wait_status(status: int) -> ExitStatus:
    """How a process ended, from the kernel's exit word.

    Its low 7 bits are the signal, bit 7 a core dump, the next byte the exit code.
    """
    number = status & 0x7F
    if number:
        return ExitStatus(None, number, bool(status & 0x80))
    return ExitStatus(status >> 8 & 0xFF, 0, False)


def lock_holder(fd: int) -> int | None:
    """Pid that holds a write lock on byte 0 of the file: None = nobody, 0 = somebody in another PID namespace."""
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    except OSError:
        return None
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def open_pidfd(pid: int) -> int:
    """A pidfd, or -1 if the process is gone or the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def exit_from_pidfd(pidfd: int) -> ExitStatus | None:
    """Exit status of a process that was already reaped; None before that, or on kernels before 6.15."""
    buffer = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("<Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    if not struct.unpack_from("<Q", buffer, 0)[0] & _PIDFD_INFO_EXIT:
        return None
    return decode_wait_status(_PIDFD_INFO_EXIT_CODE.unpack_from(buffer, 60)[0])


def exit_status(pid: int, start_ticks: int, pidfd: int, uid: int) -> ExitStatus:
    """How the process ended, from its zombie or, once reaped, from the pidfd.

    The parent may reap between the two looks, so they are repeated. The kernel shows 0 instead of the real word of a
    process that we may not trace; that is unknown, not success.
    """
    may_read = os.geteuid() in (0, uid)
    for _ in range(3):
        stat = read_stat(pid)
        ended = stat is not None and stat.start_ticks == start_ticks and stat.state in _ENDED
        if stat is not None and ended and (may_read or stat.wait_status):
            return decode_wait_status(stat.wait_status)
        if pidfd >= 0:
            status = exit_from_pidfd(pidfd)
            if status is not None:
                return status
    return UNKNOWN_EXIT


def has_rank_variables(pid: int) -> bool:
    """Whether LOCAL_RANK is in the environment that the process began with. False if that may not be read."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return any(item.startswith(b"LOCAL_RANK=") for item in file.read().split(b"\0"))
    return False


def find_launcher(pid: int) -> tuple[int, int]:
    """(pid, start ticks) of the process that launched the ranks: the first ancestor without rank variables.

    A shell or a profiler between launcher and rank inherits them and would give every rank its own launcher.
    (0, 0) if unknown.
    """
    stat = read_stat(pid)
    for _ in range(_MAX_ANCESTORS):
        if stat is None or stat.parent_pid <= 0:
            return 0, 0
        parent = stat.parent_pid
        stat = read_stat(parent)
        if stat is None:
            return 0, 0
        if parent == 1 or not has_rank_variables(parent):
            return parent, stat.start_ticks
    return 0, 0
