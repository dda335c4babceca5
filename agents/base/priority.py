"""What is given up first when neither Kafka nor memory nor disk has room, and where each record stands in that order.

The smaller the number, the longer it is kept. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import groupby

from ...telemetry.records import Block, Event
from ...telemetry.vocabulary import EventName


class Priority(IntEnum):
    """A number that is on disk (names of spool segments): never renumbered."""

    EVIDENCE = 0  # saved around an incident: exists nowhere else
    RANK_EVENTS = 1  # definitions, starts, exceptions, exits, local verdicts
    PROGRESS = 2  # progress and step rows
    COLLECTIVES = 3  # whole collectives
    COPIES = 4  # spans, metrics and copies for people

    @property
    def word(self) -> str:
        """The priority's name in lower case, as counters have it."""
        return self.name.lower()


_OF_BLOCKS = {EventName.BLOCK_COLLECTIVES: Priority.COLLECTIVES}


def priority_of(payload: Block | Event) -> Priority:
    """The priority of what goes onto the topic of blocks: a block's by its name, an event's RANK_EVENTS.

    AGENT_HEALTH goes with the progress. What is copied for people is ``COPIES`` whatever it is: not asked here.
    """
    if isinstance(payload, Block):
        return _OF_BLOCKS.get(payload.name, Priority.PROGRESS)
    return Priority.PROGRESS if payload.name is EventName.AGENT_HEALTH else Priority.RANK_EVENTS


def runs_of_one_priority(payloads: Iterable[Block | Event]) -> Iterator[tuple[Priority, list[Block | Event]]]:
    """Cuts a flush, in its order, into consecutive pieces of one priority each.

    The order is kept because operators rely on it, so that a priority may come more than once.
    """
    for priority, run in groupby(payloads, priority_of):
        yield priority, list(run)
