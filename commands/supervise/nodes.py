"""Several nodes: what the judge knows of the others' commands, and what it says to their whichrank.

The judge decides, each node's whichrank ends and starts its own command. Nothing is started before all commands have
ended: a launcher that comes early would join the rendezvous of those that are just ending. Words go over the connection
of the run's instances, which is authenticated, and only from the judge; a node whose owner has not asked for restarts
there gets none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from ...telemetry.records import Event
from ...telemetry.vocabulary import EventName

#: Attribute of JOB_STARTED: this node's whichrank does what the judge says.
SUPERVISED = "supervised"
_MOST_TEXT = 2000


class Word(str, Enum):
    END = "end"
    START = "start"
    #: Nothing more will be started.
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """number: of the restart, from 1. incident, text: why, for the follower's own audit file."""

    word: Word
    number: int
    incident: str = ""
    text: str = ""


def write_order(order: Order) -> bytes:
    """The order as the body of an ORDER frame."""
    said = {"word": order.word.value, "number": order.number, "incident": order.incident, "text": order.text}
    return json.dumps(said).encode()


def read_order(body: bytes) -> Order | None:
    """The order in the body of a frame; None: it is none that this release knows."""
    try:
        said = json.loads(body)
        return Order(
            word=Word(said["word"]),
            number=int(said["number"]),
            incident=str(said.get("incident", ""))[:_MOST_TEXT],
            text=str(said.get("text", ""))[:_MOST_TEXT],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def least_nodes(command: Sequence[str], expected: int) -> int:
    """With how many nodes the command can go on: torchrun's MIN of ``--nnodes=MIN:MAX``, else with all."""
    for index, word in enumerate(command):
        name, given, value = word.partition("=")
        if PurePath(name).name in ("--nnodes", "--nnode"):
            value = value if given else "".join(command[index + 1 : index + 2])
            least, colon, _ = value.partition(":")
            return int(least) if colon and least.isdigit() else expected
    return expected


class Nodes:
    """The other nodes, as the judge hears of them."""

    def __init__(self, own: str, *, expected: int, least: int, send: Callable[[str, bytes], None]) -> None:
        """own: the judge's node. expected, least: nodes with it. send: takes a node and the body of a frame."""
        self.own, self._send = own, send
        self.expected, self.least = expected, least
        self._there: set[str] = set()
        self._supervised: set[str] = set()
        self._running: set[str] = set()

    def heard(self, event: Event) -> None:
        """Takes an event of the bus; those that say nothing of nodes' commands are passed over."""
        node = event.identity.node
        if not node or node == self.own:
            return
        if event.name is EventName.PEER_CONNECTED and event.attributes.get("role") == "follower":
            self._there.add(node)
        elif event.name is EventName.JOB_STARTED:
            self._there.add(node)
            self._running.add(node)
            if event.attributes.get(SUPERVISED):
                self._supervised.add(node)
        elif event.name is EventName.JOB_FINISHED:
            self._running.discard(node)
        elif event.name is EventName.PEER_LOST:
            self._there.discard(node)
            self._running.discard(node)

    @property
    def blind(self) -> list[str]:
        """Nodes that are there and whose whichrank would do nothing."""
        return sorted(self._there - self._supervised)

    @property
    def running(self) -> list[str]:
        """Nodes whose command runs."""
        return sorted(self._running)

    def count(self, without: Collection[str] = ()) -> int:
        """How many nodes there are, the judge's among them."""
        return 1 + len(self._there - set(without))

    def say(self, order: Order, but: Collection[str] = ()) -> None:
        """Says it to all nodes but some."""
        for node in sorted((self._there & self._supervised) - set(but)):
            self._send(node, write_order(order))

    def say_to(self, node: str, order: Order) -> None:
        """Says it to one node, if it is there."""
        if node in self._there & self._supervised:
            self._send(node, write_order(order))
