"""What several instances of one job do for each other in each turn: the judge takes in, followers send and show.

Runs in the watching thread, between the agent's look and the operators' turn. News of the connections become events on
the bus, so that what follows from them is in the capture and a replay concludes the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Protocol

from ...telemetry.carried import OF_PEERS
from ...telemetry.otlp import decode_logs, encode_payloads
from ...telemetry.records import Event, Incident
from ...telemetry.topics import TOPIC_METRICS
from ...telemetry.vocabulary import EventName
from ...transport.bus import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_REQUESTS
from ...transport.hub_news import PeerClock, PeerJoined, PeerLost
from ...transport.peer_frames import PeerFrame, PeerMessage
from ...transport.peer_hub import PeerHub
from ...transport.peer_link import JudgeLost, JudgeReached, JudgeSaid, PeerLink
from .peer_plan import InstanceRole
from .peer_setup import PeerSetup

#: What a follower may put on the judge's bus.
FOLLOWERS_TOPICS = frozenset({TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS})
#: A judge that is out of reach for so long is told of.
REACH_S = 10.0
#: The judge's own command has ended: others end in the same moment, or have a reason to go on.
OTHERS_END_S = 5.0
GOODBYE_S = 3.0
#: At the start: time for the judge to say what this node is called.
FIRST_WORD_S = 0.5


class Bench(Protocol):
    """What ``Peers`` call on the watch of this node: its bus, its display and its agent."""

    def append(self, topic: str, key: str, value: bytes) -> None:
        """Puts a message of another node on this bus."""
        ...

    def tell_of(self, node: str, name: EventName, **attributes: str | int) -> None:
        """Puts an event about another node on this bus."""
        ...

    def show(self, incident: Incident) -> None:
        """Shows an incident that another node's instance concluded."""
        ...

    def request(self, event: Event) -> None:
        """Hands a request for evidence to this node's agent."""
        ...

    def rename(self, node: str) -> None:
        """Goes on under this name, as the judge knows another node of the old one."""

    def announce(self) -> None:
        """Publishes again which ranks run on this node: a judge that has just come has not heard it."""
        ...


class Peers(Protocol):
    def turn(self, bench: Bench) -> None:
        """Take in what the other nodes have sent. Never blocks."""

    def published(self, topic: str, key: str, value: bytes) -> None:
        """Takes what this node's own agent has published."""
        ...

    def concluded(self, incident: Incident) -> None:
        """Takes a revision that this instance has published."""

    def request(self, event: Event) -> bool:
        """Passes a request on if it is another node's; whether it was."""
        ...

    def may_end(self) -> bool:
        """Whether nobody is worth waiting for, once this node's command has ended."""
        ...

    def leave(self, bench: Bench) -> None:
        """Tells that this node goes, whoever is still there."""
        ...

    def is_partial(self) -> bool:
        """Whether nodes of the job are missing here that this instance would judge."""
        ...

    def close(self) -> None:
        """Says goodbye and hangs up; waits a little for what is on its way."""

    def abandon(self) -> None:
        """Hangs up without a goodbye: this instance watches no more, and the others must not believe that it does."""
        ...

    @property
    def losses(self) -> dict[str, int]:
        """Counts of what was lost between the nodes, by reason."""
        ...

    @property
    def several(self) -> bool:
        """Whether the job has other nodes."""
        ...


class NoPeers:
    """A job on one machine."""

    several = False
    losses: dict[str, int] = {}  # noqa: RUF012  # never written

    def turn(self, bench: Bench) -> None:
        """Does nothing: nobody sends anything."""

    def published(self, topic: str, key: str, value: bytes) -> None:
        """Does nothing: nobody is told."""

    def concluded(self, incident: Incident) -> None:
        """Does nothing: nobody is shown it."""

    def request(self, event: Event) -> bool:
        """Always False: every rank is here."""
        return False

    def may_end(self) -> bool:
        """Always True: there is nobody to wait for."""
        return True

    def leave(self, bench: Bench) -> None:
        """Does nothing: nobody stays behind."""

    def is_partial(self) -> bool:
        """Always False: all ranks are on this machine."""
        return False

    def close(self) -> None:
        """Does nothing: no connection is open."""

    def abandon(self) -> None:
        """Does nothing: nobody relies on this instance."""


