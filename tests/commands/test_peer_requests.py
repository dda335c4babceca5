"""Requests for evidence among the instances of one job: to the node they name, or to whoever has the rank."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from whichrank.commands.multi_node.peer_plan import InstanceRole, PeerPlan
from whichrank.commands.multi_node.peer_setup import PeerSetup
from whichrank.commands.multi_node.peers import FollowerPeers, JudgePeers
from whichrank.telemetry.records import Event, Identity, Incident
from whichrank.telemetry.vocabulary import EventName


class Bench:
    """An instance that only remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[str] = []

    def append(self, topic: str, key: str, value: bytes) -> None: ...
    def tell_of(self, node: str, name: EventName, **attributes: str | int) -> None:
        self.told.append(node)

    def show(self, incident: Incident) -> None: ...
    def request(self, event: Event) -> None:
        self.asked.append(str(event.attributes["id"]))

    def rename(self, node: str) -> None: ...
    def announce(self) -> None: ...


@pytest.fixture
def peers() -> Iterator[tuple[JudgePeers, list[FollowerPeers]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def setup(role: InstanceRole, node: str) -> PeerSetup:
        plan = PeerPlan(role=role, why="test", host="127.0.0.1", ports=(port,), key="k", nodes=3)
        return PeerSetup(
            plan=plan, secret=b"s", node=node, job="job", listener=listener if role is InstanceRole.JUDGE else None
        )

    judge = JudgePeers(setup(InstanceRole.JUDGE, "n0"), "job", lambda line: None)
    followers = [FollowerPeers(setup(InstanceRole.FOLLOWER, node), "job", lambda line: None) for node in ("n1", "n2")]
    yield judge, followers
    for follower in followers:
        follower.close()
    judge.close()


def wish(id_: str, node: str) -> Event:
    attributes = {"id": id_, "action": "history", "rank": 5, "node": node}
    return Event(name=EventName.EVIDENCE_REQUEST, identity=Identity(job="job"), time_ns=0, attributes=attributes)


def test_a_request_goes_to_its_node_and_without_one_to_all(
    peers: tuple[JudgePeers, list[FollowerPeers]],
) -> None:
    judge, followers = peers
    own, others = Bench(), [Bench(), Bench()]

    def until(condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline_s
            judge.turn(own)
            for follower, bench in zip(followers, others, strict=True):
                follower.turn(bench)
            time.sleep(0.02)

    until(lambda: {"n1", "n2"} <= set(own.told))
    assert judge.request(wish("to n2", "n2")), "another node's"
    assert not judge.request(wish("to the judge", "n0")), "our own"
    assert not judge.request(wish("to whoever", "")), "ours as well"
    until(lambda: [len(bench.asked) for bench in others] == [1, 2])
    assert [bench.asked for bench in others] == [["to whoever"], ["to n2", "to whoever"]]
    assert own.asked == []
