"""Nodes on one switch: namespaces as in ``tests/scenarios/nodes.py``, a bridge between them, and clocks that are apart.

The whole command lives in a network namespace of its own, so that neither bridge nor addresses reach the machine's.
The wall clock of a node is set ahead by a preloaded library, for everything that runs on it (``clock_ahead.c``).
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from tests.scenarios.nodes import Node, missing
from tests.stack.parts.cache import digest_of, made_once

BRIDGE = "switch"
#: Of its own: else it is the lowest of the cables', and changes under nodes that know it when one is plugged in.
BRIDGE_MAC = "02:00:0a:4e:00:fe"
#: Of the bridge, where the broker listens.
HOST = "10.78.0.254"
#: The fourth stands by, to replace one of the others.
ADDRESSES = {f"node-{number}": f"10.78.0.{number}" for number in (1, 2, 3, 4)}
NAMES = tuple(ADDRESSES)
#: How far a node's monotonic clock is ahead of this machine's, as uptimes are apart.
UPTIME_S = {"node-1": 0, "node-2": 100_000, "node-3": 5_000, "node-4": 70}
CLOCK_SOURCE = Path(__file__).with_name("clock_ahead.c")
#: Set where this process is inside the network of its own already.
_INSIDE = "WHICHRANK_TEST_OWN_NETWORK"
_cables = itertools.count()


def what_is_missing() -> str:
    """Why no nodes can be made here; empty: they can."""
    if shutil.which("cc") is None:
        return "a C compiler is needed for clocks that are apart, and there is none"
    return missing()


@functools.cache
def clock_library() -> Path:
    """Compiled once."""

    def make(target: Path) -> None:
        command = [
            "cc",
            "-O2",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            str(target),
            str(CLOCK_SOURCE),
            "-ldl",
            "-lpthread",
        ]
        subprocess.run(command, check=True, timeout=120)

    return made_once("clock-ahead", digest_of([CLOCK_SOURCE.read_bytes()]), make)


def enter_own_network(module: str) -> None:
    """Starts this command again inside a new network namespace, unless it is there; then the bridge is made."""
    if os.environ.get(_INSIDE) != str(os.getpid()):
        _start_again(module)
    for words in (
        ["link", "set", "lo", "up"],
        ["link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge"],
        ["address", "add", f"{HOST}/24", "dev", BRIDGE],
        ["link", "set", BRIDGE, "up"],
    ):
        _ip(*words)


def _start_again(module: str) -> NoReturn:
    os.environ[_INSIDE] = str(os.getpid())  # unshare and exec keep the pid
    os.execvp("unshare", ["unshare", "--net", "--", sys.executable, "-m", module, *sys.argv[1:]])


def clock_environment(ahead_s: float) -> dict[str, str]:
    """For every process of a node whose wall clock is ahead by so much (behind, if negative)."""
    if not ahead_s:
        return {}
    return {
        "LD_PRELOAD": str(clock_library()),
        "CLOCK_AHEAD_S": f"{ahead_s:.3f}",
    }


class LanNode(Node):
    """A node with a cable to the switch. clock_ahead_s: of its wall clock."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], *, clock_ahead_s: float) -> None:
        super().__init__(name, folder, environment, uptime_s=UPTIME_S[name], addresses=ADDRESSES)
        self.clock_ahead_s = clock_ahead_s
        self._cable = f"cable{next(_cables)}"
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        _ip("link", "set", self._cable, "master", BRIDGE, "up")
        self.run("ip", "address", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def start(self, command: list[str], environment: Mapping[str, str], console: Path) -> subprocess.Popen[bytes]:
        return super().start(command, {**environment, **clock_environment(self.clock_ahead_s)}, console)

    def end(self) -> None:
        """The kernel takes some seconds to clear a namespace away, and until then it answers for its address: the next
        run's node has the same one, and its connections were reset."""
        super().end()
        _ip("link", "delete", self._cable, check=False)


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, timeout=20)