class JudgePeers:
    several = True

    def __init__(self, setup: PeerSetup, job: str, say: Callable[[str], None]) -> None:
        """The setup's listener is there, and ours from here on."""
        assert setup.listener is not None
        self._say = say
        self._nodes_expected = setup.plan.nodes
        port = setup.listener.getsockname()[1]
        self._node = setup.node
        self._hub = PeerHub(
            setup.listener,
            secret=setup.secret,
            key=setup.plan.key,
            job=job,
            node=setup.node,
            encryption=setup.encryption,
        )
        self._there: set[str] = set()
        self._foreign = 0  # messages on topics that are not followers'
        self._hub.start()
        say(f"{setup.plan.why}: judges here, port {port}, {setup.how}")

    def turn(self, bench: Bench) -> None:
        """Puts followers' messages on the bus; who comes, goes or falls silent becomes an event there."""
        for news in self._hub.take():
            if isinstance(news, PeerMessage):
                if news.topic in FOLLOWERS_TOPICS and not _tells_of_peers(news):
                    bench.append(news.topic, news.key, news.value)
                else:
                    self._foreign += 1
            elif isinstance(news, PeerJoined):
                self._there.add(news.node)
                bench.tell_of(news.node, EventName.PEER_CONNECTED, role="follower", offset_ns=news.offset_ns)
                self._say(f"{news.node} sends here; {len(self._there) + 1} of {self._nodes_expected} nodes seen")
            elif isinstance(news, PeerClock):
                bench.tell_of(news.node, EventName.PEER_CLOCK, offset_ns=news.offset_ns)
            elif isinstance(news, PeerLost):
                self._there.discard(news.node)
                bench.tell_of(news.node, EventName.PEER_LOST, role="follower", why=news.why, silent_ns=news.silent_ns)
                if news.why != "left":
                    how = f"silent for {news.silent_ns / 1e9:.1f} s" if news.why == "silent" else "gone without a word"
                    self._say(f"whichrank on {news.node} is {how}; its ranks are not visible")

    def published(self, topic: str, key: str, value: bytes) -> None:
        """Does nothing: what this node publishes is judged here."""

    def concluded(self, incident: Incident) -> None:
        """Sends every follower the incident's document, to be shown there."""
        self._hub.broadcast(PeerFrame.INCIDENT, json.dumps(incident.document).encode())

    def request(self, event: Event) -> bool:
        """Passes a request on to its node, which gives True.

        Without a node it goes to all of them, and False is given: this node's agent looks as well.
        """
        node = str(event.attributes.get("node", ""))
        if node == self._node:
            return False
        for there in (node,) if node else sorted(self._there):  # without a node: for whoever has that rank
            self._hub.send(there, PeerFrame.REQUEST, encode_payloads([event]))
        return bool(node)

    def order(self, node: str, body: bytes) -> None:
        """Says to a node what is to become of its command. Only to one that has said that it takes that."""
        self._hub.send(node, PeerFrame.ORDER, body)

    def may_end(self) -> bool:
        """Whether the last follower has left."""
        return not self._there

    def is_partial(self) -> bool:
        """Whether fewer nodes are connected than the job has."""
        return len(self._there) + 1 < self._nodes_expected

    def leave(self, bench: Bench) -> None:
        """Puts on the bus that all followers have left: as far as this capture goes, they have.

        Without a judge they judge for themselves.
        """
        for node in sorted(self._there):
            bench.tell_of(node, EventName.PEER_LOST, role="follower", why="left", silent_ns=0)

    def close(self) -> None:
        """Hangs up with a goodbye: followers need not wait for the time-out."""
        self._hub.close()

    def abandon(self) -> None:
        """Hangs up without a goodbye: followers judge for themselves from now on."""
        self._hub.close(goodbye=False)

    @property
    def losses(self) -> dict[str, int]:
        """Counts of messages that never came, words that could not be passed on, and who had no business here."""
        return {
            "never_received": self._hub.missing,
            "incidents_not_passed_on": self._hub.unsent,
            "strangers": self._hub.strangers,
            "foreign_messages": self._foreign,
        }


