"""NCCL's RAS asked beside a rank: a played server with RAS's texts, and ones that hang, flood, lie, are another's."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.agents.conftest import RankProcess, Watched
from tests.diagnosis.test_nccl_ras import TROUBLE, WELL
from whichrank.agents.evidence import ras_client
from whichrank.agents.evidence.ras_client import MOST_BYTES, check_listener, ras_address, ras_attributes
from whichrank.diagnosis.ras_facts import read_ras_facts
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName

Answer = Callable[[socket.socket], None]


class PlayedRas:
    """Listens as RAS does; answers each question with ``answer``, which gets the connection."""

    def __init__(self, answer: Answer) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.asked: list[bytes] = []
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection, contextlib.suppress(OSError):
                    self.asked.append(connection.recv(1024))
                    self._answer(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # or the thread in ``accept`` goes on listening
        self.listener.close()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], PlayedRas]]:
    servers: list[PlayedRas] = []

    def make(answer: Answer) -> PlayedRas:
        servers.append(PlayedRas(answer))
        monkeypatch.setenv("NCCL_RAS_ADDR", f"localhost:{servers[-1].port}")
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def says(text: str) -> Answer:
    return lambda connection: connection.sendall(text.encode())


def request(number: int = 0) -> Event:
    attributes = {"id": f"hang/nccl_ras/{number}", "action": "nccl_ras", "rank": 0, "node": "node-a"}
    return Event(name=EventName.EVIDENCE_REQUEST, identity=Identity(job="job"), time_ns=0, attributes=attributes)


def test_what_ras_finds_is_told_once_and_it_is_asked_seldom(
    played: Any, start_rank: Callable[..., RankProcess], watch: Callable[..., Watched]
) -> None:
    server = played(says(TROUBLE))
    start_rank(0, 1)
    watched = watch(requests_per_minute=5)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    for number in (0, 0, 1):
        watched.agent.request(request(number))
    watched.run_until(lambda: watched.events(EventName.NCCL_RAS))
    watched.run_for(0.5)
    (event,) = watched.events(EventName.NCCL_RAS)
    assert (event.attributes["status"], event.attributes["request_id"]) == ("answered", "hang/nccl_ras/0")
    found = read_ras_facts(event.attributes["findings"])
    behind = next(one for one in found if one.problem.value == "MISMATCH")
    assert (behind.ranks, behind.size, behind.processes[0].pid) == ((3,), 15, 88120)
    assert server.asked == [b"verbose status\n"]
    assert watched.agent.health.drops["requests_refused"] == 1


def asked(monkeypatch: pytest.MonkeyPatch, server: PlayedRas, answer_s: float = 1.0) -> dict[str, str]:
    """Beside a process of our own that was given the server's address."""
    monkeypatch.setattr(
        ras_client, "read_environment", lambda pid, wanted: {"NCCL_RAS_ADDR": f"localhost:{server.port}"}
    )
    return ras_attributes(os.getpid(), os.getuid(), answer_s)


def drip(connection: socket.socket) -> None:
    while True:
        connection.sendall(b".")
        time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    ("answer", "status", "problem"),
    [
        (says(WELL), "answered", ""),
        (says(""), "refused", "no status"),
        (lambda connection: time.sleep(30), "silent", ""),
        (drip, "silent", "time"),
        (flood, "refused", f"more than {MOST_BYTES} bytes"),
        (says("HTTP/1.1 400 Bad Request\r\n"), "refused", "no status"),
        (says('{"communicators": [' + "[" * 100_000), "refused", "JSON"),
    ],
    ids=["well", "empty", "hangs", "drips", "floods", "another protocol", "nested"],
)
def test_a_server_that_is_none_does_no_harm(
    played: Any, monkeypatch: pytest.MonkeyPatch, answer: Answer, status: str, problem: str
) -> None:
    begun_s = time.monotonic()
    told = asked(monkeypatch, played(answer))
    assert time.monotonic() - begun_s < 5.0
    assert told["status"] == status, told
    assert problem in told.get("problem", "")


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"NCCL_RAS_ADDR": "10.0.0.1:28028"}, "loopback"),
        ({"NCCL_RAS_ADDR": "metadata.internal:80"}, "loopback"),
        ({"NCCL_RAS_ADDR": "localhost"}, "no port"),
        ({"NCCL_RAS_ADDR": "localhost:99999"}, "no port"),
        ({"NCCL_RAS_ADDR": "localhost:-1"}, "no port"),
        ({"NCCL_RAS_ENABLE": "0"}, "is 0"),
    ],
)
def test_a_user_cannot_send_the_agent_elsewhere(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], problem: str
) -> None:
    monkeypatch.setattr(ras_client, "read_environment", lambda pid, wanted: environment)
    told = ras_attributes(os.getpid(), os.getuid())
    assert told["status"] == "refused"
    assert problem in told["problem"]


def test_the_address_is_the_usual_one_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for environment in ({}, {"NCCL_RAS_ADDR": ""}):
        monkeypatch.setattr(ras_client, "read_environment", lambda pid, wanted, given=environment: given)
        address = ras_address(os.getpid(), os.getuid())
        assert (address.host, address.port) == ("localhost", 28028)
    with pytest.raises(OSError, match="not of uid"):
        ras_address(os.getpid(), os.getuid() + 1)


def test_a_port_of_another_user_is_not_asked(played: Any) -> None:
    server = played(says(WELL))
    check_listener(os.getpid(), os.getuid(), server.port)
    with pytest.raises(OSError, match="is not of uid"):
        check_listener(os.getpid(), os.getuid() + 1, server.port)
    server.close()
    with pytest.raises(ConnectionRefusedError, match="nobody listens"):
        check_listener(os.getpid(), os.getuid(), server.port)
