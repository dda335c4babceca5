"""A program's exit status and the begin of what it said, whatever it says and for however long."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence

MOST_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16


def run_bounded(words: Sequence[str], timeout_s: float) -> tuple[int, bytes, bytes]:
    """The exit status, and the first megabyte of stdout and of stderr; what comes beyond is read and left out.

    Raises OSError and ValueError as ``subprocess.Popen``, and TimeoutExpired; then all that it has started is killed.
    """
    deadline_s = time.monotonic() + timeout_s
    said = {1: b"", 2: b""}
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    ) as program:
        try:
            with selectors.DefaultSelector() as selector:
                for number, pipe in ((1, program.stdout), (2, program.stderr)):
                    assert pipe is not None
                    selector.register(pipe, selectors.EVENT_READ, number)
                while selector.get_map():
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        raise subprocess.TimeoutExpired(words, timeout_s)
                    for key, _ in selector.select(min(left_s, 0.2)):
                        data = os.read(key.fd, _CHUNK_BYTES)
                        said[key.data] += data[: MOST_BYTES - len(said[key.data])]
                        if not data:
                            selector.unregister(key.fileobj)
                    if program.poll() is not None and not selector.select(0):
                        break  # a program of its own may keep the pipes
            status = program.wait(max(0.0, deadline_s - time.monotonic()))
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            raise
    return status, said[1], said[2]
