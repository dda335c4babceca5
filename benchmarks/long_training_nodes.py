"""Three nodes for a long training: namespaces with names, a switch between them, and one that can be destroyed.

Each is one of ``tests.scenarios.nodes`` (processes, mounts, host name, network and /dev/shm of its own). Needs root.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.scenarios.nodes import Node

NAMES = ("node-1", "node-2", "node-3")
ADDRESSES = MappingProxyType({name: f"10.92.8.{number + 1}" for number, name in enumerate(NAMES)})
RENDEZVOUS_PORT = 29400


class ThreeNodes:
    """Made at entry, gone at exit with all that runs in them."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, environ
        self._switch = f"lt-{secrets.token_hex(4)}"
        self.nodes: list[Node] = []

    def __enter__(self) -> ThreeNodes:
        try:
            self._make()
        except BaseException:
            self._end()
            raise
        return self

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for number, name in enumerate(NAMES):
            node = Node(name, self._folder, self._environ, addresses=ADDRESSES)
            self.nodes.append(node)
            cable = f"cable{number}"
            ends = ["name", cable, "netns", self._switch], ["name", "eth0", "netns", str(node.pid)]
            _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
            _ip("-n", self._switch, "link", "set", cable, "master", "switch", "up")
            node.run("ip", "address", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
            node.run("ip", "link", "set", "eth0", "up")

    def destroy(self, number: int) -> None:
        """Its cable is out and its power is off."""
        self.nodes[number].gone()

    def __exit__(self, *raised: object) -> None:
        self._end()

    def _end(self) -> None:
        for node in self.nodes:
            node.end()
        with contextlib.suppress(subprocess.SubprocessError):
            _ip("netns", "delete", self._switch)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)