class FollowerPeers:
    several = True

    def __init__(self, setup: PeerSetup, job: str, say: Callable[[str], None]) -> None:
        self._say = say
        self._plan = setup.plan
        self._node = setup.node
        self._link = PeerLink(
            setup.plan.host,
            setup.plan.ports,
            secret=setup.secret,
            key=setup.plan.key,
            job=job,
            node=setup.node,
            encryption=setup.encryption,
        )
        self._how = setup.how
        self._connected = False
        self._reached_once = False
        self._out_of_reach_since: float | None = time.monotonic()
        #: Takes what the judge says of this node's command; None: nobody has asked for that.
        self.on_order: Callable[[bytes], None] | None = None
        self._first: list[JudgeReached | JudgeLost | JudgeSaid] = []
        self._link.start()
        deadline = time.monotonic() + FIRST_WORD_S
        while not self._first and time.monotonic() < deadline:
            time.sleep(0.01)
            self._first = self._link.take()

    @property
    def node(self) -> str:
        """What this node is called, as far as the judge has said by now."""
        return next((news.node for news in self._first if isinstance(news, JudgeReached)), self._node)

    def turn(self, bench: Bench) -> None:
        """Shows what the judge concluded, passes on what it asks for, and says once when it is out of reach."""
        first, self._first = self._first, []
        for news in (*first, *self._link.take()):
            if isinstance(news, JudgeReached):
                self._reach(news, bench)
            elif isinstance(news, JudgeLost):
                self._lose(news, bench)
            elif news.kind is PeerFrame.INCIDENT:
                incident = _incident(news.body)
                if incident is not None:
                    bench.show(incident)
            elif news.kind is PeerFrame.ORDER:
                if self.on_order is not None:
                    self.on_order(news.body)
            else:
                for payload in decode_logs(TOPIC_REQUESTS, news.body):
                    if isinstance(payload, Event) and payload.name is EventName.EVIDENCE_REQUEST:
                        bench.request(payload)
        since = self._out_of_reach_since
        if since is not None and time.monotonic() - since > REACH_S:
            self._out_of_reach_since = None
            self._say(
                f"{self._plan.why}, but its whichrank is out of reach ({self._plan.address}: {self._link.problem}); "
                "only the ranks of this node are visible and judged here"
            )

    def _reach(self, news: JudgeReached, bench: Bench) -> None:
        if news.node != self._node:
            self._say(f"another node has the name {self._node}: this one is called {news.node}")
            self._node = news.node
            bench.rename(news.node)
        self._say(f"this job is judged on {news.judge} ({self._plan.address}, {self._how}), incidents are kept there")
        bench.tell_of(news.judge, EventName.PEER_CONNECTED, role="judge")
        if self._reached_once or news.dropped:
            bench.announce()
        self._connected, self._reached_once, self._out_of_reach_since = True, True, None

    def _lose(self, news: JudgeLost, bench: Bench) -> None:
        self._connected = False
        bench.tell_of(news.judge, EventName.PEER_LOST, role="judge", why=news.why)
        if news.why != "left":
            bench.announce()  # for the operators here, which judge from now on
            self._say(
                f"whichrank on {news.judge}, which judged this job, is {_HOW[news.why]}; "
                "only the ranks of this node are visible and judged here"
            )

    def published(self, topic: str, key: str, value: bytes) -> None:
        """Sends the message to the judge; it is kept until that has confirmed it."""
        self._link.send(topic, key, value)

    def concluded(self, incident: Incident) -> None:
        """Does nothing: what is judged here without the judge stays here."""

    def request(self, event: Event) -> bool:
        """Always False: a follower asks no other node."""
        return False

    def may_end(self) -> bool:
        """Always True: the judge goes on without this node."""
        return True

    def leave(self, bench: Bench) -> None:
        """Does nothing: the goodbye of ``close`` says it."""

    def is_partial(self) -> bool:
        """Whether the judge is not connected: then only this node's ranks are seen."""
        return not self._connected

    def close(self) -> None:
        """Says goodbye, and waits some seconds for the judge to confirm what it was sent."""
        self._link.close(GOODBYE_S if self._connected else 0.1)

    def abandon(self) -> None:
        """Hangs up at once, without a goodbye."""
        self._link.abandon()

    @property
    def losses(self) -> dict[str, int]:
        """The count of messages that the judge never had, or has never confirmed."""
        return {"never_sent": self._link.dropped + (self._link.unacknowledged if self._reached_once else 0)}


_HOW = {"closed": "gone without a word", "silent": "silent"}


def join_peers(setup: PeerSetup, job: str, say: Callable[[str], None]) -> NoPeers | JudgePeers | FollowerPeers:
    """Starts talking to the other nodes' instances, as judge or follower; NoPeers where there are none."""
    if setup.role is InstanceRole.FOLLOWER:
        return FollowerPeers(setup, job, say)
    if setup.role is InstanceRole.JUDGE and setup.listener is not None:
        return JudgePeers(setup, job, say)
    return NoPeers()


def _tells_of_peers(message: PeerMessage) -> bool:
    """Whether a follower says who is connected here, which is the judge's to say."""
    if b"whichrank.peer." not in message.value:
        return False
    payloads = decode_logs(message.topic, message.value)
    return any(isinstance(payload, Event) and payload.name in OF_PEERS for payload in payloads)


def _incident(body: bytes) -> Incident | None:
    """What the judge says is shown only if it is an incident."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return Incident(document=document) if isinstance(document, dict) and {"id", "kind"} <= document.keys() else None
