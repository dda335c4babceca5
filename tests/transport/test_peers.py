"""Hub and link over real sockets: nothing lost, nothing twice, and nobody who is none of the job's can do harm."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.cut_wire import CutWire
from whichrank.transport import peer_hub
from whichrank.transport.hub_news import HubNews, PeerClock, PeerJoined, PeerLost
from whichrank.transport.peer_encryption import PeerEncryption
from whichrank.transport.peer_followers import Follower, FollowerClock
from whichrank.transport.peer_frames import (
    MAX_HELLO_BYTES,
    BrokenPeer,
    PeerFrame,
    PeerMessage,
    Unframer,
    pack_frame,
    pack_message,
    pack_ping,
    pack_proof,
    unpack_fields,
    unpack_message,
    unpack_ping,
    unpack_proof,
)
from whichrank.transport.peer_hub import PeerHub
from whichrank.transport.peer_link import JudgeLost, JudgeReached, JudgeSaid, PeerLink
from whichrank.transport.peer_listener import listen

SECRET = b"s" * 32


def until(done: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "did not come"
        time.sleep(0.01)


class Ends:
    """A judge on a port of the kernel's choice, and followers of it."""

    def __init__(self, family: int = socket.AF_INET, encryption: PeerEncryption | None = None) -> None:
        self.encryption = encryption
        self.links: list[PeerLink] = []
        self.news: list[HubNews] = []
        self.address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self.port = 0
        self.hub = self.open()

    def open(self) -> PeerHub:
        listener = socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.address, self.port))
        listener.listen()
        self.port = listener.getsockname()[1]
        self.hub = PeerHub(listener, secret=SECRET, key="k", job="j", node="n0", encryption=self.encryption)
        self.hub.start()
        return self.hub

    def link(
        self, *, node: str = "n1", secret: bytes = SECRET, key: str = "k", job: str = "j", **more: Any
    ) -> PeerLink:
        more = {"encryption": self.encryption, **more}
        link = PeerLink(self.address, [self.port], secret=secret, key=key, job=job, node=node, **more)
        link.start()
        self.links.append(link)
        return link

    def messages(self) -> list[PeerMessage]:
        self.news += self.hub.take()
        return [item for item in self.news if isinstance(item, PeerMessage)]

    def of(self, kind: type) -> list[Any]:
        self.messages()
        return [item for item in self.news if isinstance(item, kind)]

    def connect(self) -> socket.socket:
        return socket.create_connection((self.address, self.port), timeout=5.0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    for link in made.links:
        link.close(0.2)
    made.hub.close()


def test_what_a_follower_sends_arrives_once_and_in_order(ends: Ends) -> None:
    link = ends.link()
    for number in range(500):
        link.send("t", f"key {number}", os.urandom(number))
    until(lambda: len(ends.messages()) == 500)
    assert [message.key for message in ends.messages()] == [f"key {number}" for number in range(500)]
    (joined,) = ends.of(PeerJoined)
    assert joined.node == "n1"
    assert abs(joined.offset_ns - (time.time_ns() - time.monotonic_ns())) < 1_000_000_000
    until(lambda: link.unacknowledged == 0)


def test_over_ipv6() -> None:
    try:
        ends = Ends(socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    link = ends.link()
    link.send("t", "k", b"v")
    until(lambda: len(ends.messages()) == 1)
    link.close(2.0)
    ends.hub.close()


def test_both_kinds_of_address_reach_one_listener() -> None:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said: list[str] = []
    listener = listen([port], said.append)
    assert listener is not None
    assert said == []
    socket.create_connection(("127.0.0.1", port), timeout=5.0).close()
    second = listen([port, port + 1], said.append)
    assert second is not None
    assert second.getsockname()[1] == port + 1
    assert listen([port], said.append) is None
    assert "judge for themselves" in said[0]
    listener.close()
    second.close()


def test_the_judge_talks_to_all_or_to_one(ends: Ends) -> None:
    one, two = ends.link(node="a"), ends.link(node="b")
    until(lambda: len(ends.of(PeerJoined)) == 2)
    ends.hub.broadcast(PeerFrame.INCIDENT, b"for all")
    ends.hub.send("b", PeerFrame.REQUEST, b"for b")
    ends.hub.send("b", PeerFrame.ORDER, b"and more")
    heard: dict[PeerLink, list[bytes]] = {one: [], two: []}

    def listened() -> bool:
        for link, bodies in heard.items():
            bodies += [news.body for news in link.take() if isinstance(news, JudgeSaid)]
        return heard == {one: [b"for all"], two: [b"for all", b"for b", b"and more"]}

    until(listened)


def test_two_of_one_name_are_told_apart(ends: Ends) -> None:
    links = [ends.link(node="ubuntu"), ends.link(node="ubuntu"), ends.link(node="n0")]
    until(lambda: len(ends.of(PeerJoined)) == 3)
    assert sorted(joined.node for joined in ends.of(PeerJoined)) == ["n0~2", "ubuntu", "ubuntu~2"]
    names: list[str] = []

    def named() -> bool:
        for link in links:
            names.extend(news.node for news in link.take() if isinstance(news, JudgeReached))
        return sorted(names) == ["n0~2", "ubuntu", "ubuntu~2"]

    until(named)


def test_a_lost_connection_costs_nothing(ends: Ends) -> None:
    """Cut in the middle of messages, again and again: everything comes once, in order."""
    wire = CutWire(ends.port)
    link = PeerLink("127.0.0.1", [wire.port], secret=SECRET, key="k", job="j", node="n1")
    link.start()
    ends.links.append(link)
    sent = 0
    for _ in range(5):
        for _ in range(40):
            link.send("t", str(sent), os.urandom(2000))
            sent += 1
        time.sleep(0.05)
        wire.cut()
    until(lambda: len(ends.messages()) >= sent, 20.0)
    assert [message.key for message in ends.messages()] == [str(number) for number in range(sent)]
    assert {lost.why for lost in ends.of(PeerLost)} <= {"closed"}
    assert ends.hub.missing == 0
    assert link.dropped == 0


def test_what_must_be_dropped_is_counted_on_both_sides() -> None:
    ends = Ends()
    link = PeerLink("127.0.0.1", [ends.port], secret=SECRET, key="k", job="j", node="n1", kept_bytes=10_000)
    for number in range(100):  # not started: the judge is out of reach
        link.send("t", str(number), bytes(1000))
    assert link.dropped > 80
    link.start()
    left = 100 - link.dropped
    until(lambda: len(ends.messages()) == left)
    assert [message.key for message in ends.messages()] == [str(number) for number in range(100 - left, 100)]
    assert ends.hub.missing == link.dropped
    link.close(2.0)
    ends.hub.close()


def test_a_goodbye_is_no_loss(ends: Ends) -> None:
    link = ends.link()
    link.send("t", "last", b"word")
    link.close(5.0)
    until(lambda: bool(ends.of(PeerLost)))
    assert [item.why for item in ends.of(PeerLost)] == ["left"]
    assert [message.key for message in ends.messages()] == ["last"]


def test_the_judges_goodbye_is_heard(ends: Ends) -> None:
    link = ends.link()
    until(lambda: bool(ends.of(PeerJoined)))
    for _ in range(50):
        link.send("t", "k", bytes(50_000))
    ends.hub.close()
    news: list[Any] = []

    def lost() -> bool:
        news.extend(link.take())
        return any(isinstance(item, JudgeLost) for item in news)

    until(lost)
    assert [item.why for item in news if isinstance(item, JudgeLost)] == ["left"]


def test_a_judge_that_comes_back_is_found_again(ends: Ends) -> None:
    link = ends.link()
    until(lambda: bool(ends.of(PeerJoined)))
    ends.hub.close()
    ends.open()
    link.send("t", "after", b"")
    until(lambda: any(message.key == "after" for message in ends.messages()), 15.0)


def test_a_judge_that_watches_no_more_says_no_goodbye(ends: Ends) -> None:
    """Its followers must judge for themselves, as if it had been killed."""
    link = ends.link()
    until(lambda: bool(ends.of(PeerJoined)))
    ends.hub.close(goodbye=False)
    news: list[Any] = []

    def lost() -> bool:
        news.extend(link.take())
        return any(isinstance(item, JudgeLost) for item in news)

    until(lost)
    assert [item.why for item in news if isinstance(item, JudgeLost)] == ["closed"]


def test_a_follower_that_watches_no_more_says_no_goodbye(ends: Ends) -> None:
    link = ends.link()
    until(lambda: bool(ends.of(PeerJoined)))
    link.abandon()
    until(lambda: bool(ends.of(PeerLost)))
    assert [item.why for item in ends.of(PeerLost)] == ["closed"]


def test_nobody_notices_that_the_judges_clock_was_set(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ends.link()
    until(lambda: bool(ends.of(PeerJoined)))
    really = time.time_ns
    for step_ns in (-5_000_000_000, 60_000_000_000):
        monkeypatch.setattr(time, "time_ns", lambda step_ns=step_ns: really() + step_ns)
        time.sleep(0.8)  # a ping or two
    assert ends.of(PeerClock) == []


def test_silence_is_told_and_ends_with_the_first_byte(ends: Ends) -> None:
    """A follower that proves who it is and then says nothing, as one whose cable was pulled."""
    peer = ends.connect()
    nonce = _challenge(peer)
    hello = {"key": "k", "job": "j", "node": "n1", "instance": "i", "nonce": "00" * 32, "mono_ns": 1}
    peer.sendall(pack_frame(PeerFrame.HELLO, pack_proof(SECRET, "follower", nonce, hello)))
    began = time.monotonic()
    until(lambda: bool(ends.of(PeerLost)), 6.0)
    (lost,) = ends.of(PeerLost)
    assert lost.why == "silent"
    assert 2.4e9 < lost.silent_ns < 4e9
    assert time.monotonic() - began < 4.0
    peer.sendall(pack_frame(PeerFrame.PING, pack_ping(1, 0)))
    until(lambda: len(ends.of(PeerJoined)) == 2)
    peer.close()


@pytest.mark.parametrize("wrong", [{"secret": b"x" * 32}, {"key": "other"}, {"job": "other"}])
def test_another_jobs_follower_is_refused_and_told_so(ends: Ends, wrong: dict[str, Any]) -> None:
    link = ends.link(**wrong)
    until(lambda: "refuses" in link.problem)
    assert ends.of(PeerJoined) == []
    assert ("job j here, other there" if "job" in wrong else "another") in link.problem


def test_a_hello_overheard_cannot_be_said_again(ends: Ends) -> None:
    first, second = ends.connect(), ends.connect()
    hello = {"key": "k", "job": "j", "node": "n1", "instance": "i", "nonce": "00" * 32, "mono_ns": 1}
    overheard = pack_frame(PeerFrame.HELLO, pack_proof(SECRET, "follower", _challenge(first), hello))
    _challenge(second)
    second.sendall(overheard)
    assert _next(second)[0] is PeerFrame.REFUSED
    first.close()
    second.close()


def test_a_link_that_finds_something_else_goes_on_looking() -> None:
    """On the port sits a service of another kind: it is left alone, and the judge is found on the next one."""
    other = socket.create_server(("127.0.0.1", 0))
    ends = Ends()
    ports = [other.getsockname()[1], ends.port]
    link = PeerLink("127.0.0.1", ports, secret=SECRET, key="k", job="j", node="n1")
    link.start()
    accepted, _ = other.accept()
    accepted.sendall(b"220 mail.example ESMTP\r\n")
    until(lambda: bool(ends.of(PeerJoined)))
    accepted.close()
    other.close()
    link.close(2.0)
    ends.hub.close()


def test_noise_ends_nothing_but_its_own_connection(ends: Ends) -> None:
    """Random bytes, before and after a right hello, while a real follower goes on."""
    link = ends.link()
    drawn = random.Random(7)
    for number in range(60):
        with contextlib.suppress(OSError):
            peer = ends.connect()
            nonce = _challenge(peer)
            if number % 2:
                hello = {"key": "k", "job": "j", "node": "x", "instance": f"{number}", "nonce": "00" * 32, "mono_ns": 1}
                peer.sendall(pack_frame(PeerFrame.HELLO, pack_proof(SECRET, "follower", nonce, hello)))
            kind = drawn.choice([*PeerFrame, 0, 77])
            noise = [
                drawn.randbytes(drawn.randrange(1, 3000)),
                struct.pack("!IB", drawn.randrange(1 << 32), kind) + drawn.randbytes(100),
                pack_frame(PeerFrame(kind), drawn.randbytes(50)) if kind in set(PeerFrame) else b"\0",
            ]
            peer.sendall(drawn.choice(noise))
            peer.close()
        link.send("t", str(number), b"")
    until(lambda: sum(message.topic == "t" for message in ends.messages()) == 60)
    assert ends.hub.strangers > 0


def test_who_says_nothing_cannot_keep_others_out(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_hub, "HELLO_S", 0.5)
    crowd = [ends.connect() for _ in range(100)]
    ends.link()
    until(lambda: bool(ends.of(PeerJoined)), 12.0)
    assert ends.hub.strangers >= 68
    for peer in crowd:
        peer.close()


# --- frames -----------------------------------------------------------------------------------------------------------
@given(st.lists(st.tuples(st.sampled_from(list(PeerFrame)), st.binary(max_size=300)), max_size=8), st.data())
def test_frames_survive_any_cutting(frames: list[tuple[PeerFrame, bytes]], data: st.DataObject) -> None:
    stream = b"".join(pack_frame(kind, body) for kind, body in frames)
    unframer, found = Unframer(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        unframer.feed(stream[:cut])
        stream = stream[cut:]
        while (frame := unframer.next()) is not None:
            found.append(frame)
    assert found == frames


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_break_the_peer(noise: bytes) -> None:
    unframer = Unframer()
    unframer.feed(noise)
    with contextlib.suppress(BrokenPeer):
        while unframer.next() is not None:
            pass
    for read in (unpack_message, unpack_ping, unpack_fields, lambda body: unpack_proof(SECRET, "judge", b"", body)):
        with contextlib.suppress(BrokenPeer):
            read(noise)


def test_a_frame_beyond_the_bound_is_refused_at_its_header() -> None:
    unframer = Unframer()
    unframer.feed(struct.pack("!IB", MAX_HELLO_BYTES + 1, PeerFrame.HELLO))
    with pytest.raises(BrokenPeer, match="a frame of"):
        unframer.next()


@given(st.integers(0, 1 << 60), st.text(max_size=20), st.text(max_size=40), st.binary(max_size=100))
def test_messages_survive_the_wire(number: int, topic: str, key: str, value: bytes) -> None:
    message = PeerMessage(number=number, topic=topic, key=key, value=value)
    assert unpack_message(pack_message(message)) == message


def _challenge(peer: socket.socket) -> bytes:
    kind, body = _next(peer)
    assert kind is PeerFrame.CHALLENGE
    return body[1:]


def _next(peer: socket.socket) -> tuple[PeerFrame, bytes]:
    unframer = Unframer(1 << 20)
    while (frame := unframer.next()) is None:
        data = peer.recv(1)
        assert data
        unframer.feed(data)
    return frame[0], frame[1]


def test_a_clock_follows_its_least_delayed_pings() -> None:
    clock = FollowerClock()
    clock.start(1_000_000_000)
    assert not clock.compare(1_005_000_000)  # delayed
    assert not clock.compare(990_000_000)  # better, and no news
    assert clock.compare(970_000_000)
    assert clock.told_ns == 970_000_000
    assert sum(clock.compare(1_000_000_000) for _ in range(100)) == 1  # it stays: followed slowly, told once
    assert clock.compare(clock.told_ns + 5_000_000_000)  # that node was suspended
    assert clock.told_ns - 1_000_000_000 > 4_900_000_000


def test_messages_that_come_again_or_never_are_counted_once() -> None:
    follower = Follower(node="node-b")
    assert [follower.takes(number) for number in (1, 2, 2, 1, 5, 4)] == [True, True, False, False, True, False]
    assert follower.missing == 2
