"""A switch whose SNMP agent is played over UDP, and the real snmp_exporter that asks it.

Of SNMP v2c as much as walks need: GET, GETNEXT and GETBULK on a tree that is a table of numbers and texts.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.ports import free_ports
from tests.stack.parts.go_programs import SNMP_EXPORTER, built
from tests.stack.parts.service import Service, answers_http

type_of = {"integer": 0x02, "text": 0x04, "counter": 0x41, "gauge": 0x42, "ticks": 0x43, "counter64": 0x46}
_SEQUENCE, _OID, _NULL, _RESPONSE, _END_OF_TREE = 0x30, 0x06, 0x05, 0xA2, 0x82
_GET, _GET_NEXT, _GET_BULK = 0xA0, 0xA1, 0xA5
_MOST_ROWS = 25
Oid = tuple[int, ...]
#: Column of ifTable and ifXTable -> its kind.
_INTERFACES = (1, 3, 6, 1, 2, 1, 2, 2, 1)
_MORE = (1, 3, 6, 1, 2, 1, 31, 1, 1, 1)
UP, DOWN = 1, 2


class PlayedSwitch:
    """Ports by their names. ``say_port`` changes whether one is up; counters go on by themselves with each answer."""

    def __init__(self, ports: list[str], community: str = "public") -> None:
        self._community = community.encode()
        self._lock = threading.Lock()
        self._tree: dict[Oid, tuple[int, int | bytes]] = {}
        self.asked = 0
        for index, name in enumerate(ports, start=1):
            self._tree |= {
                (*_INTERFACES, 1, index): (type_of["integer"], index),
                (*_INTERFACES, 2, index): (type_of["text"], name.encode()),
                (*_INTERFACES, 3, index): (type_of["integer"], 6),
                (*_INTERFACES, 7, index): (type_of["integer"], UP),
                (*_INTERFACES, 8, index): (type_of["integer"], UP),
                (*_INTERFACES, 13, index): (type_of["counter"], 0),
                (*_INTERFACES, 14, index): (type_of["counter"], 0),
                (*_MORE, 1, index): (type_of["text"], name.encode()),
                (*_MORE, 6, index): (type_of["counter64"], 10**12),
                (*_MORE, 10, index): (type_of["counter64"], 10**12),
                (*_MORE, 15, index): (type_of["gauge"], 400_000),
                (*_MORE, 18, index): (type_of["text"], b""),
            }
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def say_port(self, index: int, state: int) -> None:
        with self._lock:
            name: Oid = (*_INTERFACES, 8, index)
            self._tree[name] = (type_of["integer"], state)

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                asked, whom = self._socket.recvfrom(65_535)
                answer = self._answer(asked)
            except (OSError, ValueError, IndexError):
                if self._socket.fileno() < 0:
                    return
                continue
            if answer:
                self._socket.sendto(answer, whom)

    def _answer(self, asked: bytes) -> bytes:
        """Empty for who has not the community, as a switch is silent to him."""
        version, community, pdu = _children(next(_items(asked))[1])
        if community[1] != self._community:
            return b""
        request, second, third, bindings = _children(pdu[1])
        names = [_read_oid(_children(binding[1])[0][1]) for binding in _children(bindings[1])]
        with self._lock:
            self.asked += 1
            known = sorted(self._tree)
            rows: list[bytes] = []
            if pdu[0] == _GET:
                rows = [self._row(name) for name in names]
            elif pdu[0] == _GET_NEXT:
                rows = [self._row(*after) for name in names for after in [_next(known, name, 1)]]
            elif pdu[0] == _GET_BULK:
                repeats = min(int.from_bytes(third[1], "big"), _MOST_ROWS)
                for name in names[int.from_bytes(second[1], "big") :]:
                    rows += [self._row(each) for each in _next(known, name, repeats)]
        zero = _item(type_of["integer"], b"\0")
        body = _item(request[0], request[1]) + zero + zero + _item(_SEQUENCE, b"".join(rows))
        whole = _item(*version) + _item(*community) + _item(_RESPONSE, body)
        return _item(_SEQUENCE, whole)

    def _row(self, name: Oid, *_: Oid) -> bytes:
        kind, value = self._tree.get(name, (_END_OF_TREE, b""))
        if isinstance(value, int):
            value = value.to_bytes(value.bit_length() // 8 + 1, "big")
        return _item(_SEQUENCE, _item(_OID, _written_oid(name)) + _item(kind, value))


class SnmpExporter:
    """The real one, with the snmp.yml of its own module."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.service = Service(
            "snmp_exporter",
            [str(built(SNMP_EXPORTER)), f"--config.file={own_table()}", f"--web.listen-address={self.address}"],
            log=folder / "snmp_exporter.log",
            ready=lambda: answers_http(f"http://{self.address}/"),
        )


def own_table() -> Path:
    """snmp.yml, as it comes with snmp_exporter."""
    download = ["go", "mod", "download", "-json", f"{SNMP_EXPORTER.module}@{SNMP_EXPORTER.version}"]
    said = subprocess.run(download, cwd=Path.home(), capture_output=True, text=True, check=True).stdout
    module: Mapping[str, str] = json.loads(said)
    return Path(module["Dir"]) / "snmp.yml"


def _next(known: list[Oid], name: Oid, count: int) -> list[Oid]:
    """The names after it, and where the tree ends the last of them once more, of which there is no value."""
    at = bisect_right(known, name)
    found = known[at : at + count]
    return found if len(found) == count else [*found, (*(found[-1] if found else name), 0)]


def _items(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(raw):
        kind, length, at = raw[at], raw[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(raw[at : at + size], "big"), at + size
        yield kind, raw[at : at + length]
        at += length


def _children(raw: bytes) -> list[tuple[int, bytes]]:
    return list(_items(raw))


def _item(kind: int, raw: bytes) -> bytes:
    length = len(raw)
    if length < 0x80:
        return bytes([kind, length]) + raw
    size = (length.bit_length() + 7) // 8
    return bytes([kind, 0x80 | size]) + length.to_bytes(size, "big") + raw


def _read_oid(raw: bytes) -> Oid:
    found = [raw[0] // 40, raw[0] % 40]
    value = 0
    for byte in raw[1:]:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            found.append(value)
            value = 0
    return tuple(found)


def _written_oid(name: Oid) -> bytes:
    written = bytearray([name[0] * 40 + name[1]])
    for part in name[2:]:
        septets = [part & 0x7F]
        while part := part >> 7:
            septets.append(part & 0x7F | 0x80)
        written += bytes(reversed(septets))
    return bytes(written)
