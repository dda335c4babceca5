"""Ports of an InfiniBand fabric as UFM's telemetry tells of them: of leaves, spines, and hosts below the leaves.

What a switch does not forward waits at the port before it, without credits; what waits for too long is thrown away.
Of a switch that is off, and of what only it leads to, the fabric's manager says nothing; the ports at the other ends of
its cables have lost a link.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .cluster_topology import Topology
from .fabric import PORT_BYTES_PER_S, UplinkState
from .resources import Resources
from .scraped_page import Line, Page

_INSTANCE = "ufm-1:9001"
#: PortXmitWait counts in these; of a link that carries its load, so much of the time by mere chance.
_TICKS_PER_S, _WAITS_BY_CHANCE = 2.5e8, 1e-3
#: Where a port waits for longer than this share of the time, packets reach the end of their life in its queue.
_PATIENCE, _DISCARDS_PER_S = 0.9, 2000.0
_WORD_BYTES = 4.0
_Floats = NDArray[np.float64]


class FabricPorts:
    """Counters of all ports, advanced window by window."""

    def __init__(self, topology: Topology, resources: Resources) -> None:
        self._topology, self._resources = topology, resources
        uplinks = topology.leaves, topology.shape.spines
        self._waited, self._discarded, self._sent = np.zeros(uplinks), np.zeros(uplinks), np.zeros(uplinks)
        self._errors = np.zeros(topology.gpus)
        self._lost_hosts, self._lost_uplinks = np.zeros(topology.gpus), np.zeros(uplinks)
        self._hosts_up, self._uplinks_up = self._hosts(), self._uplinks()

    def advance(self, seconds: float, state: UplinkState) -> None:
        """Counts what happens in so many seconds at this state."""
        waits = 1.0 - state.share
        by_chance = _WAITS_BY_CHANCE * state.load / np.maximum(state.capacity, state.load + 1e-9)
        self._waited += (waits + by_chance) * _TICKS_PER_S * seconds
        self._discarded += (waits > _PATIENCE) * _DISCARDS_PER_S * seconds
        self._sent += state.share * state.load * PORT_BYTES_PER_S / _WORD_BYTES * seconds
        self._errors += self._resources.of("port", "errors") * seconds
        hosts, uplinks = self._hosts(), self._uplinks()
        self._lost_hosts += self._hosts_up & ~hosts
        self._lost_uplinks += self._uplinks_up & ~uplinks
        self._hosts_up, self._uplinks_up = hosts, uplinks

    def page(self) -> Page:
        """The page of the fabric's manager, of all switches and hosts that it sees."""
        return Page(instance=_INSTANCE, lines=tuple(self._lines()))

    def _lines(self) -> Iterator[Line]:
        topology = self._topology
        leaves_up = self._resources.of("leaf", "up") != 0
        for gpu in range(topology.gpus):
            node = topology.node_of_gpu(gpu)
            if not leaves_up[topology.leaf_of_node[node]]:
                continue
            leaf, port = int(topology.leaf_of_node[node]), self._host_port(gpu)
            counted = {"SymbolErrorCounterExtended": self._errors[gpu], "LinkDownedCounter": self._lost_hosts[gpu]}
            yield from _port(_of_switch("leaf", leaf), port, counted)
            if self._hosts_up[gpu]:
                device = topology.port_name(gpu).partition("/")[0]
                yield from _port(f"{topology.node_name(node)} {device}", 1, counted)
        for leaf, spine in np.ndindex(self._waited.shape):
            lost = self._lost_uplinks[leaf, spine]
            if leaves_up[leaf]:
                counted = {
                    "PortXmitDataExtended": self._sent[leaf, spine],
                    "PortXmitWaitExtended": self._waited[leaf, spine],
                    "PortXmitDiscardsExtended": self._discarded[leaf, spine],
                    "SymbolErrorCounterExtended": 0.0,
                    "LinkDownedCounter": lost,
                }
                yield from _port(_of_switch("leaf", leaf), self._hosts_below + spine + 1, counted)
            counted = {"PortRcvDataExtended": self._sent[leaf, spine], "LinkDownedCounter": lost}
            yield from _port(_of_switch("spine", spine), leaf + 1, counted)

    @property
    def _hosts_below(self) -> int:
        return self._topology.shape.nodes_per_leaf * self._topology.shape.gpus_per_node

    def _host_port(self, gpu: int) -> int:
        return gpu % self._hosts_below + 1

    def _hosts(self) -> NDArray[np.bool_]:
        """By GPU, whether its port has a link."""
        nodes = np.arange(self._topology.gpus) // self._topology.shape.gpus_per_node
        leaf_up = self._resources.of("leaf", "up")[self._topology.leaf_of_node[nodes]] != 0
        host_up = self._resources.of("host", "up")[nodes] != 0
        return np.asarray((self._resources.of("port", "up") != 0) & leaf_up & host_up)

    def _uplinks(self) -> NDArray[np.bool_]:
        """By leaf and spine, whether the link between them is there."""
        leaf_up = self._resources.of("leaf", "up") != 0
        return np.tile(leaf_up[:, None], (1, self._topology.shape.spines))


def _of_switch(kind: str, number: int) -> str:
    return f"MF0;{kind}-{number:04d}:MQM9700/U1"


def _port(description: str, number: int, counted: dict[str, float]) -> Iterator[Line]:
    labels = {"node_desc": description, "port_num": str(number)}
    return (Line(name=name, labels=labels, value=int(value)) for name, value in counted.items())
