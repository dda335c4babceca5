"""Processes of users who have no rights, and control groups with a memory limit."""

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


def fork_as(uid: int, act: Callable[[], None]) -> int:
    """The pid of a child with that user's rights and no groups, which acts and ends. A fork, since the interpreter may
    lie where other users cannot start it: what `act` imports must be imported before."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
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


_MEMORY = Path("/sys/fs/cgroup/memory")


@contextlib.contextmanager
def memory_limited(name: str, limit_bytes: int) -> Iterator[Callable[[int], None]]:
    """A control group of the kernel with a memory limit (version 1 or 2), and what puts a process into it.

    What is in it at the end is killed, but for this process. Raises OSError where this machine has no such controller.
    """
    root = _MEMORY if _MEMORY.is_dir() else Path("/sys/fs/cgroup")
    folder = _group(name)
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if _MEMORY.is_dir() else "memory.max")).write_text(str(limit_bytes))

        with contextlib.suppress(OSError):  # what the process has already counts as well, where the kernel can do that
            (folder / "memory.move_charge_at_immigrate").write_text("3")

        def put_in(pid: int) -> None:
            (folder / "cgroup.procs").write_text(str(pid))

        yield put_in
    finally:
        with contextlib.suppress(OSError):
            for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                if pid == os.getpid():
                    (root / "cgroup.procs").write_text(str(pid))
                else:
                    os.kill(pid, signal.SIGKILL)
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            signal.sigtimedwait([], 0.1)


def _group(name: str) -> Path:
    root = _MEMORY if _MEMORY.is_dir() else Path("/sys/fs/cgroup")
    return root / f"whichrank-attack-{name}-{os.getpid()}"


@contextlib.contextmanager
def own_memory_limited(name: str, limit_bytes: int) -> Iterator[Callable[[], str]]:
    """This process, and what it starts, in a control group with a memory limit; what says under which limit it ran, and
    how much it took at most. Where the kernel has no such controller its address space is limited instead.

    Beyond the limit the kernel kills it: the attack has failed then.
    """
    limit_mb = limit_bytes >> 20
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(memory_limited(name, limit_bytes))(os.getpid())
        except OSError:
            before = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, before[1]))
            stack.callback(resource.setrlimit, resource.RLIMIT_AS, before)
            yield lambda: f"under RLIMIT_AS of {limit_mb} MB (no memory controller here)"
            return
        most = _group(name) / ("memory.max_usage_in_bytes" if _MEMORY.is_dir() else "memory.peak")
        yield lambda: f"{int(most.read_text()) >> 20} MB with files at most in a control group of {limit_mb} MB"
