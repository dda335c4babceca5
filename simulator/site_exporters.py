"""All exporters of servers and switches of a simulated site, and who scrapes them every fifteen seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .asked_storage import AskedStorage
from .cluster_topology import Topology
from .fabric import UplinkState
from .fabric_ports import FabricPorts
from .resources import Resources
from .storage_servers import StorageServers

SCRAPED_EVERY_S = 15.0
#: Seconds between the scrapes of two targets, so that not all are asked at once.
_APART_S = 0.4
#: An OTLP request, once the Unix time of its scrape (ns) is known.
Encoded = Callable[[int], bytes]


class SiteExporters:
    """Exporters of the storage servers and of the fabric. Call ``advance`` for each window."""

    def __init__(self, topology: Topology, resources: Resources, asked: AskedStorage) -> None:
        """asked: what the servers count, which goes on by itself."""
        self._servers = StorageServers(asked, topology.shape.data_servers)
        self._fabric = FabricPorts(topology, resources)
        self._due_s = SCRAPED_EVERY_S / 2

    def advance(
        self, until_s: float, seconds: float, uplinks: UplinkState, room_bytes: float
    ) -> Iterator[tuple[float, Encoded]]:
        """Counts on to ``until_s`` (seconds of the simulation), and gives pages that are scraped then, with the time of
        each. uplinks, room_bytes: the state of the fabric, and of the file system, meanwhile.
        """
        self._fabric.advance(seconds, uplinks)
        if until_s < self._due_s:
            return
        self._due_s += SCRAPED_EVERY_S
        for place, page in enumerate((self._fabric.page(), *self._servers.pages(room_bytes))):
            yield until_s - 0.01 + _APART_S * place, page.otlp
