"""How much each port carried, from its data counters: through wraps and resets, in bytes. Pure.

The port that carries far less than the others of its node is where a transfer stands still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .growth import growth
from .sample import NodeSample, bytes_of

MAX_PORTS = 1024
#: Sent and received, the first that a port has: RDMA, mlx5's by ethtool, /sys/class/net.
_SENT = ("port_xmit_data", "tx_bytes_phy", "tx_bytes")
_RECEIVED = ("port_rcv_data", "rx_bytes_phy", "rx_bytes")


@dataclass(slots=True)
class Traffic:
    """``sent_bytes``, ``received_bytes``: what was seen to be carried since the first look."""

    sent_bytes: int = 0
    received_bytes: int = 0
    _last: dict[str, int] = field(default_factory=dict)

    def take(self, counters: Mapping[str, int | None]) -> None:
        """Adds what one port's counters have grown by since the last look. None: a counter that could not be read."""
        self.sent_bytes += self._grown(counters, _SENT)
        self.received_bytes += self._grown(counters, _RECEIVED)

    def _grown(self, counters: Mapping[str, int | None], names: tuple[str, ...]) -> int:
        for name in names:
            if (value := counters.get(name)) is not None:
                before = self._last.get(name)
                self._last[name] = value
                return bytes_of(name, growth(before, value, may_wrap=True).amount) if before is not None else 0
        return 0


@dataclass(slots=True)
class NodeTraffic:
    """All ports of one node; those beyond MAX_PORTS are left out."""

    ports: dict[str, Traffic] = field(default_factory=dict)

    def take(self, sample: NodeSample) -> None:
        """Adds what each port in a look has carried since the last one; ports beyond ``MAX_PORTS`` are not followed."""
        for port in sample.ports:
            if port.name in self.ports or len(self.ports) < MAX_PORTS:
                self.ports.setdefault(port.name, Traffic()).take(port.counters)
