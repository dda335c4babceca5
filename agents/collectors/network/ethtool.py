"""Statistics of an interface's driver that only the ethtool ioctl tells: pauses, marks, drops in the port itself.

One socket call each for how many there are, their names (kept, they do not change while the driver is loaded) and
their values. A driver without them, or a container without the right, gives an empty answer.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from ....diagnosis.network_counters import network_counters

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SET_STATS = 1
_NAME_BYTES = 32
#: Drivers with hundreds of queues have thousands of values; no driver has more than this.
_MAX_STATISTICS = 32_768

#: (interface, how many) -> indices and names of those that are worth telling.
_wanted: dict[tuple[str, int], tuple[tuple[int, str], ...]] = {}


def interface_statistics(interface: str) -> dict[str, int]:
    """The driver's own counters by name (asked by ioctl), of those that ``network_counters`` knows.

    {} where there are none or they cannot be read.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            count = _count(channel, interface)
            if not 0 < count <= _MAX_STATISTICS:
                return {}
            wanted = _names(channel, interface, count)
            return _values(channel, interface, count, wanted) if wanted else {}
    except (OSError, ValueError):
        return {}


def _ask(channel: socket.socket, interface: str, buffer: array.array[int]) -> None:
    address, _ = buffer.buffer_info()
    fcntl.ioctl(channel, _SIOCETHTOOL, struct.pack("16sP16x", interface.encode()[:15], address))


def _count(channel: socket.socket, interface: str) -> int:
    buffer = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SET_STATS, 0))
    _ask(channel, interface, buffer)
    mask, count = struct.unpack_from("=QI", buffer, 8)
    return int(count) if mask else 0


def _names(channel: socket.socket, interface: str, count: int) -> tuple[tuple[int, str], ...]:
    key = (interface, count)
    if key not in _wanted:
        buffer = array.array("B", struct.pack("=III", _GSTRINGS, _SET_STATS, count) + bytes(count * _NAME_BYTES))
        _ask(channel, interface, buffer)
        raw = buffer.tobytes()[12:]
        names = (
            raw[i * _NAME_BYTES : (i + 1) * _NAME_BYTES].split(b"\0")[0].decode("ascii", "replace")
            for i in range(count)
        )
        if len(_wanted) > 256:  # interfaces that came and went
            _wanted.clear()
        _wanted[key] = tuple((index, name) for index, name in enumerate(names) if name in network_counters())
    return _wanted[key]


def _values(channel: socket.socket, interface: str, count: int, wanted: tuple[tuple[int, str], ...]) -> dict[str, int]:
    buffer = array.array("B", struct.pack("=II", _GSTATS, count) + bytes(count * 8))
    _ask(channel, interface, buffer)
    return {name: struct.unpack_from("=Q", buffer, 8 + index * 8)[0] for index, name in wanted}
