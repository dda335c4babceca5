"""The health port of a service: whoever reaches it and says nothing."""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import threading
import time
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.registry import CollectorRegistry

from tests.attacks.register import Outcome, attack
from whichrank.commands.support.health_server import PageServer


@attack("E7", "e", "200 idle connections, 50 that send a byte a second, 100 that send rubbish and go",
        asked="time-out, bounded; a probe is answered within a second; no line of log each", limit_s=60)  # fmt: skip
def idle_health(folder: Path) -> Outcome:
    server = PageServer("127.0.0.1", 0, {"/healthz": lambda: (True, "{}")}, CollectorRegistry())
    threads = threading.active_count()
    answers, ended, most = list[float](), threading.Event(), 0
    with contextlib.redirect_stderr(io.StringIO()) as said:
        prober = threading.Thread(target=_probe, args=(server.port, answers, ended))
        prober.start()
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for _ in range(100):
            _say_and_reset(server.port)
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        until = time.monotonic() + 12
        while time.monotonic() < until:
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.send(b"G")
            most = max(most, threading.active_count() - threads - 1)
            time.sleep(1.0)
        ended.set()
        prober.join()
    left = threading.active_count() - threads
    server.close()
    del idle
    lines = len(said.getvalue().splitlines())
    return Outcome(
        held=most <= 40 and left <= 2 and max(answers) < 1 and lines <= 2,
        measured=f"{most} threads at most, {left} after 12 s, {len(answers)} probes answered within "
        f"{max(answers):.2f} s, {lines} lines",
    )


def _probe(port: int, answers: list[float], ended: threading.Event) -> None:
    """As Kubernetes does, only more often. answers: how many seconds each took."""
    while not ended.wait(0.2):
        began = time.monotonic()
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            answer.read()
        answers.append(time.monotonic() - began)


def _say_and_reset(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.send(b"\xff\xfe no such thing\r\n\r\n" * 10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
