"""Ports of the loopback for what tests start: chosen long before they are listened at, so nobody else may get them."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

#: Far more than one needs at a time.
PORTS_OF_WORKER = 400
#: Below it ports are the system's own.
LOWEST_PORT = 1024


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, all different, none given out before by this process while others are left.

    They lie below those from which the kernel takes one for each connection; every worker of a test run has its own.
    Raises OSError where there are fewer.
    """
    found: list[int] = []
    for port in itertools.islice(_ports, PORTS_OF_WORKER):
        if _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"fewer than {count} ports are free from {FIRST_PORT} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def first_port(worker: int, lowest_of_kernel: int) -> int:
    """Of a worker's range. lowest_of_kernel: from which on the kernel gives ports to connections.

    Where there are more workers than ranges below that, some share one; where there is none, it is among the kernel's.
    """
    ranges = max(1, (lowest_of_kernel - LOWEST_PORT) // PORTS_OF_WORKER)
    return max(LOWEST_PORT, lowest_of_kernel - (worker % ranges + 1) * PORTS_OF_WORKER)


def _round_and_round(first: int) -> Iterator[int]:
    """From somewhere on, so that runs of tests beside each other seldom meet."""
    start = random.randrange(PORTS_OF_WORKER)
    for number in itertools.count():
        yield first + (start + number) % PORTS_OF_WORKER


FIRST_PORT = first_port(
    int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]),
)
_ports = _round_and_round(FIRST_PORT)
