"""Further ways to deafen or deceive the judge and its followers over the port."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

from tests.attacks.attacks_peers import JOB, KEY, SECRET, Hub, _exactly
from tests.attacks.register import Outcome, attack
from whichrank.transport.hub_news import PeerJoined
from whichrank.transport.peer_frames import NONCE_BYTES, PeerFrame, PeerMessage, pack_frame, pack_message
from whichrank.transport.peer_link import JudgeReached, PeerLink


@attack("B101", "b", "100 strangers send a byte of their HELLO each 0.2 s", asked="true followers join", limit_s=60)
def slow_hello(folder: Path) -> Outcome:
    hub, stop = Hub(), time.monotonic() + 8
    connections = [hub.dial() for _ in range(100)]

    def drip() -> None:
        frame = pack_frame(PeerFrame.HELLO, bytes(2000))
        for byte in frame:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(bytes([byte]))
            time.sleep(0.2)
            if time.monotonic() > stop:
                return

    threading.Thread(target=drip, daemon=True).start()
    time.sleep(1.0)
    took = hub.joins_within(5.0, count=4)
    return Outcome(held=max(took) < 1.5, measured=f"4 followers in {max(took):.2f} s at most")


@attack(
    "B102",
    "b",
    "a stranger connects and goes, as often as he can, for three seconds",
    asked="true followers join; descriptors are given back",
    limit_s=60,
)
def storm_of_connections(folder: Path) -> Outcome:
    hub, stop, count = Hub(), threading.Event(), 0
    before = len(os.listdir("/proc/self/fd"))

    def storm() -> None:
        nonlocal count
        while not stop.is_set():
            with contextlib.suppress(OSError):
                hub.dial().close()
                count += 1

    thread = threading.Thread(target=storm, daemon=True)
    thread.start()
    time.sleep(1.0)
    took = hub.joins_within(5.0, count=2)
    time.sleep(1.0)
    stop.set()
    thread.join(5.0)
    time.sleep(2.0)
    after = len(os.listdir("/proc/self/fd"))
    return Outcome(
        held=max(took) < 2.0 and after - before < 40 and count > 100,
        measured=f"{count} connections, 2 followers in {max(took):.2f} s, {after - before} descriptors more",
    )


@attack("B103", "b", "the judge's own words are sent back to it as a HELLO (reflection)", asked="refused", limit_s=30)
def reflection(folder: Path) -> Outcome:
    hub = Hub()
    first, second = hub.dial(), hub.dial()
    challenge = _exactly(first, 5 + 1 + NONCE_BYTES)
    other = _exactly(second, 5 + 1 + NONCE_BYTES)
    for connection, words in ((first, other), (second, challenge)):
        with contextlib.suppress(OSError):
            connection.sendall(words)
            connection.sendall(pack_frame(PeerFrame.HELLO, words[5:]))
            connection.settimeout(2.0)
            connection.recv(4096)
    # What a true follower has proven on one connection is said on another one, whose challenge is different.
    (took,) = hub.joins_within(3.0)
    joined = [news for news in hub.hub.take() if isinstance(news, PeerJoined)]
    return Outcome(held=len(joined) == 1 and took < 1.0, measured=f"{len(joined)} joined, the true one in {took:.2f} s")


@attack(
    "B104",
    "b",
    "somebody without the secret answers in the judge's place, with WELCOME, with nonsense",
    asked="he is told nothing and not believed",
    limit_s=40,
)
def false_judge(folder: Path) -> Outcome:
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    heard: list[bytes] = []

    def serve() -> None:
        answers = [
            pack_frame(PeerFrame.WELCOME, b"{}"),
            pack_frame(PeerFrame.WELCOME, bytes(200)),
            os.urandom(500),
            b"\xff\xff\xff\xff\x02",
            pack_frame(
                PeerFrame.MESSAGE, pack_message(PeerMessage(number=1, topic="whichrank.requests", key="k", value=b"x"))
            ),
        ]
        for number in range(100):
            client, _ = listener.accept()
            with contextlib.suppress(OSError):
                client.sendall(pack_frame(PeerFrame.HELLO, b"\x01" + os.urandom(NONCE_BYTES)))
                client.sendall(pack_frame(PeerFrame(1), b"\x01" + os.urandom(NONCE_BYTES)))
                client.sendall(answers[number % len(answers)])
                client.settimeout(1.0)
                heard.append(client.recv(1 << 16))
                heard.append(client.recv(1 << 16))
            client.close()

    threading.Thread(target=serve, daemon=True).start()
    port = int(listener.getsockname()[1])
    link = PeerLink("127.0.0.1", [port], secret=SECRET, key=KEY, job=JOB, node="true")
    link.start()
    link.send("whichrank.blocks", "k", b"canary-of-a-record")
    time.sleep(6.0)
    news = link.take()
    link.close(1.0)
    told = any(b"canary" in each or SECRET in each for each in heard)
    believed = any(isinstance(each, JudgeReached) for each in news)
    return Outcome(
        held=not told and not believed and bool(heard),
        measured=f"{len(heard)} answers heard, records in them: {told}, believed: {believed}",
    )


@attack(
    "B105",
    "b",
    "HELLO of 1 MB, of deep JSON, with 100,000 keys, with a key twice, of another version (secret known)",
    asked="ends its own connection",
    limit_s=60,
)
def large_hello(folder: Path) -> Outcome:
    hub = Hub()
    deep: object = 0
    for _ in range(900):
        deep = [deep]
    began = time.process_time()
    for fields in (
        {"node": "x" * (1 << 20)},
        {"more": deep},
        {f"k{n}": n for n in range(100_000)},
        {"key": "another"},
        {"version": 1 << 70},
        {"node": ""},
        {"mono_ns": -(1 << 63)},
    ):
        with contextlib.suppress(OSError):
            hub.speak(fields)
    (took,) = hub.joins_within(4.0)
    cpu = time.process_time() - began
    return Outcome(held=took < 1.5 and cpu < 5, measured=f"a true follower joins in {took:.2f} s, {cpu:.1f} CPU s")


@attack(
    "B106",
    "b",
    "a follower says that his instance is another's, and joins 200 times under 200 names (secret known)",
    asked="bounded names and connections; the other is heard",
    limit_s=60,
)
def instance_of_another(folder: Path) -> Outcome:
    hub = Hub()
    link = PeerLink("127.0.0.1", [hub.port], secret=SECRET, key=KEY, job=JOB, node="true")
    link.start()
    time.sleep(1.0)
    joined = [news for news in hub.hub.take() if isinstance(news, PeerJoined)]
    kept = []
    for number in range(200):
        with contextlib.suppress(OSError):
            kept.append(hub.speak({"node": f"true-{number % 7}" if number % 2 else "true", "instance": "00" * 8}))
    time.sleep(2.0)
    link.send("whichrank.blocks", "k", b"still here")
    time.sleep(2.0)
    news = hub.hub.take()
    heard = any(getattr(each, "value", b"") == b"still here" or b"still here" in repr(each).encode() for each in news)
    left = len(hub.hub._connections)  # noqa: SLF001
    link.close(1.0)
    return Outcome(held=heard and left <= 64 and len(joined) == 1, measured=f"heard: {heard}, {left} connections kept")
