"""The judge's end: takes what the followers of its job send, and tells them what was concluded.

One thread owns all sockets; the watching thread calls ``take``, ``send`` and ``broadcast``, which never block. Nothing
is read from a follower while ``HELD_BYTES`` wait for ``take``: it keeps what it has and, at its own bound, drops and
counts. Who proves nothing within seconds is cut off; whatever comes in cannot do more than end its own connection.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque

from .hub_news import HubNews, PeerClock, PeerJoined, PeerLost
from .peer_connection import PeerConnection
from .peer_encryption import PLAIN_REFUSED, PeerEncryption, PlainEnd
from .peer_followers import MAX_NAME, Followers, read_hello
from .peer_frames import (
    MAX_BODY_BYTES,
    NONCE_BYTES,
    VERSION,
    BrokenPeer,
    PeerFrame,
    pack_frame,
    pack_ping,
    pack_proof,
    unpack_message,
    unpack_ping,
)

PING_S = 0.5
#: No byte for so long, of a peer that pings twice a second: it is not there, or the way to it is not.
SILENT_S = 2.5
HELLO_S = 5.0
#: Who speaks TLS begins at once; who has said nothing by then is told that it is asked for (a follower waits for 2 s).
PLAIN_S = 0.8
#: A silent connection is kept for so long: the way may come back.
FORGET_S = 120.0
#: How long followers may take to hear that the judge goes.
GOODBYE_S = 0.5
MAX_STRANGERS = 32
MAX_PEERS = 4096
HELD_BYTES = 64 << 20
#: A frame must be whole by then; those that are not take so much together, else the one that began first goes.
FRAME_S = 10.0
UNFINISHED_BYTES = 64 << 20
OUT_BYTES = 8 << 20


class PeerHub:
    def __init__(
        self,
        listener: socket.socket,
        *,
        secret: bytes,
        key: str,
        job: str,
        node: str,
        encryption: PeerEncryption | None = None,
    ) -> None:
        """listener: bound and listening; it is ours from here on. node: the judge's own name.

        encryption: None for plain connections; whoever speaks otherwise is refused.
        """
        self._listener = listener
        self._secret, self._key, self._job = secret, key, job
        self._node, self._encryption = node, encryption
        self._followers = Followers(node)
        self._connections: dict[socket.socket, PeerConnection] = {}
        self._lock = threading.Lock()
        self._news: deque[HubNews] = deque()
        self._news_bytes = 0
        self._outgoing: deque[tuple[str | None, bytes]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._unfinished_bytes = 0  # of frames that are not whole, of all connections
        self._closing = self._goodbye = False
        # A wall clock that nobody sets: followers' clocks are mapped to this one for as long as the run lasts.
        self._wall_base_ns = time.time_ns() - time.monotonic_ns()
        #: Counted for people: connections that were none of this job's, and frames for a follower that did not read.
        self.strangers = 0
        self.unsent = 0
        self._thread = threading.Thread(target=self._run, name="whichrank-peers", daemon=True)

    # --- the watching thread ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Starts the thread that takes connections."""
        self._thread.start()

    def take(self) -> list[HubNews]:
        """Takes away everything that has come since the last call, in order."""
        with self._lock:
            news, self._news = list(self._news), deque()
            held, self._news_bytes = self._news_bytes, 0
        if held >= HELD_BYTES:
            self._wake()
        return news

    def send(self, node: str, kind: PeerFrame, body: bytes) -> None:
        """Queues a frame for the follower of this node; nothing if it is not connected."""
        self._queue(node, pack_frame(kind, body))

    def broadcast(self, kind: PeerFrame, body: bytes) -> None:
        """Queues a frame for every follower that is connected; those that come later do not get it."""
        self._queue(None, pack_frame(kind, body))

    @property
    def missing(self) -> int:
        """How many messages followers had to drop before they could send them."""
        return self._followers.missing

    def close(self, *, goodbye: bool = True) -> None:
        """Ends the thread and its connections; waits a moment for it.

        goodbye: followers are told that the judge leaves; without it they know that they are on their own from here on.
        """
        self._goodbye = goodbye
        if goodbye:
            self.broadcast(PeerFrame.BYE, b"")
        self._closing = True
        self._wake()
        self._thread.join(2 * GOODBYE_S)

    def _queue(self, node: str | None, frame: bytes) -> None:
        self._outgoing.append((node, frame))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyhow; closed: nobody to wake
            os.write(self._wake_write, b"\0")

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        next_ping, looked = 0.0, time.monotonic()
        try:
            while True:
                for key, mask in self._selector.select(max(0.0, min(PING_S, next_ping - time.monotonic()))):
                    self._serve(key.fileobj, mask)
                now = time.monotonic()
                if now - looked > 2 * PING_S:  # we were not there: nobody else was silent for it
                    for connection in self._connections.values():
                        connection.heard = max(connection.heard, min(now, connection.heard + now - looked))
                looked = now
                if now >= next_ping:
                    next_ping = now + PING_S
                    self._ping_and_look(now)
                self._pass_on()
                if self._closing and not self._outgoing:
                    return self._end()
        finally:
            self._selector.close()

    def _serve(self, source: object, mask: int) -> None:
        if source is self._listener:
            self._accept()
        elif source == self._wake_read:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        else:
            connection = self._connections.get(source)  # type: ignore[call-overload]
            if connection is None:  # closed by an earlier event of the same round
                return
            try:
                if mask & selectors.EVENT_WRITE:
                    self._write(connection)
                if mask & selectors.EVENT_READ and connection.socket in self._connections:
                    self._read(connection)
            except Exception:  # whatever comes in can end its own connection, and nothing else
                self._drop(connection)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        strangers = [c for c in self._connections.values() if not c.instance]
        if len(strangers) >= MAX_STRANGERS:
            self.strangers += 1
            self._forget(strangers[0])  # the oldest: a follower proves who it is at once
        if len(self._connections) >= MAX_PEERS + MAX_STRANGERS:
            self.strangers += 1
            accepted.close()
            return
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        now = time.monotonic()
        try:
            end = PlainEnd() if self._encryption is None else self._encryption.judge_end()
        except Exception:  # no memory for one more: the others' connections go on
            accepted.close()
            self.strangers += 1
            return
        connection = PeerConnection(socket=accepted, since=now, heard=now, nonce=os.urandom(NONCE_BYTES), end=end)
        self._connections[accepted] = connection
        self._selector.register(accepted, selectors.EVENT_READ)
        if end.ready:
            self._challenge(connection)

    def _challenge(self, connection: PeerConnection) -> None:
        self._put(connection, pack_frame(PeerFrame.CHALLENGE, bytes([VERSION]) + connection.nonce))

    def _read(self, connection: PeerConnection) -> None:
        if self._news_bytes >= HELD_BYTES and connection.instance:
            connection.heard = connection.frame_since = time.monotonic()  # it is we who do not listen
            self._watch(connection)
            return
        was_ready = connection.end.ready
        try:
            connection.receive()
        except BlockingIOError:
            return
        connection.heard = time.monotonic()
        if not connection.unfinished_bytes:
            connection.frame_since = connection.heard
        if not was_ready:
            self._write(connection)
            if connection.end.ready:
                self._challenge(connection)
        while connection.socket in self._connections and (frame := connection.unframer.next()) is not None:
            connection.frame_since = connection.heard
            self._take_frame(connection, *frame)
        if connection.socket in self._connections:
            waiting_bytes = connection.unframer.waiting_bytes
            self._unfinished_bytes += waiting_bytes - connection.unfinished_bytes
            connection.unfinished_bytes = waiting_bytes
            if self._unfinished_bytes > UNFINISHED_BYTES:
                waiting = [c for c in self._connections.values() if c.unfinished_bytes]
                self._drop(min(waiting, key=lambda each: each.frame_since))

    def _take_frame(self, connection: PeerConnection, kind: PeerFrame, body: bytes) -> None:
        if not connection.instance:
            if kind is not PeerFrame.HELLO:
                raise BrokenPeer("no hello")
            self._greet(connection, body)
            return
        known = self._followers[connection.instance]
        if connection.silent:
            connection.silent = False
            self._report(PeerJoined(node=known.node, offset_ns=connection.clock.told_ns))
        if kind is PeerFrame.MESSAGE:
            message = unpack_message(body)
            if known.takes(message.number):
                self._report(message, len(body))
        elif kind is PeerFrame.PING:
            mono_ns, _ = unpack_ping(body)
            if connection.clock.compare(self._now_ns() - mono_ns):
                self._report(PeerClock(node=known.node, offset_ns=connection.clock.told_ns))
        elif kind is PeerFrame.BYE:
            connection.bye = True
            self._put(connection, pack_frame(PeerFrame.PING, pack_ping(time.monotonic_ns(), known.received)))
        else:
            raise BrokenPeer(f"a {kind.name} from a follower")

    def _greet(self, connection: PeerConnection, body: bytes) -> None:
        try:
            hello = read_hello(connection.end.bind(self._secret), self._key, connection.nonce, body)
        except BrokenPeer as error:
            self.strangers += 1
            self._refuse(connection, str(error))
            return
        if hello.job != self._job:
            self._refuse(connection, f"job {self._job} here, {hello.job[:MAX_NAME]} there")
            return
        for other in [c for c in self._connections.values() if c.instance == hello.instance]:
            self._forget(other)  # its follower has given that connection up
        known = self._followers.meet(hello)
        connection.instance = hello.instance
        connection.unframer.limit = MAX_BODY_BYTES
        connection.clock.start(self._now_ns() - hello.mono_ns)
        fields = {"node": known.node, "judge": self._node, "received": known.received}
        proof = pack_proof(connection.end.bind(self._secret), "judge", hello.nonce, fields)
        self._put(connection, pack_frame(PeerFrame.WELCOME, proof))
        self._report(PeerJoined(node=known.node, offset_ns=connection.clock.told_ns))

    def _refuse(self, connection: PeerConnection, reason: str) -> None:
        connection.refuse(reason)
        self._forget(connection)

    def _now_ns(self) -> int:
        return self._wall_base_ns + time.monotonic_ns()

    def _ping_and_look(self, now: float) -> None:
        for connection in list(self._connections.values()):
            if not connection.instance:
                if not (connection.end.ready or connection.has_spoken) and now - connection.since > PLAIN_S:
                    self.strangers += 1
                    self._refuse(connection, PLAIN_REFUSED)  # it waits for us, as who speaks plainly does
                elif now - connection.since > HELLO_S:
                    self.strangers += 1
                    self._forget(connection)
                continue
            known = self._followers[connection.instance]
            if connection.unfinished_bytes and now - connection.frame_since > FRAME_S:
                self._drop(connection)
                continue
            silent_s = now - connection.heard
            if silent_s > FORGET_S:
                self._forget(connection)
                continue
            if silent_s > SILENT_S and not connection.silent and not connection.bye:
                connection.silent = True
                self._report(PeerLost(node=known.node, why="silent", silent_ns=int(silent_s * 1e9)))
            self._put(connection, pack_frame(PeerFrame.PING, pack_ping(time.monotonic_ns(), known.received)))
            self._watch(connection)

    def _pass_on(self) -> None:
        while self._outgoing:
            node, frame = self._outgoing.popleft()
            for connection in list(self._connections.values()):
                if connection.instance and node in (None, self._followers[connection.instance].node):
                    self._put(connection, frame)

    def _put(self, connection: PeerConnection, frame: bytes) -> None:
        if len(connection.out) + len(frame) > OUT_BYTES:
            self.unsent += 1
            return
        try:
            connection.put(frame)
            self._write(connection)
        except OSError:
            self._drop(connection)

    def _write(self, connection: PeerConnection) -> None:
        connection.flush()
        self._watch(connection)

    def _watch(self, connection: PeerConnection) -> None:
        if connection.socket not in self._connections:
            return
        full = self._news_bytes >= HELD_BYTES and bool(connection.instance)
        mask = (0 if full else selectors.EVENT_READ) | (selectors.EVENT_WRITE if connection.out else 0)
        registered = self._selector.get_map().get(connection.socket)
        if not mask:
            if registered is not None:
                self._selector.unregister(connection.socket)
        elif registered is None:
            self._selector.register(connection.socket, mask)
        elif registered.events != mask:
            self._selector.modify(connection.socket, mask)

    def _drop(self, connection: PeerConnection) -> None:
        """The connection has ended, by its peer or by what came over it."""
        if connection.socket not in self._connections:
            return
        if connection.instance and not connection.silent:
            silent_ns = int((time.monotonic() - connection.heard) * 1e9)
            why = "left" if connection.bye else "closed"
            self._report(PeerLost(node=self._followers[connection.instance].node, why=why, silent_ns=silent_ns))
        elif not connection.instance:
            self.strangers += 1
        self._forget(connection)

    def _forget(self, connection: PeerConnection) -> None:
        if self._connections.pop(connection.socket, None) is not None:
            self._unfinished_bytes -= connection.unfinished_bytes
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _report(self, news: HubNews, size: int = 0) -> None:
        with self._lock:
            self._news.append(news)
            self._news_bytes += size

    def _end(self) -> None:
        """What is unread when a socket is closed makes the kernel take back our goodbye: read until they have it."""
        self._selector.unregister(self._wake_read)  # what is still in it would end every wait below
        self._selector.unregister(self._listener)
        self._listener.close()
        deadline = time.monotonic() + (GOODBYE_S if self._goodbye else 0.0)
        for connection in list(self._connections.values()):
            try:
                self._write(connection)
                connection.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self._forget(connection)
        while self._connections and (rest := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(rest):
                connection = self._connections.get(key.fileobj)  # type: ignore[call-overload]
                with contextlib.suppress(BlockingIOError):
                    if connection is not None and not connection.has_more():
                        self._forget(connection)
        for connection in list(self._connections.values()):
            self._forget(connection)
