"""Starts users' helpers: a small process of root's that forks one for each user, so that they share their memory.

    main()                   a SOCK_SEQPACKET socket is its standard input

The agent itself cannot be forked: it has threads, and holds what a helper must not have. This one holds nothing but
the interpreter, hears nobody but the agent, and opens nothing. It imports a little of the standard library only.
"""

from __future__ import annotations

import gc
import os
import select
import signal
from _socket import socket as Socket

from .helper import receive, run_helper
from .rights import STARTER_CAPABILITIES, drop_capabilities, drop_from_bounding_set, name_process

START, END = "start", "end"
#: What has ended is reaped so often; before that its pid is nobody else's.
_REAP_S = 1.0


def main() -> None:
    """Serves the agent until that ends, and ends what it has started."""
    connection = Socket(fileno=os.dup(0))
    quiet = os.open("/dev/null", os.O_RDWR)
    os.dup2(quiet, 0)
    os.close(quiet)
    drop_from_bounding_set(STARTER_CAPABILITIES)
    drop_capabilities(STARTER_CAPABILITIES)
    gc.collect()
    gc.freeze()  # what is there now is shared by all, and no collection is to write to it
    children: set[int] = set()
    try:
        _serve(connection, children)
    finally:
        for pid in children:  # one that its user has stopped does not see that its connection is closed
            _end(pid, children)


def _serve(connection: Socket, children: set[int]) -> None:
    while True:
        ready = select.select([connection], [], [], _REAP_S if children else None)[0]
        _reap(children)
        if not ready:
            continue
        raw, given = receive(connection)
        if not raw:
            return
        word, *words = os.fsdecode(raw).split("\0")
        if word == END:
            _end(int(words[0]), children)
        elif word == START:
            pid = _start(connection, words, given)
            children.add(pid)
            connection.send(b"%d" % pid)
        if given >= 0:
            os.close(given)


def _start(connection: Socket, words: list[str], given: int) -> int:
    """The pid of a new helper; 0: the machine has no room for one."""
    try:
        pid = os.fork()
    except OSError:
        return 0
    if pid == 0:
        try:
            connection.close()
            os.setsid()
            name_process(f"helper-{words[0]}")
            run_helper(Socket(fileno=given), words)
        finally:
            os._exit(1)
    return pid


def _end(pid: int, children: set[int]) -> None:
    """Only a child that has not been reaped: its pid cannot be another one's."""
    if pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return  # without CAP_KILL: it ends when it is idle


def _reap(children: set[int]) -> None:
    children.discard(0)
    while children:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            children.clear()
            return
        if pid == 0:
            return
        children.discard(pid)
