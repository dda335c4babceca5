"""Network ports as /sys shows them: InfiniBand and RoCE ports, and the interfaces of real devices. Only reads.

Left out: what has no device behind it (lo, docker0, veth, bridges, VLANs, bonds: their ports are there), and virtual
functions on the node that made them. A file that is missing, or whose driver answers with an error, is None or absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base.kernel_files import link_name, list_names, number, read_bytes, read_number, read_text

#: More ports than any node has: a tree that says otherwise is cut here.
MAX_PORTS = 64
_MAX_COUNTERS = 256
#: "400 Gb/sec (4X NDR)", "0 GB/sec", "2.5 Gb/sec (1X SDR)". Bits, however the unit is spelt.
_RATE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)b/sec(?:\s*\((?P<lanes>\d+)X\s*(?P<speed>\w+)?\))?", re.I
)
_UNIT = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_STATE = re.compile(r"(?P<number>\d+)\s*:\s*(?P<word>.+)")
_IFF_UP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One look at one port. Numbers are None where unknown.

    id: "mlx5_0/1" or "eth0". identity: changes when the device is made again (its counters then start anew).
    state, phys_state: InfiniBand's numbers. interface: the network interface of an InfiniBand or RoCE port.
    """

    id: str
    link_layer: str
    identity: str = ""
    up: bool | None = None
    enabled: bool | None = None
    state: int | None = None
    phys_state: int | None = None
    rate_bytes_per_s: float | None = None
    lanes: int | None = None
    speed: str = ""
    mtu_bytes: int | None = None
    interface: str = ""
    firmware: str = ""
    board: str = ""
    driver: str = ""
    pci_address: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PortRate:
    bytes_per_s: float
    lanes: int | None
    speed: str


def parse_rate(text: str) -> PortRate | None:
    """Bytes/s, lanes and speed from the rate file of an InfiniBand port, like "400 Gb/sec (4X NDR)".

    None where no rate stands in it.
    """
    match = _RATE.search(text[:80])
    if match is None:
        return None
    bits = float(match["number"]) * _UNIT[match["unit"].upper()]
    return PortRate(bits / 8, int(match["lanes"]) if match["lanes"] else None, (match["speed"] or "").upper())


def parse_state(text: str) -> int | None:
    """The number at the begin of an InfiniBand state file: 4 of "4: ACTIVE"; None for other texts."""
    match = _STATE.match(text)
    return int(match["number"]) if match is not None and len(match["number"]) < 4 else None


def read_counters(*folders: Path) -> dict[str, int]:
    """Whole numbers, by file name, of all files in the folders; a name that stands in two is taken from the first.

    Negative numbers and what cannot be read are left out.
    """
    found: dict[str, int] = {}
    for folder in folders:
        base = str(folder) + "/"
        for name in list_names(folder)[:_MAX_COUNTERS]:
            if name in found:
                continue
            raw = read_bytes(base + name)
            value = None if raw is None else number(raw)
            if value is not None and value >= 0:
                found[name] = value
    return found


def infiniband_ports(sys: Path) -> Iterator[Port]:
    """Every port of /sys/class/infiniband, virtual functions left out."""
    root = sys / "class/infiniband"
    for device in list_names(root):
        folder = root / device
        if (folder / "device/physfn").exists():
            continue
        identity = read_text(folder / "node_guid") or ""
        interfaces = list_names(folder / "device/net")
        for name in list_names(folder / "ports"):
            if name.isdecimal():
                yield _infiniband_port(folder, folder / "ports" / name, identity, interfaces)


def _infiniband_port(device: Path, port: Path, identity: str, interfaces: list[str]) -> Port:
    state = parse_state(read_text(port / "state") or "")
    rate = parse_rate(read_text(port / "rate") or "")
    return Port(
        id=f"{device.name}/{port.name}",
        link_layer=read_text(port / "link_layer") or "InfiniBand",
        identity=identity,
        up=None if state is None else state == 4,
        state=state,
        phys_state=parse_state(read_text(port / "phys_state") or ""),
        rate_bytes_per_s=rate.bytes_per_s if rate else None,
        lanes=rate.lanes if rate else None,
        speed=rate.speed if rate else "",
        interface=_interface_of(port, interfaces),
        counters=read_counters(port / "counters", port / "hw_counters"),
        firmware=read_text(device / "fw_ver") or "",
        board=read_text(device / "board_id") or read_text(device / "hca_type") or "",
        driver=link_name(device / "device/driver"),
        pci_address=link_name(device / "device"),
    )


def _interface_of(port: Path, interfaces: list[str]) -> str:
    """The port's network interface: RoCE's GID table says it; else the device's one whose dev_port is this port."""
    named = read_text(port / "gid_attrs/ndevs/0")
    if named:
        return named
    if len(interfaces) <= 1:
        return interfaces[0] if interfaces else ""
    net = port.parent.parent / "device/net"
    for name in interfaces:
        if read_number(net / name / "dev_port") == int(port.name) - 1:
            return name
    return ""


def network_interfaces(sys: Path) -> Iterator[Port]:
    """Every interface of /sys/class/net with a device behind it, virtual functions left out."""
    root = sys / "class/net"
    for name in list_names(root):
        folder = root / name
        if not (folder / "device").exists() or (folder / "device/physfn").exists():
            continue
        megabits = read_number(folder / "speed")  # EINVAL while down, -1 where the driver does not know
        flags = read_number(folder / "flags")
        counters = read_counters(folder / "statistics")
        changes = read_number(folder / "carrier_changes")
        if changes is not None:
            counters["carrier_changes"] = changes
        yield Port(
            id=name,
            link_layer="InfiniBand" if read_number(folder / "type") == 32 else "Ethernet",
            identity=read_text(folder / "ifindex") or "",
            up=_operates(folder),
            enabled=None if flags is None else bool(flags & _IFF_UP),
            rate_bytes_per_s=megabits * 125_000.0 if megabits is not None and megabits > 0 else None,
            mtu_bytes=read_number(folder / "mtu"),
            driver=link_name(folder / "device/driver"),
            pci_address=link_name(folder / "device"),
            counters=counters,
        )


def _operates(interface: Path) -> bool | None:
    state = read_text(interface / "operstate")
    if state in ("up", "down", "lowerlayerdown", "dormant", "notpresent", "testing"):
        return state == "up"
    carrier = read_number(interface / "carrier")  # a driver that keeps no operstate says "unknown"
    return None if carrier is None else carrier == 1
