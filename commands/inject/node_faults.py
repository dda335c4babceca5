"""Faults of the node: a kernel's line in a played log, with the end of the process that it tells of; a port down."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

from ..run_folder.run_directory import Unusable
from .target_job import TargetRank

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_MOST_LINE = 900
#: As the kernel says it of a process that it ends for want of memory.
OUT_OF_MEMORY = (
    "Out of memory: Killed process {pid} (python3) total-vm:9437184kB, anon-rss:8388608kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:0 pgtables:18432kB oom_score_adj:0"
)
_IP_S = 10.0


class PlayedKernelLine:
    """What the kernel would say of the rank's process, and its end by SIGKILL, as the kernel makes it.

    The log has to be a file of the caller's own that the agent reads in place of the kernel's, which stays as it is.
    """

    def __init__(self, rank: TargetRank, log: Path, line: str) -> None:
        """Raises Unusable, OSError where the log or the line is not fit."""
        self.done_s: float | None = None
        self.step = -1
        self._rank, self._log = rank, log
        state = os.stat(log, follow_symlinks=False)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
            raise Unusable(f"{log}: not a file of your own; a played log is one, and the kernel's is not written to")
        self._text = line.replace("{pid}", str(rank.process.pid)).replace("{rank}", str(rank.rank))
        if not self._text.isprintable() or len(self._text) > _MOST_LINE:
            raise Unusable(f"--line: one line of {_MOST_LINE} printable characters at most")

    def begin(self) -> None:
        """Writes the line, and kills. Raises OSError, Unusable where the rank is gone."""
        self.step, at_s = self._rank.step, time.time()
        stamp = time.strftime("%b %e %H:%M:%S", time.localtime(at_s))
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        line = f"{stamp} {socket.gethostname()} kernel: [{boot_s:12.6f}] {self._text}\n"
        descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
        if not self._rank.process.send(signal.SIGKILL):
            raise Unusable(f"rank {self._rank.rank}: its process {self._rank.process.pid} is gone")
        self.done_s = at_s

    def tend(self) -> None:
        """Nothing is left to do."""

    def halt(self) -> None:
        """Nothing goes on."""

    def undo(self) -> None:
        """What was read cannot be taken back."""


class PortDown:
    """A network port in a namespace with a name of its own (``ip netns``), set down and up again. For root."""

    def __init__(self, namespace: str, port: str) -> None:
        """Raises Unusable where there is no such port, or it is down already."""
        self.done_s: float | None = None
        self.step = -1
        for option, name in (("namespace", namespace), ("port", port)):
            if not _NAME.fullmatch(name):
                raise Unusable(f"--{option} {name!r}: is no name of one")
        self._ip = ("ip", "-n", namespace, "link")
        self._port = port
        if ",UP" not in _asked(*self._ip, "show", "dev", port):
            raise Unusable(f"{port} in {namespace} is down already")

    def begin(self) -> None:
        """Sets it down."""
        at_s = time.time()
        _asked(*self._ip, "set", "dev", self._port, "down")
        self.done_s = at_s

    def tend(self) -> None:
        """Nothing is left to do."""

    def halt(self) -> None:
        """Nothing goes on."""

    def undo(self) -> None:
        """Sets it up; addresses stay, routes through it may have to be made again. Raises OSError where it cannot."""
        try:
            _asked(*self._ip, "set", "dev", self._port, "up")
        except Unusable as error:
            raise OSError(str(error)) from error


def _asked(*words: str) -> str:
    """What the program answers. Raises Unusable, in its words."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_IP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"{' '.join(words)}: {error}") from error
    if done.returncode:
        raise Unusable(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
