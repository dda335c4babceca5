"""The process of one collector that may block for ever: told by its parent what it is, it sends what it sees.

``python -m whichrank.agents.collectors.collector_child``: a ``CollectorPlan`` on stdin; frames on stdout
(``schedule``): the period when a look begins, True when it listens, what it saw when that ends, a line when it failed.
It ends with its parent.
"""

from __future__ import annotations

import os
import select
import sys
import time
from typing import IO

from ...telemetry.missing_packages import in_words
from .base.collector import Collector, Listener, NeedsNewProcess, Timestamps
from .schedule import FIRST_PAUSE_S, LONGEST_PAUSE_S, CollectorPlan, read_frame, write_frame

#: A driver is listened to for so long at a time.
_LISTENS_S = 1.0


def main() -> int:
    """Reads a ``CollectorPlan`` from standard input, then looks for ever and writes what is seen to standard output.

    Returns only with exit status 2, where standard input brought no plan.
    """
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a driver prints is no frame
    plan = read_frame(sys.stdin.buffer)
    if not isinstance(plan, CollectorPlan):
        return 2
    collector: Collector | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        write_frame(out, collector.period_s if collector is not None else 10.0)
        try:
            collector = collector or plan.make()
            collected = collector.collect(Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns()))
        except NeedsNewProcess as error:
            write_frame(out, str(error))
            return 3
        except Exception as error:  # edge: a driver's library can do anything
            write_frame(out, in_words(error, "agent"))
            wait_s, pause_s = pause_s, min(2 * pause_s, LONGEST_PAUSE_S)
            if _parent_has_gone(wait_s):
                return 0
            continue
        write_frame(out, collected)
        pause_s, period_s = FIRST_PAUSE_S, collector.period_s
        if not _pause(collector, out, max(began_s + period_s, time.monotonic() + period_s / 10)):
            return 0


def _pause(collector: Collector, out: IO[bytes], until_s: float) -> bool:
    """Until the next look; what the source says meanwhile is handed on at once. False: the parent has gone."""
    while (left_s := until_s - time.monotonic()) > 0:
        if not isinstance(collector, Listener):
            return not _parent_has_gone(left_s)
        write_frame(out, True)
        collected = collector.wait(min(left_s, _LISTENS_S))
        write_frame(out, collected)
        if _parent_has_gone(0.0):
            return False
    return True


def _parent_has_gone(wait_s: float) -> bool:
    """Nothing else ever comes from there."""
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        os._exit(0)
