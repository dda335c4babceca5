"""Processes of users who have no rights, and a memory limit for the agent beside them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

#: Two users of a node, and the one whose files nobody may read.
EVE, QUINN = 12001, 12002
#: What docs/agent.md and docker-compose.yml give the agent.
AGENT_LIMIT_MB = 512


def fork_as(uid: int, act: Callable[[], None]) -> int:
    """The pid of a child with that user's rights and no groups, which acts and ends. A fork, since the interpreter may
    lie where other users cannot start it: what `act` imports must be imported before."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        for procs in _OUTSIDE:
            procs.write_text(str(os.getpid()))
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        act()
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(status)


def run_as(uid: int, act: Callable[[], None]) -> None:
    """Raises ChildProcessError where it did not end well."""
    _, status = os.waitpid(fork_as(uid, act), 0)
    if status:
        raise ChildProcessError(f"what user {uid} did ended with status {status}: its traceback is on stderr")


@contextlib.contextmanager
def living_as(uid: int, act: Callable[[], None]) -> Iterator[int]:
    """A child of that user that has acted, and lives (holding its locks and descriptors) until the end of the block."""
    reader, writer = os.pipe()

    def act_and_stay() -> None:
        os.close(reader)
        act()
        os.write(writer, b"1")
        os.close(writer)
        while True:
            signal.pause()

    pid = fork_as(uid, act_and_stay)
    os.close(writer)
    try:
        if os.read(reader, 1) != b"1":
            raise ChildProcessError(f"what user {uid} did has failed: its traceback is on stderr")
        yield pid
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


class MemoryLimit:
    """A limit for this process and what it starts, but for users' processes (``fork_as``): those are not the agent's.

    A control group of the kernel, version 1 or 2; where it has no memory controller, RLIMIT_AS above what there is.
    """

    def __init__(self, limit_mb: int) -> None:
        old = Path("/sys/fs/cgroup/memory")
        self._top = old if old.is_dir() else Path("/sys/fs/cgroup")
        self._peak = "memory.max_usage_in_bytes" if old.is_dir() else "memory.peak"
        self._limit_mb = limit_mb
        self._folder: Path | None = self._top / f"whichrank-attack-{os.getpid()}"
        try:
            self._folder.mkdir()
            name = "memory.limit_in_bytes" if old.is_dir() else "memory.max"
            (self._folder / name).write_text(str(limit_mb << 20))
        except OSError:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            self._folder = None
        else:
            with contextlib.suppress(OSError):  # what a process has already counts too, where the kernel can do that
                (self._folder / "memory.move_charge_at_immigrate").write_text("3")

    def put_in(self, pid: int) -> None:
        """Limits a process. Without a control group this must be the caller itself. Raises OSError."""
        if self._folder is not None:
            (self._folder / "cgroup.procs").write_text(str(pid))
            _OUTSIDE.append(self._top / "cgroup.procs")
            return
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + (self._limit_mb << 20)
        resource.prlimit(pid, resource.RLIMIT_AS, (most, most))

    def describe(self) -> str:
        """What it ran under, and the most that it took."""
        if self._folder is None:
            return f"under RLIMIT_AS, {self._limit_mb} MB more than at first (no memory controller here)"
        peak_mb = int((self._folder / self._peak).read_text()) >> 20
        return f"in a control group of {self._limit_mb} MB, at most {peak_mb} MB of it"

    def close(self) -> None:
        """Ends what is left in the group, but for the caller, and removes it."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            (self._top / "cgroup.procs").write_text(str(os.getpid()))
            for pid in (self._folder / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        for _ in range(50):
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                break
            signal.sigtimedwait([], 0.1)


#: Where users' processes go, once this one is limited.
_OUTSIDE: list[Path] = []


@contextlib.contextmanager
def own_memory_limited(limit_bytes: int) -> Iterator[Callable[[], str]]:
    """This process, and what it starts, under a memory limit; what says under which, and how much it took at most.

    Beyond the limit the kernel kills it: the attack has failed then.
    """
    limit = MemoryLimit(limit_bytes >> 20)
    try:
        limit.put_in(os.getpid())
        yield limit.describe
    finally:
        limit.close()
