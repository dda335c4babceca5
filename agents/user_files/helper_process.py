"""The helper process of one user, seen from the agent: started on demand, asked one thing at a time, given up in time.

It has its user's uid, so he may stop or kill it: every request has a time-out, and one whose helper does not answer is
left alone for a while, longer each time. That costs nobody but him. May be used by several threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import helper, helper_starter
from . import rights as rights_module

#: A package of its own there, whose modules import a little of the standard library only.
_FOLDER = str(Path(helper.__file__).resolve().parents[1])
_BEGIN = (sys.executable, "-I", "-S", "-c")
_STARTER = "import sys; sys.path.append(sys.argv[1]); from user_files.helper_starter import main; main()"
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from user_files.helper import become_program as become; "
_PROGRAM += "become(sys.argv[2:])"
#: Until the starter has begun, or a helper is ready, on a machine that is full.
_START_S = 10.0
_ANSWER_S = 3.0
#: So often another one is started at once in place of one that was killed.
_MOST_KILLED = 3
_NO_ENVIRONMENT: dict[str, str] = {}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0


@dataclass(frozen=True, slots=True)
class Rights:
    """gid and groups: of a process of the user, as the kernel tells; nobody's where no process is known."""

    uid: int
    gid: int = 65534
    groups: tuple[int, ...] = ()


class HelperUnavailable(OSError):
    """The user's helper cannot be started, has been ended, or does not answer."""


