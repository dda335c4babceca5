"""What one look at a node's network ports gives, and how the texts of sysfs, ibstat and ethtool are read.

Pure. What cannot be read is None or UNKNOWN, never zero and never healthy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

#: 64-bit counters are the widest that hardware has; more digits than this are garbage.
MAX_COUNTER = 2**64 - 1
#: IBTA 1.x counts PortXmitData and PortRcvData in 4-byte words, and sysfs passes them on as they are.
BYTES_PER_COUNT: Mapping[str, int] = {"port_xmit_data": 4, "port_rcv_data": 4}

RATE = re.compile(
    r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:G[bB](?:it)?(?:/s(?:ec)?|ps)?)?\s*(?:\(\s*([0-9]+)X\s+([A-Z0-9]+)\s*\))?", re.ASCII
)
NUMBERED = re.compile(r"\s*([0-9]+)\s*:\s*(\S.*)")


class LinkState(str, Enum):
    """Logical state of a port. INIT and ARMED: the cable works, the subnet manager has not finished."""

    ACTIVE = "active"
    DOWN = "down"
    INIT = "init"
    ARMED = "armed"
    UNKNOWN = "unknown"


class Layer(str, Enum):
    INFINIBAND = "infiniband"
    #: RoCE: an RDMA device on Ethernet.
    ETHERNET = "ethernet"
    #: A plain network interface of /sys/class/net.
    NETDEV = "netdev"
    UNKNOWN = "unknown"


#: Words of sysfs (``4: ACTIVE``), ibstat (``Active``), operstate (``up``) and switches.
_STATES: Mapping[str, LinkState] = {
    "active": LinkState.ACTIVE,
    "up": LinkState.ACTIVE,
    "linkup": LinkState.ACTIVE,
    "active_defer": LinkState.ACTIVE,
    "down": LinkState.DOWN,
    "lowerlayerdown": LinkState.DOWN,
    "notpresent": LinkState.DOWN,
    "disabled": LinkState.DOWN,
    "nop": LinkState.DOWN,
    "init": LinkState.INIT,
    "initialize": LinkState.INIT,
    "initializing": LinkState.INIT,
    "dormant": LinkState.INIT,
    "armed": LinkState.ARMED,
}
_LAYERS: Mapping[str, Layer] = {
    "infiniband": Layer.INFINIBAND,
    "ib": Layer.INFINIBAND,
    "ethernet": Layer.ETHERNET,
    "roce": Layer.ETHERNET,
    "netdev": Layer.NETDEV,
    "net": Layer.NETDEV,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """``gbps``: gigabits per second of data. lanes 0 and generation "": not said."""

    gbps: float
    lanes: int = 0
    generation: str = ""

    @property
    def bytes_per_s(self) -> int:
        """The rate in bytes per second, as a link-speed metric has it."""
        return round(self.gbps * 1e9 / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSample:
    """One port at one time. ``counters``: raw values as the device has them; None: it is there and cannot be read."""

    device: str
    port: int = 1
    layer: Layer = Layer.UNKNOWN
    state: LinkState = LinkState.UNKNOWN
    #: Physical state in lower case without its number (``linkup``, ``polling``, ``disabled``), "" unknown.
    physical: str = ""
    rate: LinkRate | None = None
    counters: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The port's name as people write it: ``mlx5_0/1``, ``eth0``."""
        return self.device if self.layer is Layer.NETDEV else f"{self.device}/{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """All ports of a node at ``t_s`` (seconds on any one clock)."""

    t_s: float
    ports: tuple[PortSample, ...]


def parse_state(text: str | None) -> LinkState:
    """A port's state from ``4: ACTIVE``, ``Active``, ``up`` ...; UNKNOWN for None and for any other word."""
    return _STATES.get(_word(text), LinkState.UNKNOWN)


def parse_physical(text: str | None) -> str:
    """The word in a physical state, in lower case: ``5: LinkUp`` -> ``linkup``; "" where nothing is said."""
    return _word(text)


def parse_layer(text: str | None) -> Layer:
    """The link layer as sysfs writes it; UNKNOWN for None and for any other word."""
    return _LAYERS.get(_word(text), Layer.UNKNOWN)


def parse_rate(text: str | float | None) -> LinkRate | None:
    """A link's rate from ``200 Gb/sec (4X HDR)``, ``400`` or ``2.5 Gb/sec`` (Gb/s).

    None: cannot be read (a port that is down may say EINVAL).
    """
    if text is None or isinstance(text, bool):
        return None
    if isinstance(text, (int, float)):
        return LinkRate(gbps=float(text)) if math.isfinite(text) and 0 <= text < 1e6 else None
    if (found := RATE.fullmatch(text[:80].strip("\0\n\r "))) is None or len(found.group(1)) > 12:
        return None
    return LinkRate(gbps=float(found.group(1)), lanes=int((found.group(2) or "0")[:3]), generation=found.group(3) or "")


def parse_megabits(text: str | None) -> LinkRate | None:
    """A link's rate from ``/sys/class/net/*/speed``, in Mb/s.

    None: unknown (-1, 4294967295: no carrier) or no number.
    """
    value = parse_counter(text)
    return LinkRate(gbps=value / 1000) if value is not None and 0 < value < 2**32 - 1 else None


def parse_counter(text: object) -> int | None:
    """A counter's value. None: empty, negative, not a number (``N/A (no PMA)``) or wider than 64 bits."""
    if isinstance(text, bool):
        return None
    if isinstance(text, int):
        return text if 0 <= text <= MAX_COUNTER else None
    if isinstance(text, float):
        return int(text) if text.is_integer() and 0 <= text <= MAX_COUNTER else None
    if not isinstance(text, str):
        return None
    digits = text[:40].strip("\0\n\r\t ")
    if not digits.isascii() or not digits.isdigit():
        return None
    value = int(digits)
    return value if value <= MAX_COUNTER else None


def bytes_of(counter: str, value: int) -> int:
    """Bytes that a value of this data counter stands for (some count in words of 4 bytes)."""
    return value * BYTES_PER_COUNT.get(counter, 1)


def _word(text: str | None) -> str:
    if not isinstance(text, str):
        return ""
    text = text[:80].strip("\0\n\r\t ")
    if found := NUMBERED.fullmatch(text):
        text = found.group(2)
    return text.lower().replace(" ", "").replace("-", "").rstrip(".")
