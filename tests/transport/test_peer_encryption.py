"""TLS between hub and link over real sockets: what is overheard, who is refused and with which words, what it costs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transport.cut_wire import CutWire
from tests.transport.peer_certificates import Authority
from tests.transport.test_peers import SECRET, Ends, until
from whichrank.transport.hub_news import PeerJoined
from whichrank.transport.peer_encryption import (
    JUDGE_IS_PLAIN,
    PLAIN_REFUSED,
    NoEncryption,
    PeerEncryption,
    encryption_by_certificates,
    encryption_by_secret,
)
from whichrank.transport.peer_frames import OTHER_SECRET, BrokenPeer, PeerFrame
from whichrank.transport.peer_link import JudgeReached, JudgeSaid, PeerLink


@pytest.fixture(scope="module")
def by_secret() -> PeerEncryption:
    return encryption_by_secret(SECRET)


@pytest.fixture
def ends(by_secret: PeerEncryption) -> Iterator[Ends]:
    made = Ends(encryption=by_secret)
    yield made
    for link in made.links:
        link.close(0.2)
    made.hub.close()


def reached(link: PeerLink) -> bool:
    return any(isinstance(news, JudgeReached) for news in link.take())


def test_an_eavesdropper_reads_no_record_and_no_name(ends: Ends) -> None:
    wire = CutWire(ends.port)
    link = PeerLink(
        "127.0.0.1", [wire.port], secret=SECRET, key="k", job="j", node="node-canary", encryption=ends.encryption
    )
    ends.links.append(link)
    link.start()
    bodies = [f"job-canary-{number}".encode() * 60_000 if number == 7 else b"job-canary" for number in range(20)]
    for number, body in enumerate(bodies):
        link.send("topic-canary", str(number), body)
    until(lambda: len(ends.messages()) == len(bodies))
    assert [message.value for message in ends.messages()] == bodies
    ends.hub.broadcast(PeerFrame.INCIDENT, json.dumps({"id": "incident-canary"}).encode())
    until(lambda: any(isinstance(news, JudgeSaid) for news in link.take()))
    assert len(wire.overheard) > 600_000
    assert b"canary" not in wire.overheard
    wire.close()


def test_the_secret_alone_makes_key_and_certificate(by_secret: PeerEncryption) -> None:
    assert encryption_by_secret(SECRET).certificate == by_secret.certificate
    assert encryption_by_secret(b"t" * 32).certificate != by_secret.certificate


def test_who_has_another_secret_is_told_so_and_told_nothing_else(ends: Ends) -> None:
    link = ends.link(encryption=encryption_by_secret(b"t" * 32))
    until(lambda: link.problem == OTHER_SECRET)
    assert ends.of(PeerJoined) == []


def test_a_plain_follower_gets_one_clear_line(ends: Ends) -> None:
    """Of a release that knows no TLS, or with peer_tls off."""
    link = ends.link(encryption=None)
    until(lambda: PLAIN_REFUSED in link.problem)
    assert ends.of(PeerJoined) == []


def test_a_plain_judge_is_told_nothing(by_secret: PeerEncryption) -> None:
    ends = Ends()
    wire = CutWire(ends.port)
    link = PeerLink("127.0.0.1", [wire.port], secret=SECRET, key="k", job="j", node="canary", encryption=by_secret)
    link.start()
    until(lambda: link.problem == JUDGE_IS_PLAIN)
    assert b"canary" not in wire.overheard
    assert ends.of(PeerJoined) == []
    link.close(0.2)
    ends.hub.close()
    wire.close()


def test_what_comes_in_pieces_of_any_size(by_secret: PeerEncryption) -> None:
    judge, follower = by_secret.judge_end(), by_secret.follower_end()
    said: list[bytes] = []
    _, out = follower.take(b"")
    while not (judge.ready and follower.ready):
        for byte in out:
            heard, answer = judge.take(bytes([byte]))
            said.append(answer)
        out = b"".join(said)
        said.clear()
        _, out = follower.take(out)
        judge.take(out)
        out = b""
    sealed = follower.seal(b"word" * 10_000)
    heard = b"".join(judge.take(sealed[at : at + 999])[0] for at in range(0, len(sealed), 999))
    assert heard == b"word" * 10_000
    with pytest.raises(BrokenPeer):
        judge.take(sealed)  # said again


def test_only_the_newest_tls_with_a_certificate_joins(ends: Ends) -> None:
    """No older version, and nobody without a certificate."""
    for version, certificate in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, False)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        assert certificate is (version is ssl.TLSVersion.TLSv1_2)
        with contextlib.suppress(ssl.SSLError, OSError), context.wrap_socket(ends.connect()) as client:
            client.settimeout(3.0)
            assert client.recv(1000) == b""
    link = ends.link()
    until(lambda: reached(link))


def test_handshakes_that_do_not_go_on_end_and_keep_nobody_out(ends: Ends, by_secret: PeerEncryption) -> None:
    _, hello = by_secret.follower_end().take(b"")
    waiting = [ends.connect() for _ in range(60)]
    for number, connection in enumerate(waiting):
        connection.sendall(hello[: 5 + number])
    began = time.monotonic()
    link = ends.link()
    until(lambda: reached(link))
    assert time.monotonic() - began < 5.0
    until(lambda: ends.hub.strangers >= 60, 15.0)
    for connection in waiting:
        connection.close()


def test_certificates_of_one_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    judge = encryption_by_certificates(*authority.issue("judge"), authority.file)
    ends = Ends(encryption=judge)
    good = ends.link(encryption=encryption_by_certificates(*authority.issue("n1"), authority.file))
    until(lambda: reached(good))
    other = Authority(tmp_path / "other")
    stranger = ends.link(encryption=encryption_by_certificates(*other.issue("n1"), authority.file))
    until(lambda: "peer_ca" in stranger.problem)
    # A certificate is not enough: it has to know the job's secret.
    thief = ends.link(
        node="thief", secret=b"x" * 32, encryption=encryption_by_certificates(*authority.issue("n2"), authority.file)
    )
    until(lambda: OTHER_SECRET in thief.problem)
    assert [news.node for news in ends.of(PeerJoined)] == ["n1"]
    for link in ends.links:
        link.close(0.2)
    ends.hub.close()


def test_another_holder_of_a_certificate_cannot_stand_in_between(tmp_path: Path) -> None:
    """It ends TLS on both sides and passes on what is said: the proofs are of another certificate."""
    authority = Authority(tmp_path)
    ends = Ends(encryption=encryption_by_certificates(*authority.issue("judge"), authority.file))
    between = encryption_by_certificates(*authority.issue("between"), authority.file)
    listener = socket.create_server(("127.0.0.1", 0))
    heard = bytearray()

    def pass_on(source: ssl.SSLSocket, target: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                heard.extend(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = between.judge.wrap_socket(listener.accept()[0], server_side=True)
                far = between.follower.wrap_socket(ends.connect())
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pass_on, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    follower = encryption_by_certificates(*authority.issue("n1"), authority.file)
    port = int(listener.getsockname()[1])
    link = PeerLink("127.0.0.1", [port], secret=SECRET, key="k", job="j", node="n1", encryption=follower)
    link.start()
    until(lambda: OTHER_SECRET in link.problem)
    assert heard, "it has stood in between"
    assert ends.of(PeerJoined) == []
    link.close(0.2)
    listener.close()
    ends.hub.close()


def test_files_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("a")
    _, other_key = authority.issue("b")
    no_pem = tmp_path / "none.pem"
    no_pem.write_text("no PEM")
    for files in (
        (certificate, other_key, authority.file),
        (no_pem, key, authority.file),
        (certificate, no_pem, authority.file),
        (certificate, key, no_pem),
        (tmp_path / "missing", key, authority.file),
        (certificate, key, tmp_path / "missing"),
    ):
        with pytest.raises(NoEncryption) as told:
            encryption_by_certificates(*files)
        assert "\n" not in str(told.value)
        assert str(tmp_path) in str(told.value)


def test_without_the_library_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(NoEncryption, match="pip install cryptography"):
        encryption_by_secret(os.urandom(32))
