"""One connection of the judge's: its socket, what is known of the peer at the other end, what waits to be sent."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field

from .peer_encryption import ConnectionEnd
from .peer_followers import FollowerClock
from .peer_frames import BrokenPeer, PeerFrame, Unframer, pack_frame

READ_BYTES = 1 << 16


@dataclass(slots=True, eq=False, kw_only=True)
class PeerConnection:
    socket: socket.socket
    since: float
    heard: float
    nonce: bytes
    end: ConnectionEnd
    unframer: Unframer = field(default_factory=Unframer)
    out: bytearray = field(default_factory=bytearray)  # sealed, not sent
    frame_since: float = 0.0  # when the frame that is not whole began
    unfinished_bytes: int = 0  # of it, as counted
    instance: str = ""  # empty until it has proved who it is
    has_spoken: bool = False
    silent: bool = False
    bye: bool = False
    clock: FollowerClock = field(default_factory=FollowerClock)

    def receive(self) -> None:
        """Takes in what has come, into ``unframer``; an answer of the encryption's goes into ``out``.

        Raises BlockingIOError where nothing has come, ConnectionResetError or another OSError where the connection has
        ended, BrokenPeer where the peer breaks the rules.
        """
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError
        self.has_spoken = True
        try:
            said, answer = self.end.take(data)
        except BrokenPeer:
            with contextlib.suppress(OSError):
                self.socket.send(self.end.closing_alert())
            raise
        self.out += answer
        self.unframer.feed(said)

    def put(self, frame: bytes) -> None:
        """Adds a frame to what waits to be sent."""
        self.out += self.end.seal(frame)

    def flush(self) -> None:
        """Sends what the socket takes now. Raises OSError."""
        while self.out:
            try:
                sent = self.socket.send(self.out)
            except BlockingIOError:
                return
            del self.out[:sent]

    def refuse(self, reason: str) -> None:
        """Says why, plainly to somebody who speaks plainly; the connection is of no more use."""
        frame = pack_frame(PeerFrame.REFUSED, reason.encode("utf-8", "replace")[:512])
        with contextlib.suppress(OSError):
            self.socket.send(self.end.seal(frame) if self.end.ready else frame)

    def has_more(self) -> bool:
        """Reads and forgets what came; False where the connection has ended. Raises BlockingIOError if nothing came."""
        try:
            return bool(self.socket.recv(READ_BYTES))
        except BlockingIOError:
            raise
        except OSError:
            return False
