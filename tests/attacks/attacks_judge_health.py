"""The health port of a service: whoever reaches it and says nothing."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.registry import CollectorRegistry

from tests.attacks.register import Outcome, attack
from whichrank.commands.support.health_server import PageServer


@attack("E7", "e", "200 idle connections, and 50 that send a byte a second", asked="time-out, bounded", limit_s=60)
def idle_health(folder: Path) -> Outcome:
    server = PageServer("127.0.0.1", 0, {"/healthz": lambda: (True, "{}")}, CollectorRegistry())
    threads = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    most, until = 0, time.monotonic() + 12
    while time.monotonic() < until:
        for connection in slow:
            try:
                connection.send(b"G")
            except OSError:
                continue
        most = max(most, threading.active_count() - threads)
        time.sleep(1.0)
    left = threading.active_count() - threads
    with urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=5) as answer:
        answers = answer.status == 200
    server.close()
    del idle
    return Outcome(
        held=most <= 40 and left <= 2 and answers,
        measured=f"{most} threads at most, {left} after 12 s, answers: {answers}",
    )
