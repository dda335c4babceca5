"""The services that a job needs to start: names, the registry of models and data, sign-in. Who runs needs none.

A rank asks them once it has started, before it meets the others; each gives up after its own time, and its program
ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from .clock import generator
from .errors import user_frames
from .resources import SERVICES, Resources
from .simulated_attempt import SimulatedAttempt

#: By service: for how long a rank tries (seconds, from and to), and what its program ends with.
_GIVE_UP: Mapping[str, tuple[float, float, str, str]] = {
    "names": (4.0, 6.0, "socket.gaierror", "[Errno -3] Temporary failure in name resolution"),
    "registry": (
        8.0,
        12.0,
        "requests.exceptions.ConnectionError",
        "HTTPSConnectionPool(host='registry', port=443): Max retries exceeded with url: /v2/tokenizer "
        "(Caused by NewConnectionError: Failed to establish a new connection: [Errno 111] Connection refused)",
    ),
    "sign-in": (
        2.0,
        3.0,
        "requests.exceptions.HTTPError",
        "503 Server Error: Service Unavailable for url: https://sign-in/token",
    ),
}


def ask_services(attempt: SimulatedAttempt, resources: Resources) -> None:
    """To be called at a launch: lets its ranks ask for the services once they have started; they fail where one is
    down.
    """
    attempt.at(float(attempt.asks_s.min()), partial(_ask, attempt, resources))


def _ask(attempt: SimulatedAttempt, resources: Resources, at_s: float) -> None:
    down = np.flatnonzero(resources.of("service", "up") == 0)
    if not down.size:
        return
    least_s, most_s, type_name, message = _GIVE_UP[SERVICES[int(down[0])]]
    attempt.never_meet()
    ranks = np.flatnonzero(attempt.processes.alive)
    random = generator(attempt.spec.name, attempt.number, "asking")
    when_s = attempt.asks_s[ranks] + random.uniform(least_s, most_s, ranks.size)
    attempt.raise_in(ranks, when_s, type_name, message, user_frames("setup", 22), is_victim=False)
