"""Whoever reaches the port of a run's judge: strangers, and followers who know the secret."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.attacks.a_judge import CLUSTER, forget_peak, peak_mb
from tests.attacks.register import Outcome, attack
from whichrank.commands.multi_node.peer_plan import InstanceRole, PeerPlan, secret_of
from whichrank.commands.multi_node.peer_setup import PeerSetup, set_up_peers
from whichrank.commands.multi_node.peers import JudgePeers
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Event, Finding, Identity
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.hub_news import PeerJoined
from whichrank.transport.peer_frames import (
    NONCE_BYTES,
    PeerFrame,
    PeerMessage,
    pack_frame,
    pack_message,
    pack_ping,
    pack_proof,
)
from whichrank.transport.peer_hub import PeerHub
from whichrank.transport.peer_link import JudgeReached, PeerLink

SECRET, KEY, JOB = b"s" * 32, "0123456789abcdef", "job"


class Hub:
    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(listener.getsockname()[1])
        self.hub = PeerHub(listener, secret=SECRET, key=KEY, job=JOB, node="judge")
        self.hub.start()

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5.0)

    def speak(self, fields: Mapping[str, object] | None = None, *, secret: bytes = SECRET) -> socket.socket:
        """A connection on which a HELLO was said."""
        connection = self.dial()
        challenge = _exactly(connection, 5 + 1 + NONCE_BYTES)
        hello = {
            "key": KEY, "job": JOB, "node": "n", "instance": os.urandom(8).hex(), "nonce": os.urandom(32).hex(),
            "mono_ns": time.monotonic_ns(), **(fields or {}),
        }  # fmt: skip
        proof = pack_proof(secret, "follower", challenge[6:], hello)
        connection.sendall(pack_frame(PeerFrame.HELLO, proof))
        return connection

    def joins_within(self, seconds: float, count: int = 1) -> list[float]:
        """How long true followers took; ``seconds`` for those who have not come in."""
        links = [
            PeerLink("127.0.0.1", [self.port], secret=SECRET, key=KEY, job=JOB, node=f"true-{n}") for n in range(count)
        ]
        began, took = time.monotonic(), dict[int, float]()
        for link in links:
            link.start()
        while len(took) < count and time.monotonic() - began < seconds:
            for number, link in enumerate(links):
                if number not in took and any(isinstance(news, JudgeReached) for news in link.take()):
                    took[number] = time.monotonic() - began
            time.sleep(0.01)
        for link in links:
            link.close(1.0)
        return [took.get(number, seconds) for number in range(count)]


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


@attack("B1", "b", "the secret that follows from the command line in `ps`", asked="needs a secret")
def secret_from_ps(folder: Path) -> Outcome:
    command = ["torchrun", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29431", "train.py"]
    os.environ["HOME"] = str(folder / "user")
    os.environ.pop("XDG_CONFIG_HOME", None)
    said: list[str] = []
    setup = set_up_peers(command, judge="", secret="", script="train.py", report=said.append)
    assert setup.listener is not None
    assert setup.role is InstanceRole.JUDGE
    os.environ["HOME"] = str(folder / "eve")
    eve = set_up_peers(command, judge="", secret="", script="train.py", report=said.append)
    guesses = {secret_of(eve.plan, ""), eve.secret, secret_of(eve.plan, setup.plan.key)}
    kept = folder / "user" / ".config" / "whichrank" / "judge-secret"
    is_private = kept.exists() and kept.stat().st_mode & 0o777 == 0o600
    os.environ["HOME"] = str(folder / "user")
    other_node = set_up_peers(command, judge="", secret="", script="train.py", report=said.append)
    return Outcome(
        held=setup.secret not in guesses and is_private and other_node.secret == setup.secret,
        measured=f"guessed from the command: {setup.secret in guesses}; another node with the same home has it: "
        f"{other_node.secret == setup.secret}",
    )


@attack("B2", "b", "HELLO with names of half a character, ESC and newline (secret known)",
        asked="ends its own connection only")  # fmt: skip
def half_a_character(folder: Path) -> Outcome:
    hub, answers = Hub(), list[bytes]()
    odd: tuple[dict[str, object], ...] = (
        {"job": "j\ud83d"}, {"node": "n\ud83d"}, {"node": "n\x1b]0;PWN\x07\n"}, {"instance": "\ud83d"}, {"job": ["x"]},
        {"mono_ns": "x"}, {"mono_ns": 1e308}, {"nonce": 7}, {"node": {}},
    )  # fmt: skip
    for fields in odd:
        connection = hub.speak(fields)
        connection.settimeout(2.0)
        try:
            answers.append(connection.recv(4096))
        except OSError:
            answers.append(b"")
    (took,) = hub.joins_within(3.0)
    names = [news.node for news in hub.hub.take() if isinstance(news, PeerJoined)]
    return Outcome(
        held=took < 1.0 and all(name.isprintable() for name in names),
        measured=f"a true follower joins in {took:.2f} s; names taken: {names!r}"[:200],
    )


@attack("B3", "b", "HELLO with a 300-digit clock, inf, a text, bad nonces", asked="refused or harmless")
def odd_clocks(folder: Path) -> Outcome:
    hub = Hub()
    odd: tuple[dict[str, object], ...] = (
        {"mono_ns": 10**300}, {"mono_ns": float("inf")}, {"mono_ns": "x"}, {"nonce": "zz"}, {"nonce": "00"},
        {"nonce": 7},
    )  # fmt: skip
    connections = [hub.speak(fields) for fields in odd]
    (took,) = hub.joins_within(3.0)
    for connection in connections:
        connection.close()
    return Outcome(held=took < 1.0, measured=f"a true follower joins in {took:.2f} s")


@attack("B4", "b", "node name with ESC and newline, told by the judge", asked="one printable line")
def name_with_escape(folder: Path) -> Outcome:
    said: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    plan = PeerPlan(role=InstanceRole.JUDGE, why="two nodes", host="h", ports=(1,), key=KEY, nodes=2)
    setup = PeerSetup(plan=plan, secret=SECRET, node="judge", job=JOB, listener=listener)
    peers, bench = JudgePeers(setup, JOB, said.append), _Bench()
    hub = Hub.__new__(Hub)
    hub.port = int(listener.getsockname()[1])
    connection = hub.speak({"node": "n\x1b]0;PWN\x07\nwhichrank: FORGED"})
    time.sleep(0.5)
    peers.turn(bench)
    connection.close()
    raw = [line for line in said if not line.isprintable()]
    return Outcome(held=not raw, measured=f"{len(raw)} raw lines of {len(said)}")


class _Bench:
    """What a judge's watch does with followers' words."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, bytes]] = []
        self.told: list[tuple[str, EventName]] = []

    def append(self, topic: str, key: str, value: bytes) -> None:
        self.messages.append((topic, key, value))

    def tell_of(self, node: str, name: EventName, **attributes: str | int) -> None:
        self.told.append((node, name))

    def show(self, incident: object) -> None: ...
    def request(self, event: Event) -> None: ...
    def rename(self, node: str) -> None: ...
    def announce(self) -> None: ...


