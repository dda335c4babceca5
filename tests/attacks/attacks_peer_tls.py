"""Whoever is on the way between the nodes of a job, or reaches the port of its judge, where everything is encrypted."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.attacks.attacks_peers import JOB, KEY, SECRET
from tests.attacks.register import Outcome, attack
from tests.transport.cut_wire import CutWire
from tests.transport.peer_certificates import Authority
from whichrank.commands.multi_node.peer_plan import InstanceRole, PeerPlan
from whichrank.commands.multi_node.peer_setup import PeerSetup
from whichrank.commands.multi_node.peer_tls import PeerTls
from whichrank.commands.multi_node.peers import FollowerPeers, JudgePeers
from whichrank.transport.hub_news import PeerJoined
from whichrank.transport.peer_encryption import PeerEncryption, encryption_by_secret
from whichrank.transport.peer_frames import PeerFrame, PeerMessage, pack_frame
from whichrank.transport.peer_hub import PeerHub
from whichrank.transport.peer_link import JudgeReached, JudgeSaid, PeerLink

CANARY = "canary-of-a-job"


class EncryptedHub:
    def __init__(self, encryption: PeerEncryption) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(listener.getsockname()[1])
        self.encryption = encryption
        self.hub = PeerHub(listener, secret=SECRET, key=KEY, job=JOB, node="judge", encryption=encryption)
        self.hub.start()

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5.0)

    def follower(self, *, port: int = 0, encryption: PeerEncryption | None = None) -> PeerLink:
        link = PeerLink(
            "127.0.0.1", [port or self.port], secret=SECRET, key=KEY, job=JOB, node=CANARY,
            encryption=encryption or self.encryption,
        )  # fmt: skip
        link.start()
        return link

    def joins_within(self, seconds: float) -> float:
        link, began = self.follower(), time.monotonic()
        while time.monotonic() - began < seconds and not _reached(link):
            time.sleep(0.01)
        took = time.monotonic() - began
        link.close(1.0)
        return took

    def joined(self) -> int:
        return sum(isinstance(news, PeerJoined) for news in self.hub.take())


def _reached(link: PeerLink) -> bool:
    return any(isinstance(news, JudgeReached) for news in link.take())


def _until(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.05)
    return False


@attack("B120", "b", "somebody on the way records all bytes between judge and follower, as they are started by default",
        asked="no id, name, record or secret among them", limit_s=60)  # fmt: skip
def eavesdropper(folder: Path) -> Outcome:
    listener = socket.create_server(("127.0.0.1", 0))
    wire = CutWire(int(listener.getsockname()[1]))
    plans = {
        role: PeerPlan(role=role, why="two nodes", host="127.0.0.1", ports=(wire.port,), key=KEY, nodes=2)
        for role in (InstanceRole.JUDGE, InstanceRole.FOLLOWER)
    }
    said: list[str] = []
    encryption = PeerTls().encryption(SECRET)
    judge = JudgePeers(
        PeerSetup(
            plan=plans[InstanceRole.JUDGE], secret=SECRET, encryption=encryption, node="judge", job=JOB,
            listener=listener,
        ),
        JOB,
        said.append,
    )  # fmt: skip
    follower = FollowerPeers(
        PeerSetup(plan=plans[InstanceRole.FOLLOWER], secret=SECRET, encryption=encryption, node=CANARY, job=JOB),
        JOB,
        said.append,
    )
    for number in range(50):
        follower.published("whichrank.blocks", f"{CANARY}/{number}", CANARY.encode() * 100)
    hub, link = judge._hub, follower._link  # noqa: SLF001
    arrived: list[PeerMessage] = []

    def all_there() -> bool:
        arrived.extend(news for news in hub.take() if isinstance(news, PeerMessage))
        return len(arrived) == 50

    came = _until(all_there, 10.0)
    hub.broadcast(PeerFrame.INCIDENT, json.dumps({"id": CANARY, "kind": CANARY}).encode())
    heard = _until(lambda: any(isinstance(news, JudgeSaid) for news in link.take()), 5.0)
    overheard = bytes(wire.overheard)
    follower.close()
    judge.close()
    seen = [text for text in (CANARY.encode(), JOB.encode() + b'"', KEY.encode(), SECRET) if text in overheard]
    return Outcome(
        held=came and heard and not seen and len(overheard) > 50_000,
        measured=f"{len(overheard)} bytes overheard of {len(arrived)} records and an incident, in them: {seen}",
    )


@attack("B121", "b", "somebody without the secret stands between judge and follower, and ends TLS on both sides",
        asked="neither believes him, he is told nothing", limit_s=60, long=True)  # fmt: skip
def man_in_the_middle(folder: Path) -> Outcome:
    hub = EncryptedHub(encryption_by_secret(SECRET))
    his = encryption_by_secret(b"g" * 32)
    listener, heard = socket.create_server(("127.0.0.1", 0), backlog=16), bytearray()

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            with contextlib.suppress(OSError), his.judge.wrap_socket(near, server_side=True) as client:
                client.sendall(pack_frame(PeerFrame.CHALLENGE, b"\x01" + os.urandom(32)))
                heard.extend(client.recv(1 << 16))
            with contextlib.suppress(OSError), his.follower.wrap_socket(hub.dial()) as server:
                server.settimeout(2.0)
                heard.extend(server.recv(1 << 16))

    threading.Thread(target=serve, daemon=True).start()
    link = hub.follower(port=int(listener.getsockname()[1]))
    link.send("whichrank.blocks", "k", CANARY.encode())
    time.sleep(5.0)
    believed, problem = _reached(link), link.problem
    link.close(0.5)
    joined = hub.joined()
    took = hub.joins_within(5.0)
    return Outcome(
        held=not believed and not heard and not joined and "another secret" in problem and took < 2.0,
        measured=f"{len(heard)} bytes told him, believed: {believed}, joined: {joined}; said: {problem[:60]}; "
        f"a true one after {took:.2f} s",
    )


@attack("B122", "b", "a holder of a certificate of the authority, without the job's secret, stands in between",
        asked="his certificate opens nothing", limit_s=60, long=True)  # fmt: skip
def other_certificate_between(folder: Path) -> Outcome:
    authority = Authority(folder / "ca")

    def issued(name: str) -> PeerEncryption:
        certificate, key = authority.issue(name)
        made = PeerTls(certificate=certificate, key=key, authority=authority.file).encryption(SECRET)
        assert made is not None
        return made

    hub, his = EncryptedHub(issued("judge")), issued("between")
    listener, relayed = socket.create_server(("127.0.0.1", 0), backlog=16), bytearray()

    def pump(source: ssl.SSLSocket, target: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                relayed.extend(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            with contextlib.suppress(OSError):
                ends = his.judge.wrap_socket(near, server_side=True), his.follower.wrap_socket(hub.dial())
                for pair in (ends, ends[::-1]):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    link = hub.follower(port=int(listener.getsockname()[1]), encryption=issued("follower"))
    link.send("whichrank.blocks", "k", b"record-of-the-job")
    time.sleep(4.0)
    believed = _reached(link)
    link.close(0.5)
    return Outcome(
        held=bool(relayed) and not believed and not hub.joined() and b"record-of-the-job" not in relayed,
        measured=f"{len(relayed)} bytes passed on by him, believed: {believed}, a record among them: "
        f"{b'record-of-the-job' in relayed}",
    )


@attack("B123", "b", "strangers begin handshakes and stop: 100 after a few bytes, 100 whole ones a second",
        asked="true followers join; the judge's CPU is bounded", limit_s=60, long=True)  # fmt: skip
def half_handshakes(folder: Path) -> Outcome:
    hub = EncryptedHub(encryption_by_secret(SECRET))
    _, hello = encryption_by_secret(b"g" * 32).follower_end().take(b"")
    kept = [hub.dial() for _ in range(100)]
    for number, connection in enumerate(kept):
        with contextlib.suppress(OSError):
            connection.sendall(hello[: 1 + number])
    stop, count = threading.Event(), 0

    def flood() -> None:
        nonlocal count
        while not stop.is_set():
            with contextlib.suppress(OSError):
                connection = hub.dial()
                kept.append(connection)
                connection.sendall(hello)
                count += 1
            time.sleep(0.01)

    threading.Thread(target=flood, daemon=True).start()
    time.sleep(1.0)
    cpu = time.process_time()
    took = max(hub.joins_within(5.0) for _ in range(4))
    time.sleep(max(0.0, 3.0 - 4 * took))
    cpu = (time.process_time() - cpu) / max(3.0, 4 * took)
    stop.set()
    left = len(hub.hub._connections)  # noqa: SLF001
    return Outcome(
        held=took < 2.0 and left <= 40 and cpu < 0.6 and count > 100,
        measured=f"4 followers in {took:.2f} s at most, {count} handshakes begun, {left} connections kept, "
        f"{100 * cpu:.0f} % of a core with the attacker's",
    )


@attack("B124", "b", "an older TLS version, no certificate, a certificate by another secret, a session said again",
        asked="none joins; one clear line for a plain one", limit_s=60)  # fmt: skip
def weaker(folder: Path) -> Outcome:
    hub = EncryptedHub(encryption_by_secret(SECRET))
    wire = CutWire(hub.port)
    true = hub.follower(port=wire.port)
    _until(lambda: _reached(true), 5.0)
    recorded = bytes(wire.overheard)
    true.close(1.0)
    joined = hub.joined()
    answers: list[bytes] = []
    for least, most, certificate in (
        (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3, False),
    ):
        context = (
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if not certificate else encryption_by_secret(b"g" * 32).follower
        )
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version, context.maximum_version = least, most
        with contextlib.suppress(OSError), context.wrap_socket(hub.dial()) as client:
            client.settimeout(2.0)
            answers.append(client.recv(1000))
    with contextlib.suppress(OSError), hub.dial() as again:
        again.settimeout(2.0)
        again.sendall(recorded)
        while again.recv(1 << 16):
            pass
    plain = PeerLink("127.0.0.1", [hub.port], secret=SECRET, key=KEY, job=JOB, node="plain")
    plain.start()
    told = _until(lambda: "TLS only" in plain.problem, 8.0)
    plain.close(0.5)
    more = hub.joined()
    return Outcome(
        held=joined == 1 and more == 0 and not any(answers) and told,
        measured=f"{more} joined of 4, answers: {answers}, the plain one was told why: {told}",
    )
