"""Which attempt of the job a record belongs to: the current one, one that is over, or one that begins with it. Pure.

A record carries the id of its launch: one start of ranks by one launcher, on one node. The launches of an attempt come
together by three facts. No rank runs twice: a launch with a rank that another one holds is a restart. Nodes restart at
different moments: a launch with other ranks joins whoever has begun. And ranks that met in different stores were never
in one attempt: then the later launch is of the current one. (Ranks that met in one store may be of two attempts:
torch's launcher keeps its store over restarts, and its restart counters differ between nodes; both were measured.)
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any

import numpy as np

from ...telemetry.records import Block, Event
from ...telemetry.vocabulary import EventName

#: Launches of attempts that are over; far more than records of an old attempt can be late by.
_MOST_PAST = 16_384
#: Clocks of two nodes may differ by so much.
CLOCK_DOUBT_NS = 1_000_000_000


class Place(Enum):
    CURRENT = 0
    PAST = 1
    #: A new attempt has begun with this record; whatever belonged to the one before is over.
    BEGINS = 2


class Attempts:
    """The job's attempts so far. Mutable; saved as JSON."""

    __slots__ = ("count", "founder", "members", "past", "started_ns", "tokens")

    def __init__(self) -> None:
        self.count = 0
        self.founder = ""  # the launch with which the current attempt began
        self.members: dict[str, set[int]] = {}  # launches of the current attempt, with the ranks seen of each
        self.started_ns: dict[str, int] = {}  # of each of them, by its node's clock; 0 unknown
        self.tokens: dict[str, str] = {}  # where their ranks have met, of those that have told
        self.past: dict[str, None] = {}  # launches of attempts that are over, the oldest first

    def place(self, launch: str, ranks: Collection[int] = (), started_ns: int = 0) -> Place:
        """Where a record of this launch belongs. ranks: those it speaks of, as far as one record tells.

        started_ns: Unix time at which a rank of it started, where that is what the record tells.
        """
        if launch in self.past:
            return Place.PAST
        seen = self.members.get(launch)
        if seen is not None:
            seen.update(ranks)
            return Place.CURRENT
        place = Place.CURRENT
        holders = [member for member, held in self.members.items() if not held.isdisjoint(ranks)]
        self.members[launch], self.started_ns[launch] = set(ranks), started_ns
        if not self.founder or (holders and not self._is_older(launch, self.founder)):
            self._begin(launch)
            place = Place.BEGINS
        else:
            for holder in holders:  # both were before the current attempt, and what they said is only late
                self._end(holder)
        return place

    def tell_token(self, launch: str, token: str) -> Place:
        """A launch has told where its ranks met. Of two that met in different places one is of another attempt."""
        place = self.place(launch)
        if place is Place.PAST:
            return place
        self.tokens[launch] = token
        strangers = [member for member, other in self.tokens.items() if other != token]
        if not strangers:
            return place
        if launch != self.founder and self._is_older(launch, self.founder):
            self._end(launch)
            return Place.PAST
        newest = launch
        for stranger in strangers:
            if self._is_older(newest, stranger):
                newest = stranger
        if newest == self.founder:
            for stranger in strangers:
                self._end(stranger)
            return Place.CURRENT
        met = [member for member, other in self.tokens.items() if other == self.tokens[newest]]
        self._begin(newest, *met)
        return Place.BEGINS

    def launch_of(self, rank: int) -> str:
        """The launch of the current attempt that holds this rank; "" if it was not seen."""
        return next((launch for launch, ranks in self.members.items() if rank in ranks), "")

    def _is_older(self, launch: str, other: str) -> bool:
        """Whether it started so long before the other one that no difference between clocks explains it."""
        first, second = self.started_ns[launch], self.started_ns[other]
        return 0 < first < second - CLOCK_DOUBT_NS

    def _begin(self, launch: str, *others: str) -> None:
        for member in list(self.members):
            if member != launch and member not in others:
                self._end(member)
        self.count += 1
        self.founder = launch

    def _end(self, launch: str) -> None:
        for table in (self.members, self.started_ns, self.tokens):
            table.pop(launch, None)
        self.past[launch] = None
        if len(self.past) > _MOST_PAST:
            del self.past[next(iter(self.past))]

    # --- as a row of state --------------------------------------------------------------------------------------------
    def as_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "founder": self.founder,
            "members": {member: sorted(ranks) for member, ranks in self.members.items()},
            "started_ns": self.started_ns,
            "tokens": self.tokens,
            "past": list(self.past),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Attempts:
        attempts = cls()
        attempts.count, attempts.founder = values["count"], values["founder"]
        attempts.members = {member: set(ranks) for member, ranks in values["members"].items()}
        attempts.started_ns, attempts.tokens = values["started_ns"], values["tokens"]
        attempts.past = dict.fromkeys(values["past"])
        return attempts


def place_of(payload: Block | Event, attempts: Attempts) -> Place:
    """Where a record belongs that carries the id of a launch. A block tells its ranks only where nothing else does."""
    launch = payload.identity.attempt
    if isinstance(payload, Event):
        ranks: Collection[int] = (payload.identity.rank,) if payload.identity.rank >= 0 else ()
        return attempts.place(launch, ranks, payload.time_ns if payload.name is EventName.RANK_STARTED else 0)
    if launch in attempts.members or launch in attempts.past or "rank" not in (payload.rows.dtype.names or ()):
        return attempts.place(launch)
    return attempts.place(launch, np.unique(payload.rows["rank"]).tolist())
