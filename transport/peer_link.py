"""A follower's end: sends what its agent publishes to the judge, and takes what the judge says.

One thread owns the socket; the watching thread calls ``send`` and ``take``, which never block. What the judge has not
acknowledged is kept up to a bound, so that a connection that was lost costs nothing; beyond the bound the oldest goes,
counted. Connects again for as long as the run lasts, at most every few seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .peer_encryption import ConnectionEnd, PeerEncryption, PlainEnd
from .peer_frames import (
    MAX_BODY_BYTES,
    NONCE_BYTES,
    VERSION,
    BrokenPeer,
    PeerFrame,
    PeerMessage,
    Unframer,
    pack_frame,
    pack_message,
    pack_ping,
    pack_proof,
    unpack_ping,
    unpack_proof,
)
from .peer_hub import PING_S, SILENT_S

CONNECT_S = 2.0
FIRST_RETRY_S, LONGEST_RETRY_S = 0.25, 4.0
KEPT_BYTES = 32 << 20
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReached:
    """node: what this instance is called from now on; judge: the judge's node. dropped: messages lost by then."""

    node: str
    judge: str
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLost:
    """why: "left" (its command has ended), "closed" or "silent"."""

    judge: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSaid:
    """An incident's document, a request for evidence or an order, as it came."""

    kind: PeerFrame
    body: bytes


@dataclass(slots=True)
class _Wire:
    socket: socket.socket
    end: ConnectionEnd

    def begin(self) -> None:
        """Sends what encryption begins with."""
        self.open(b"")

    def open(self, data: bytes) -> bytes:
        """What the bytes that came say; answers what has to be answered. Raises BrokenPeer, OSError."""
        try:
            said, answer = self.end.take(data)
        except BrokenPeer:
            with contextlib.suppress(OSError):
                self.socket.sendall(self.end.closing_alert())
            raise
        self.socket.sendall(answer)
        return said


LinkNews = JudgeReached | JudgeLost | JudgeSaid


