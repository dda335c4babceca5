"""Runs a command inside the namespaces of a process, as a child that is passed on what ends a job.

usage: enter_node.py PID COMMAND...   A PID namespace holds only for children, so one process stays in between.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

#: In this order: the mount namespace last, so that /proc is ours until all are open.
NAMESPACES = ("uts", "net", "time", "pid", "mnt")


def main() -> None:
    holder, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    opened = [os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES]
    folder = os.getcwd()
    for descriptor in opened:
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), "setns")
    os.chdir(folder)
    child = os.fork()
    if not child:
        os.execvp(command[0], command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: _pass_on(child, received))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


def _pass_on(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


if __name__ == "__main__":
    main()
