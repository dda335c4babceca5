"""One look at ``/sys/class/infiniband`` and ``/sys/class/net``, of this machine or a captured tree.

Reads only small files, a bounded number of them; a file that is missing, unreadable (EINVAL of a port without carrier,
EACCES) or no number is None. Never raises for what a tree contains.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .sample import (
    Layer,
    LinkState,
    NodeSample,
    PortSample,
    parse_counter,
    parse_layer,
    parse_megabits,
    parse_physical,
    parse_rate,
    parse_state,
)

MAX_DEVICES = 256
MAX_PORTS = 64
MAX_COUNTERS = 512
#: No attribute of sysfs is longer than a page.
MAX_BYTES = 4096
#: ``ARPHRD_INFINIBAND``: IPoIB interfaces, whose RDMA port is told about already.
_TYPE_INFINIBAND = 32
_NET_FILES = ("carrier_changes", "carrier_down_count", "carrier_up_count")
#: Bridges, containers' ends and tunnels come and go; what matters has a device behind it.
_PHYSICAL = "device"


def read_sample(root: Path, t_s: float) -> NodeSample:
    """A look at all network ports in a tree like /sys, with time ``t_s`` (seconds) written on it.

    root: the folder that holds ``class/infiniband`` and ``class/net``, or a level below or above.
    """
    infiniband, net = _class_folder(root, "infiniband"), _class_folder(root, "net")
    ports = [*_rdma_ports(infiniband)] if infiniband else []
    ports += _interfaces(net) if net else []
    return NodeSample(t_s=t_s, ports=tuple(ports))


def read_port(folder: Path, device: str, port: int) -> PortSample:
    """One port of an RDMA device, read from its folder ``ports/N``; what cannot be read is unknown."""
    counters: dict[str, int | None] = {}
    for part in ("counters", "hw_counters"):
        for name in _names(folder / part, MAX_COUNTERS):
            # What "lifespan" holds is a caching time in ms, not a count.
            if name != "lifespan":
                counters[name] = parse_counter(_text(folder / part / name))
    return PortSample(
        device=device,
        port=port,
        layer=parse_layer(_text(folder / "link_layer")),
        state=parse_state(_text(folder / "state")),
        physical=parse_physical(_text(folder / "phys_state")),
        rate=parse_rate(_text(folder / "rate")),
        counters=counters,
    )


def _rdma_ports(folder: Path) -> Iterator[PortSample]:
    for device in _names(folder, MAX_DEVICES):
        for name in _names(folder / device / "ports", MAX_PORTS):
            if name.isascii() and name.isdigit():
                yield read_port(folder / device / "ports" / name, device, int(name[:6]))


def _interfaces(folder: Path) -> Iterator[PortSample]:
    for name in _names(folder, MAX_DEVICES):
        place = folder / name
        if not os.path.lexists(place / _PHYSICAL) or parse_counter(_text(place / "type")) == _TYPE_INFINIBAND:
            continue
        counters = {file: parse_counter(_text(place / file)) for file in _NET_FILES}
        for file in _names(place / "statistics", MAX_COUNTERS):
            counters[file] = parse_counter(_text(place / "statistics" / file))
        yield PortSample(
            device=name,
            layer=Layer.NETDEV,
            state=_interface_state(place),
            physical=parse_physical(_text(place / "operstate")),
            rate=parse_megabits(_text(place / "speed")),
            counters={file: value for file, value in counters.items() if value is not None},
        )


def _interface_state(place: Path) -> LinkState:
    """Operstate; drivers that leave it at "unknown" still say whether there is a carrier."""
    state = parse_state(_text(place / "operstate"))
    if state is LinkState.UNKNOWN and (carrier := parse_counter(_text(place / "carrier"))) is not None:
        return LinkState.ACTIVE if carrier else LinkState.DOWN
    return state


def _class_folder(root: Path, kind: str) -> Path | None:
    for place in (root / "class" / kind, root / "sys" / "class" / kind, root / kind):
        if place.is_dir():
            return place
    return root if root.name == kind and root.is_dir() else None


def _names(folder: Path, limit: int) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:limit]
    except OSError:
        return []


def _text(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
