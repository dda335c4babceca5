"""How a ``whichrank run`` that we have started is ended in bounded time, also where a rank of it heeds no SIGTERM."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

#: A job that crashes ends by itself within this time.
SELF_END_S = 1.5
END_PATIENCE_S = 5.0


def end_run(child: subprocess.Popen[bytes], free: Callable[[], None]) -> None:
    """Ends it: SIGTERM, then ``free``, SIGTERM again, SIGKILL. free: ends ranks that heed no signal but SIGKILL."""
    ways: list[tuple[float, Callable[[], None]]] = [
        (SELF_END_S, child.terminate),
        (END_PATIENCE_S, free),
        (END_PATIENCE_S, child.terminate),
        (END_PATIENCE_S, child.kill),
    ]
    for patience_s, way in ways:
        try:
            child.wait(timeout=patience_s)
            return
        except subprocess.TimeoutExpired:
            way()
    child.wait()
