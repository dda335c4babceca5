"""The process of one collector that may block for ever: told by its parent what it is, it sends what it sees.

``python -m whichrank.agents.collectors.child``: a ``Plan`` on stdin; frames on stdout (``schedule``): the period when a
look begins, what it saw when it ends, a line when it failed. It ends with its parent.
"""

from __future__ import annotations

import os
import select
import sys
import time

from .collector import Collector, Moment
from .schedule import FIRST_PAUSE_S, LONGEST_PAUSE_S, Plan, read_frame, write_frame


def main() -> int:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a driver prints is no frame
    plan = read_frame(sys.stdin.buffer)
    if not isinstance(plan, Plan):
        return 2
    collector: Collector | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        write_frame(out, collector.period_s if collector is not None else 10.0)
        try:
            collector = collector or plan.make()
            collected = collector.collect(Moment(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns()))
        except Exception as error:  # edge: a driver's library can do anything
            write_frame(out, f"{type(error).__name__}: {error}")
            wait_s, pause_s = pause_s, min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            write_frame(out, collected)
            wait_s, pause_s = (
                max(collector.period_s - (time.monotonic() - began_s), collector.period_s / 10),
                FIRST_PAUSE_S,
            )
        if select.select([sys.stdin], [], [], wait_s)[0]:  # the parent has gone: nothing else comes from there
            return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        os._exit(0)