class HelperStarter:
    """The process that forks helpers (``helper_starter``), started on demand. May be used by several threads.

    No user can stop or kill it. Where it has died, its helpers live on until nobody asks them anything.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def start(self, rights: Rights, theirs: socket.socket) -> int:
        """The pid of a new helper, which has its end of a connection. Raises OSError."""
        words = [helper_starter.START, str(rights.uid), str(rights.gid), ",".join(map(str, rights.groups))]
        with self._lock:
            for is_last in (False, True):  # somebody may have killed it
                connection = self._connection or self._begin()
                try:
                    helper.send(connection, words, theirs.fileno())
                    said = connection.recv(64)
                except OSError:
                    said = b""
                if pid := int(said or b"0"):
                    return pid
                if said or is_last:
                    break
                self._end()
        raise OSError(errno.EAGAIN, "no process can be started")

    def end(self, pid: int) -> None:
        """Ends a helper, if it still runs."""
        with self._lock, contextlib.suppress(OSError):
            if self._connection is not None:
                helper.send(self._connection, [helper_starter.END, str(pid)], -1)

    def close(self) -> None:
        """Ends the process, and with it what it has started; the next helper starts another one."""
        with self._lock:
            self._end()

    def _begin(self) -> socket.socket:
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._child = subprocess.Popen(
                [*_BEGIN, _STARTER, _FOLDER],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                cwd="/", env=_NO_ENVIRONMENT, start_new_session=True,
            )  # fmt: skip
        ours.settimeout(_START_S)
        self._connection = ours
        return ours

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
            self._child.kill()
            self._child.wait()
            self._child = None


#: This process's.
STARTER = HelperStarter()


class HelperProcess:
    def __init__(self, uid: int) -> None:
        self._rights = Rights(uid)
        self._lock = threading.Lock()
        self._pid = 0
        self._connection: socket.socket | None = None
        self._used_s = self._started_s = time.monotonic()
        self._killed = 0
        self._pause_s, self._not_before_s = _FIRST_PAUSE_S, 0.0

    @property
    def pid(self) -> int:
        """Of the process that runs now; 0: none does."""
        connection = self._connection
        if connection is None:
            return 0
        with contextlib.suppress(OSError, ValueError):  # closed by another thread
            waits = select.poll()
            waits.register(connection, 0)
            if not waits.poll(0):
                return self._pid
        return 0

    @property
    def idle_s(self) -> float:
        """Seconds since it was last asked for something."""
        return time.monotonic() - self._used_s

    def ask(self, words: Sequence[str], folder: int, rights: Rights | None) -> tuple[list[str], int]:
        """The helper's answer: words and a descriptor (or -1), neither of which may be believed.

        rights: of the process that it is about; None: whatever the helper has. Raises HelperUnavailable.
        """
        with self._lock:
            self._used_s = time.monotonic()
            if self._used_s < self._not_before_s:
                raise HelperUnavailable(errno.EAGAIN, f"the helper of user {self._rights.uid} does not answer")
            if rights is not None and rights != self._rights:
                self._end()
                self._rights = rights
            try:
                return self._ask(words, folder)
            except OSError as error:
                self._end()
                self._not_before_s, self._pause_s = (
                    time.monotonic() + self._pause_s,
                    min(2 * self._pause_s, _LONGEST_PAUSE_S),
                )
                text = f"the helper of user {self._rights.uid} does not answer: {type(error).__name__}"
                raise HelperUnavailable(errno.EAGAIN, text) from error

    def end(self) -> None:
        """Ends the process; the next request starts another one."""
        with self._lock:
            self._end()

    def _ask(self, words: Sequence[str], folder: int) -> tuple[list[str], int]:
        for is_last in (False, True):  # it may have been about to end by itself
            is_new = self._connection is None
            connection = self._connection or self._start()
            try:
                helper.send(connection, words, folder)
                raw, fd = helper.receive(connection)
            except (BrokenPipeError, ConnectionResetError):
                raw, fd = b"", -1
            if raw:
                if not is_new:
                    self._pause_s = _FIRST_PAUSE_S
                return os.fsdecode(raw).split("\0"), fd
            if fd >= 0:
                os.close(fd)
            self._end()
            # Before its idle time is over it does not end by itself: somebody ends it again and again.
            self._killed += time.monotonic() - self._started_s < helper.IDLE_S
            if is_new or is_last or self._killed >= _MOST_KILLED:
                self._killed = 0
                break
        raise ConnectionResetError(errno.ECONNRESET, "it ended")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = 0
        try:
            pid = self._pid = STARTER.start(self._rights, theirs)
            theirs.close()  # only the helper has it now: when that ends, we hear of it
            ours.settimeout(_START_S)
            if ours.recv(len(helper.READY)) != helper.READY:
                raise ConnectionResetError(errno.ECONNRESET, "it ended before it was ready")
            ours.settimeout(_ANSWER_S)
        except BaseException:
            ours.close()
            if pid:
                STARTER.end(pid)  # its user may have stopped it: then it does not see that nobody asks any more
            raise
        finally:
            theirs.close()
        self._connection, self._started_s = ours, time.monotonic()
        return ours

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            STARTER.end(self._pid)


def run_bounded(
    program: int, words: Sequence[str], rights: Rights, timeout_s: float, most_bytes: int
) -> tuple[int, bytes, bytes]:
    """Runs the program that is open as ``program`` with these rights: exit status, standard output and error.

    Raises OSError, TimeoutError among them, and ValueError for more output than ``most_bytes``; then it is killed.
    """
    groups = ",".join(map(str, rights.groups))
    child = subprocess.Popen(
        [*_BEGIN, _PROGRAM, _FOLDER, str(rights.uid), str(rights.gid), groups, str(program), *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd="/", env=_NO_ENVIRONMENT, pass_fds=(program,), start_new_session=True,
    )  # fmt: skip
    return _outcome(child, timeout_s, most_bytes)


def read_bounded(
    module: str, content: bytes, words: Sequence[str], rights: Rights, timeout_s: float, most_bytes: int
) -> tuple[int, bytes, bytes]:
    """Runs ``main(words)`` of a module of ours on ``content``, its input, with these rights; as ``run_bounded``.

    It is imported before the rights are given up: it may lie where the user cannot read.
    """
    groups = ",".join(map(str, rights.groups))
    begin = f"import sys; from {module} import main; from {rights_module.__name__} import become_reader as become; "
    begin += "main(become(sys.argv[1:]))"
    fd = os.memfd_create("whichrank", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        child = subprocess.Popen(
            [sys.executable, "-I", "-c", begin, str(rights.uid), str(rights.gid), groups, *words],
            stdin=fd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd="/", env=_NO_ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(fd)
    return _outcome(child, timeout_s, most_bytes)


def _outcome(child: subprocess.Popen[bytes], timeout_s: float, most_bytes: int) -> tuple[int, bytes, bytes]:
    assert child.stdout is not None
    assert child.stderr is not None
    said: dict[int, bytearray] = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    deadline_s = time.monotonic() + timeout_s
    try:
        waits = select.poll()
        for fd in said:
            waits.register(fd, select.POLLIN)
        left = len(said)
        while left:
            ready = waits.poll(max(deadline_s - time.monotonic(), 0.0) * 1000)
            if not ready:
                raise TimeoutError(errno.ETIMEDOUT, f"did not end within {timeout_s:g} s")
            for fd, _ in ready:
                piece = os.read(fd, 64 << 10)
                said[fd] += piece
                if not piece:
                    waits.unregister(fd)
                    left -= 1
                if len(said[fd]) > most_bytes:
                    raise ValueError(f"says more than {most_bytes} bytes")
        status = child.wait(max(deadline_s - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(errno.ETIMEDOUT, f"did not end within {timeout_s:g} s") from error
    finally:
        child.kill()
        child.stdout.close()
        child.stderr.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
    out, errors = said.values()
    return status, bytes(out), bytes(errors)