@attack("B5", "b", "follower sends a Finding, a lost peer, and on topics that are not his", asked="not taken")
def words_of_a_follower(folder: Path) -> Outcome:
    from tests.attacks.a_judge import Judge

    listener = socket.create_server(("127.0.0.1", 0))
    plan = PeerPlan(role=InstanceRole.JUDGE, why="two nodes", host="h", ports=(1,), key=KEY, nodes=2)
    setup = PeerSetup(plan=plan, secret=SECRET, node="judge", job=JOB, listener=listener)
    peers, bench, judge = JudgePeers(setup, JOB, print), _Bench(), Judge(folder)
    identity = Identity(cluster=CLUSTER, job="victim", attempt="victim-1", node="node-victim", rank=1)
    judge.start_job()
    now = judge.now_ns
    body = {"kind": "rank_died", "bucket": "crash", "suspects": [{"rank": 1}], "times": {"onset": now / 1e9}}
    forged = [
        encode_payloads([Finding(identity=identity, key="k", cleared=False, time_ns=now, body=body)]),
        encode_payloads([Event(name=EventName.PEER_LOST, identity=identity, time_ns=now,
                               attributes={"role": "follower", "why": "silent", "silent_ns": 10**10})]),
    ]  # fmt: skip
    hub = Hub.__new__(Hub)
    hub.port = int(listener.getsockname()[1])
    connection, number = hub.speak(), 0
    for topic in (TOPIC_BLOCKS, "otlp_logs", "whichrank.findings", "whichrank.words", "whichrank.clock"):
        for value in forged:
            number += 1
            message = PeerMessage(number=number, topic=topic, key="people", value=value)
            connection.sendall(pack_frame(PeerFrame.MESSAGE, pack_message(message)))
    time.sleep(0.5)
    peers.turn(bench)
    for topic, key, value in bench.messages:
        judge.put_bytes(value, topic=topic, key=key)
    judge.pass_time(20)
    told = judge.told_kinds()
    return Outcome(
        held=not told and len(bench.messages) == 2 and judge.letters == 2,
        measured=f"{len(bench.messages)} of {number} taken, {judge.letters} dead letters, incidents: {told}",
    )


