"""Addresses as people and launchers write them. Pure."""

from __future__ import annotations

from ...telemetry.whole_numbers import whole_number


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """(host, port) of ``host``, ``host:port``, ``[v6]``, ``[v6]:port`` or a bare v6 address. Raises ValueError."""
    address = address.strip()
    if address.startswith("["):
        host, closed, rest = address[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"{address!r} is no address")
        port = rest[1:]
    elif address.count(":") > 1:
        host, port = address, ""
    else:
        host, _, port = address.partition(":")
    if not host or (port and not 0 < (whole_number(port) or 0) < 1 << 16):
        raise ValueError(f"{address!r} is no address; write HOST or HOST:PORT")
    return host, int(port) if port else default_port
