"""Who tells of storage and fabric: collectors of nodes that use them, exporters of servers and switches, or both."""

from __future__ import annotations

from enum import Enum


class Sensing(str, Enum):
    """The values are those of ``whichrank simulate --sensors``."""

    CLIENTS = "clients"
    SERVERS = "servers"
    ALL = "all"

    @property
    def has_clients(self) -> bool:
        """Whether the collectors of nodes see anything."""
        return self is not Sensing.SERVERS

    @property
    def has_servers(self) -> bool:
        """Whether exporters of servers and switches are scraped."""
        return self is not Sensing.CLIENTS