@attack("B9", "b", "200 authenticated connections with 1 MB frames left unfinished", asked="bounded", limit_s=60)
def unfinished_frames(folder: Path) -> Outcome:
    hub = Hub()
    forget_peak()
    before = peak_mb()
    connections = _unfinished(hub, 200)
    more = peak_mb() - before
    (took,) = hub.joins_within(3.0)
    time.sleep(12)
    left = len(hub.hub._connections)  # noqa: SLF001
    del connections
    return Outcome(
        held=more < 150 and took < 1.5 and left < 10,
        measured=f"+{more} MB, {left} connections after 12 s, a true follower joins in {took:.2f} s",
    )


def _unfinished(hub: Hub, count: int) -> Sequence[socket.socket]:
    """Each keeps its connection alive with what is no whole frame."""
    connections, piece = list[socket.socket](), pack_frame(PeerFrame.MESSAGE, bytes(1 << 20))[: (1 << 20) - 10]
    for _ in range(count):
        connection = hub.speak()
        connection.settimeout(2.0)
        try:
            connection.sendall(piece)
        except OSError:
            connection.close()
        connections.append(connection)
    return connections


@attack("B10", "b", "250 without a secret: random bytes, lengths of 2^32-1, HTTP, wrong proofs", asked="refused")
def strangers(folder: Path) -> Outcome:
    hub = Hub()
    forget_peak()
    before = peak_mb()
    words = [os.urandom(200), b"\xff\xff\xff\xff\x02", b"GET / HTTP/1.1\r\n\r\n", pack_frame(PeerFrame.BYE)]
    for number in range(250):
        if number % 5 == 4:
            hub.speak(secret=b"wrong").close()
            continue
        with hub.dial() as connection:
            connection.sendall(words[number % 5])
    (took,) = hub.joins_within(5.0)
    joined = [news for news in hub.hub.take() if isinstance(news, PeerJoined)]
    more = peak_mb() - before
    return Outcome(
        held=took < 1.0 and len(joined) == 1 and more < 20,
        measured=f"{hub.hub.strangers} strangers, {len(joined)} joined, +{more} MB, true in {took:.2f} s",
    )


@attack("B11", "b", "recorded HELLO said again", asked="refused")
def replayed(folder: Path) -> Outcome:
    hub = Hub()
    first = hub.dial()
    challenge = _exactly(first, 5 + 1 + NONCE_BYTES)
    hello = {"key": KEY, "job": JOB, "node": "n", "instance": "i", "nonce": "00" * 32, "mono_ns": 1}
    said = pack_frame(PeerFrame.HELLO, pack_proof(SECRET, "follower", challenge[6:], hello))
    first.sendall(said)
    taken = _exactly(first, 5)
    second = hub.dial()
    _exactly(second, 5 + 1 + NONCE_BYTES)
    second.sendall(said)
    refused = _exactly(second, 5)
    return Outcome(
        held=taken[4] == PeerFrame.WELCOME and refused[4] == PeerFrame.REFUSED,
        measured=f"first {PeerFrame(taken[4]).name}, again {PeerFrame(refused[4]).name}",
    )


@attack("B12", "b", "150 authenticated: random frames, pings and numbers of 2^64-1", asked="ends its own connection")
def odd_frames(folder: Path) -> Outcome:
    hub = Hub()
    odd = PeerMessage(number=(1 << 64) - 1, topic="t", key="k", value=b"")
    words = [
        os.urandom(100), pack_frame(PeerFrame.PING, pack_ping(-(1 << 63), (1 << 64) - 1)),
        pack_frame(PeerFrame.MESSAGE, pack_message(odd)), pack_frame(PeerFrame.MESSAGE, b"\xff" * 50),
        pack_frame(PeerFrame.WELCOME), pack_frame(PeerFrame.PING, b"x"), pack_frame(PeerFrame.MESSAGE),
    ]  # fmt: skip
    for number in range(150):
        with hub.speak() as connection:
            connection.sendall(words[number % len(words)])
    (took,) = hub.joins_within(5.0)
    return Outcome(held=took < 1.0, measured=f"a true follower joins in {took:.2f} s")


@attack("B13", "b", "64 idle connections without a secret, made again as they end", asked="true followers still join",
        limit_s=60)  # fmt: skip
def idle_strangers(folder: Path) -> Outcome:
    hub = Hub()
    idle = [hub.dial() for _ in range(64)]
    took = hub.joins_within(6.0, count=8)
    del idle
    return Outcome(held=max(took) < 1.0, measured=f"8 followers in {max(took):.2f} s at most")
