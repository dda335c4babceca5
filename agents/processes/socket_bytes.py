"""How many bytes each TCP connection of this network namespace has carried, by the socket's inode: the kernel's count.

/proc/PID/io counts what read() and write() move, not what send() and recv() do, so an upload would look as if it stood
still. One netlink request (sock_diag) answers for all connections, for root and for any user; where the kernel has none
the answer is empty. Polling thread; never blocks for longer than ``_TIMEOUT_S``.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping

from ..user_files.user_files import files_of

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DONE, _ERROR = 3, 2
_REQUEST_AND_DUMP = 0x301
#: nlmsghdr, and struct inet_diag_req_v2: family, protocol, extensions, pad, states, then the socket's id.
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI48x")
_WANTS_TCP_INFO = 1 << 1
#: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING: those that may still carry something.
_STATES = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11
#: struct inet_diag_msg: the socket's inode is its last word.
_MESSAGE_BYTES, _INODE = 72, struct.Struct("=I")
_ATTRIBUTE = struct.Struct("=HH")
_INET_DIAG_INFO = 2
#: Of struct tcp_info: bytes_acked, bytes_received (Linux 4.1).
_BYTES, _BYTES_AT = struct.Struct("=QQ"), 120
_TIMEOUT_S = 0.2
_MOST_REPLY_BYTES = 32 << 20


class SocketBytes:
    """The newest count, asked again only when it is older than ``KEPT_NS``: one answer serves all ranks of a node."""

    KEPT_NS = 400_000_000

    def __init__(self) -> None:
        self._read_ns = -self.KEPT_NS
        self._bytes: Mapping[int, int] = {}

    def at(self, now_ns: int) -> Mapping[int, int]:
        """Bytes carried by socket inode, asked of the kernel again if older than ``KEPT_NS``. now_ns: monotonic."""
        if now_ns - self._read_ns >= self.KEPT_NS:
            self._read_ns, self._bytes = now_ns, socket_bytes()
        return self._bytes


def socket_bytes() -> Mapping[int, int]:
    """Bytes acknowledged and received together of every TCP connection, by the socket's inode.

    Of this network namespace. Empty, or a part, where the kernel does not tell.
    """
    found: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as diag:
            diag.settimeout(_TIMEOUT_S)
            for family in (socket.AF_INET, socket.AF_INET6):
                question = _QUESTION.pack(family, socket.IPPROTO_TCP, _WANTS_TCP_INFO, _STATES)
                size = _HEADER.size + len(question)
                diag.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 1, 0) + question)
                for message in _answers(diag):
                    _read(message, found)
    except (OSError, struct.error):
        pass  # no such netlink family, or a damaged answer: what was read so far stands
    return found


def inodes_of(pid: int, uid: int, most: int) -> list[int]:
    """Inodes of the sockets that a process of that user has open, among its first ``most`` descriptors."""
    try:
        return files_of(uid).socket_inodes(pid, most)
    except OSError:
        return []


def _answers(diag: socket.socket) -> Iterator[bytes]:
    """The bodies of all messages up to the last one."""
    read = 0
    while read < _MOST_REPLY_BYTES:
        data = diag.recv(1 << 17)
        read += len(data)
        place = 0
        while place + _HEADER.size <= len(data):
            size, kind, _, _, _ = _HEADER.unpack_from(data, place)
            if kind in (_DONE, _ERROR) or size < _HEADER.size:
                return
            yield data[place + _HEADER.size : place + size]
            place += (size + 3) & ~3


def _read(message: bytes, found: dict[int, int]) -> None:
    if len(message) < _MESSAGE_BYTES:
        return
    (inode,) = _INODE.unpack_from(message, _MESSAGE_BYTES - _INODE.size)
    place = _MESSAGE_BYTES
    while place + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, place)
        if size < _ATTRIBUTE.size:
            return
        if kind == _INET_DIAG_INFO and size >= _ATTRIBUTE.size + _BYTES_AT + _BYTES.size:
            found[inode] = sum(_BYTES.unpack_from(message, place + _ATTRIBUTE.size + _BYTES_AT))
        place += (size + 3) & ~3
