"""The watched command as a child process that notices no difference.

It stays in our process group with our terminal, stdin, stdout and stderr, so Ctrl-C, Ctrl-Z and ``kill -- -GROUP``
reach it from the kernel exactly as they would without us. Only a signal that was sent to our process alone must be
passed on, and only once: torchrun raises an exception inside its own clean-up when a second SIGTERM comes. A signal
handler cannot tell the two apart, so a tiny witness process sits in the same group: what the witness received too was
sent to the group. Never changes the command's environment beyond what it is given, and never kills it (the supervisor
may, where one is asked for).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

#: Signals that a terminal, a shell or a scheduler sends to end or nudge a job.
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: How long the witness may take to report on a loaded machine before a signal counts as sent to us alone.
WITNESS_PATIENCE_S = 0.25
#: A report this much older than our own delivery still speaks of the same signal.
WITNESS_MEMORY_S = 1.0
#: What a shell answers when a command cannot be executed.
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
_PR_SET_PDEATHSIG = 1


class CommandNotStarted(Exception):
    """The command could not be executed. ``exit_code`` is what a shell would answer."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSeen:
    """A request to end or nudge the job. ``passed_on``: we sent it to the command, the kernel did not.

    mono_ns: when it came, before it was passed on: what ranks do about it comes after.
    """

    number: int
    mono_ns: int
    passed_on: bool


class ForegroundCommand:
    """Runs one command in the foreground. Create at most one per process, in the main thread, before other threads."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it. Raises CommandNotStarted."""
        #: What has been asked of the job so far, in order; filled by a thread, read by the watching loop.
        self.signals: queue.SimpleQueue[SignalSeen] = queue.SimpleQueue()
        self._status: int | None = None
        # Signals ignored when we started (nohup, background jobs of plain shells) are ignored by the command too.
        self._handled = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
        self._witness_pid, self._witness_pipe = _start_witness(self._handled)
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_write, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        for number in self._handled:
            signal.signal(number, _leave_to_the_wakeup_pipe)
        #: Monotonic: nothing of the command is older.
        self.started_mono_ns = time.monotonic_ns()
        try:
            self.pid = _spawn(argv, environ)
        except CommandNotStarted:
            self._stop_witness()
            raise
        self._environ = dict(environ)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        threading.Thread(target=self._pass_on_signals, name="whichrank-signals", daemon=True).start()

    def start_again(self, argv: Sequence[str]) -> None:
        """Starts a command in the place of the one that has ended, with its environment and its umask. Signals reach it
        as they did the one before. Raises CommandNotStarted; then that one's end stands.
        """
        assert self._status is not None, "the command is still running"
        ours = os.umask(self._umask)
        try:
            pid = _spawn(argv, self._environ)
        finally:
            os.umask(ours)
        self.pid, self._status = pid, None

    def poll(self) -> bool:
        """Whether the command has ended. Does not block."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is not None

    def wait(self) -> None:
        """Blocks until the command has ended."""
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)

    @property
    def exit_code(self) -> int:
        """The exit code that a shell shows, 128 + the signal's number for a signal.

        Only after the command has ended.
        """
        assert self._status is not None, "the command is still running"
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    @property
    def signal_number(self) -> int:
        """The signal that ended the command; 0 if none did, or it runs."""
        return os.WTERMSIG(self._status) if self._status is not None and os.WIFSIGNALED(self._status) else 0

    def exit_as_it_did(self) -> NoReturn:
        """End this process as the command ended, by the same signal if it was one: callers see no difference."""
        self._stop_witness()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        number = self.signal_number
        if number:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core dump that matters is the command's
                if number != signal.SIGKILL:
                    signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                time.sleep(1)  # the signal ends us here, unless it is one that cannot
        os._exit(self.exit_code)

    def _pass_on_signals(self) -> None:
        seen_by_witness: dict[int, float] = {}
        poller = select.poll()
        poller.register(self._wakeup_read, select.POLLIN)
        poller.register(self._witness_pipe, select.POLLIN)
        witness_lives = True
        waiting: dict[int, float] = {}  # signal -> deadline for the witness's report
        came_ns: dict[int, int] = {}
        while True:
            patience_ms = None
            if waiting:
                patience_ms = max(0.0, min(waiting.values()) - time.monotonic()) * 1000 + 1
            for descriptor, _ in poller.poll(patience_ms):
                data = os.read(descriptor, 512)
                now = time.monotonic()
                if descriptor == self._witness_pipe:
                    if not data:
                        poller.unregister(descriptor)
                        witness_lives = False
                    seen_by_witness.update(dict.fromkeys(data, now))
                else:
                    for number in data:
                        if number in self._handled:
                            waiting.setdefault(number, now + (WITNESS_PATIENCE_S if witness_lives else 0.0))
                            came_ns.setdefault(number, time.monotonic_ns())
            now = time.monotonic()
            for number, deadline in list(waiting.items()):
                to_group = now - seen_by_witness.get(number, -WITNESS_MEMORY_S) < WITNESS_MEMORY_S
                if not witness_lives and number == signal.SIGINT:
                    to_group = True  # most often the keyboard; twice would be worse than once less
                if not to_group and now < deadline:
                    continue
                del waiting[number]
                if not to_group:
                    self._send(number)
                self.signals.put(SignalSeen(number=number, mono_ns=came_ns.pop(number), passed_on=not to_group))

    def _send(self, number: int) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def _stop_witness(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._witness_pid, signal.SIGKILL)
            os.waitpid(self._witness_pid, 0)


def _spawn(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The pid of the command, started. Raises CommandNotStarted."""
    try:
        # The interpreter ignores these two; a command started by a shell finds them at their default.
        return os.posix_spawnp(argv[0], list(argv), environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise CommandNotStarted(
            f"{argv[0]}: {error.strerror}", EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE
        ) from error


def _leave_to_the_wakeup_pipe(number: int, frame: object) -> None:
    """A Python handler must exist for the interpreter to write the signal into the wakeup pipe."""


def _start_witness(numbers: Sequence[int]) -> tuple[int, int]:
    """Fork the witness. Returns its pid and the pipe on which it reports each signal as one byte."""
    reports, report_here = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(report_here)
        return pid, reports
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        # The witness must never outlive us: it holds our place in the process group.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.close(reports)
            for descriptor in (0, 1, 2):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            while True:
                os.write(report_here, bytes([signal.sigwait(numbers)]))
    finally:
        os._exit(0)