class PeerLink:
    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        *,
        secret: bytes,
        key: str,
        job: str,
        node: str,
        kept_bytes: int = KEPT_BYTES,
        encryption: PeerEncryption | None = None,
    ) -> None:
        """host, ports: where the judge may be. kept_bytes: of messages that the judge has not confirmed.

        encryption: None for a plain connection; a judge that speaks otherwise is not reached.
        """
        self._host, self._ports = host, tuple(ports)
        self._secret, self._encryption = secret, encryption
        self._hello: Mapping[str, Any] = {"key": key, "job": job, "node": node, "instance": os.urandom(8).hex()}
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, bytes]] = deque()  # (number, frame), not acknowledged
        self._bytes = 0
        self._number = 0
        self._sent = 0  # number of the last message handed to the socket of this connection
        self._news: deque[LinkNews] = deque()
        self._finishing = threading.Event()
        self._done = threading.Event()
        self._abandoned = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        #: Messages that went because the judge could not be reached for too long.
        self.dropped = 0
        #: Why the last attempt failed, for people.
        self.problem = "not tried yet"
        self.judge = ""
        self._thread = threading.Thread(target=self._run, name="whichrank-peer", daemon=True)

    # --- the watching thread ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Starts the thread, which connects, and connects again, until ``close``."""
        self._thread.start()

    def send(self, topic: str, key: str, value: bytes) -> None:
        """Queues one message for the judge; beyond the bound in bytes the oldest is dropped and counted."""
        with self._lock:
            self._number += 1
            message = PeerMessage(number=self._number, topic=topic, key=key, value=value)
            frame = pack_frame(PeerFrame.MESSAGE, pack_message(message))
            self._kept.append((self._number, frame))
            self._bytes += len(frame)
            while self._bytes > self._kept_bytes and len(self._kept) > 1:
                self._bytes -= len(self._kept.popleft()[1])
                self.dropped += 1
        self._wake()

    def take(self) -> list[LinkNews]:
        """Takes away what came from and of the judge since the last call, in order. Never waits."""
        with self._lock:
            news, self._news = list(self._news), deque()
        return news

    @property
    def unacknowledged(self) -> int:
        """How many messages are kept, as it is not known that the judge has them."""
        with self._lock:
            return len(self._kept)

    def close(self, patience_s: float) -> None:
        """Sends what is left and says goodbye, if the judge is there; waits ``patience_s`` at most."""
        self._finishing.set()
        self._wake()
        self._done.wait(patience_s)

    def abandon(self) -> None:
        """Ends the thread at once and without a goodbye: nothing true comes from this node any more."""
        self._abandoned = True
        self._finishing.set()
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            connection = self._connect()
            if connection is not None:
                retry_s = FIRST_RETRY_S
                why = self._converse(*connection)
                self._report(JudgeLost(judge=self.judge, why=why))
                self.problem = {"left": "it has ended", "silent": "it went silent"}.get(why, "it closed the connection")
            if self._finishing.is_set():
                self._done.set()
                return
            self._sleep(retry_s)
            retry_s = min(LONGEST_RETRY_S, retry_s * 1.6)

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._finishing.is_set() and (rest := deadline - time.monotonic()) > 0:
            self._finishing.wait(min(rest, 0.5))

    def _connect(self) -> tuple[_Wire, Unframer] | None:
        """The first of the ports behind which this job's judge sits."""
        for port in self._ports:
            if self._finishing.is_set():
                return None
            try:
                connection = socket.create_connection((self._host, port), timeout=CONNECT_S)
            except OSError as error:
                self.problem = f"{error.strerror or error}"
                if isinstance(error, TimeoutError):  # nobody answers at that address: its other ports neither
                    return None
                continue
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire = _Wire(connection, PlainEnd() if self._encryption is None else self._encryption.follower_end())
                return wire, self._introduce(wire)
            except (OSError, BrokenPeer, KeyError, TypeError, ValueError) as error:
                self.problem = str(error) or type(error).__name__
                connection.close()
        return None

    def _introduce(self, wire: _Wire) -> Unframer:
        """Prove to each other who we are. Raises BrokenPeer, OSError, or what wrong fields raise."""
        unframer = Unframer()
        wire.begin()
        body = self._expect(wire, unframer, PeerFrame.CHALLENGE)
        if len(body) != 1 + NONCE_BYTES or body[0] != VERSION:
            raise BrokenPeer("another release judges there" if body else "no judge there")
        nonce = os.urandom(NONCE_BYTES)
        hello = {**self._hello, "nonce": nonce.hex(), "mono_ns": time.monotonic_ns()}
        secret = wire.end.bind(self._secret)
        wire.socket.sendall(wire.end.seal(pack_frame(PeerFrame.HELLO, pack_proof(secret, "follower", body[1:], hello))))
        answer = unpack_proof(secret, "judge", nonce, self._expect(wire, unframer, PeerFrame.WELCOME))
        received, node, judge = int(answer["received"]), str(answer["node"]), str(answer["judge"])
        unframer.limit = MAX_BODY_BYTES
        with self._lock:
            self._acknowledge(received)
            self._sent = received
            dropped = self.dropped
        self.judge = judge
        self._report(JudgeReached(node=node, judge=judge, dropped=dropped))
        return unframer

    def _expect(self, wire: _Wire, unframer: Unframer, kind: PeerFrame) -> bytes:
        deadline = time.monotonic() + CONNECT_S
        while (frame := unframer.next()) is None:
            if (rest := deadline - time.monotonic()) <= 0:
                raise BrokenPeer("no answer in time")
            wire.socket.settimeout(rest)
            data = wire.socket.recv(_READ_BYTES)
            if not data:
                raise BrokenPeer("it closed the connection")
            unframer.feed(wire.open(data))
        if frame[0] is PeerFrame.REFUSED:
            raise BrokenPeer(f"the judge there refuses: {frame[1][:200].decode(errors='replace')}")
        if frame[0] is not kind:
            raise BrokenPeer("no judge there")
        return frame[1]

    def _converse(self, wire: _Wire, unframer: Unframer) -> str:
        """Until the connection ends; returns why."""
        connection, seal = wire.socket, wire.end.seal
        connection.setblocking(False)
        out = bytearray()
        heard = looked = time.monotonic()
        next_ping, said_bye = 0.0, False
        try:
            while True:
                now = time.monotonic()
                heard += max(0.0, now - looked - 2 * PING_S)  # a pause of our own is no silence of the judge's
                looked = now
                if now - heard > SILENT_S:
                    return "silent"
                if now >= next_ping:
                    next_ping = now + PING_S
                    out += seal(pack_frame(PeerFrame.PING, pack_ping(time.monotonic_ns(), 0)))
                if not out:
                    out += seal(self._next_frames())
                if self._abandoned:
                    return "closed"
                if self._finishing.is_set() and not out:
                    if not said_bye:
                        said_bye = True
                        out += seal(pack_frame(PeerFrame.BYE))
                    elif not self.unacknowledged:
                        return "left"
                reading: list[socket.socket | int] = [connection, self._wake_read]
                writing = [connection] if out else []
                readable, writable, _ = select.select(reading, writing, [], max(0.0, next_ping - now))
                if writable:
                    del out[: connection.send(out)]
                if self._wake_read in readable:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                if connection in readable:
                    data = connection.recv(_READ_BYTES)
                    if not data:
                        return "closed"
                    heard = time.monotonic()
                    said, answer = wire.end.take(data)
                    out += answer
                    unframer.feed(said)
                    while (frame := unframer.next()) is not None:
                        if frame[0] is PeerFrame.BYE:
                            return "left"
                        self._take_frame(*frame)
        except (OSError, BrokenPeer, ValueError):
            return "closed"
        finally:
            connection.close()

    def _take_frame(self, kind: PeerFrame, body: bytes) -> None:
        if kind is PeerFrame.PING:
            _, received = unpack_ping(body)
            with self._lock:
                self._acknowledge(received)
        elif kind in (PeerFrame.INCIDENT, PeerFrame.REQUEST, PeerFrame.ORDER):
            self._report(JudgeSaid(kind=kind, body=body))
        else:
            raise BrokenPeer(f"a {kind.name} from the judge")

    def _next_frames(self) -> bytes:
        """Frames that this connection has not carried yet, a good piece of them."""
        out = bytearray()
        with self._lock:
            for number, frame in self._kept:
                if number > self._sent:
                    out += frame
                    self._sent = number
                    if len(out) > _READ_BYTES:
                        break
        return bytes(out)

    def _acknowledge(self, received: int) -> None:
        while self._kept and self._kept[0][0] <= received:
            self._bytes -= len(self._kept.popleft()[1])

    def _report(self, news: LinkNews) -> None:
        with self._lock:
            self._news.append(news)
