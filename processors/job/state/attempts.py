"""Which attempt of the job a record belongs to: the current one, one that is over, or one that begins with it. Pure.

A record carries the id of its launch: one start of ranks by one launcher, on one node. The launches of an attempt come
together by three facts. No rank runs twice: a launch with a rank that another one holds is a restart. Nodes restart at
different moments: a launch with other ranks joins whoever has begun. And ranks that met in different stores were never
in one attempt: then the later launch is of the current one. (Ranks that met in one store may be of two attempts:
torch's launcher keeps its store over restarts, and its restart counters differ between nodes; both were measured.)

One launch may have several lives: when nodes come or go, torch's launcher starts all its ranks again and does not count
it as a restart. It never starts one of them alone; so a rank that starts after another one of its launch has ended is
the next life of them all, if they had met by then. (Otherwise a wrapper may have run a check before its trainer.)
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import numpy as np

from ....telemetry.records import Block, Event, Flush
from ....telemetry.tables import TABLES
from ....telemetry.vocabulary import EventName
from .learned_times import LearnedTimes
from .micro_batch import tables_of
from .rank_state import MOST_RANKS

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

    __slots__ = (
        "_met", "_seen", "again", "count", "ended_ns", "founder", "learned", "members", "name", "over", "past",
        "started_ns", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self.founder = ""  # the launch with which the current attempt began
        self.name = ""  # of the current attempt; no other one of the job has it
        self.members: dict[str, set[int]] = {}  # launches of the current attempt, with the ranks seen of each
        self.started_ns: dict[str, int] = {}  # of each of them, by its node's clock; 0 unknown
        self.tokens: dict[str, str] = {}  # where their ranks have met, of those that have told
        self.ended_ns: dict[str, int] = {}  # when the first of their ranks ended, as ``note_end`` was told
        self.again: set[str] = set()  # those whose ranks have started again, and have not met yet
        self.over: set[str] = set()  # those of the current attempt whose launcher has ended, too
        # Launches of attempts that are over, the oldest first: when the first of their ranks ended, 0 unknown.
        self.past: dict[str, int] = {}
        self.learned = LearnedTimes()  # how long phases took in them, saved by itself
        #: Not saved: ranks of members, and of some that were; and where so many have met, with no stranger among them.
        self._seen: set[int] | None = None
        self._met: tuple[str, int] = ("", 0)

    def place(
        self, launch: str, ranks: Collection[int] = (), *, started_ns: int = 0, started_local_ns: int = 0
    ) -> Place:
        """Where a record of this launch belongs; counts an unknown launch in, which may begin a new attempt.

        ranks: those it speaks of, as far as one record tells. started_ns, started_local_ns: when a rank of it started,
        0 where the record does not tell: in Unix time, to be compared between nodes, and by the clock of ``note_end``.
        """
        if 0 < self._ended_ns(launch) < started_local_ns:
            return self._live_again(launch, ranks, started_ns)
        if launch in self.past:
            return Place.PAST
        seen = self.members.get(launch)
        if seen is not None:
            seen.update(ranks)
            self._note_seen(ranks)
            return Place.CURRENT
        return self._come(launch, ranks, started_ns)

    def is_sure(self, launch: str, rank: int, token: str = "") -> bool:
        """Whether what this launch tells, of this rank (-1: of none), surely belongs to the current attempt and ends no
        other launch. token: where its ranks have met, if it tells that.
        """
        if self._ended_ns(launch) or launch in self.past or self._seen is None or not self.founder:
            return False
        if token:
            return launch in self.members and self._met == (token, len(self.tokens))
        return launch in self.members or (rank >= 0 and rank not in self._seen)

    def note_end(self, launch: str, ended_ns: int) -> None:
        """Notes when a rank of this launch ended; only the first counts. ended_ns: by any clock of its node, best one
        nobody sets.
        """
        if launch in self.past:
            self.past[launch] = self.past[launch] or ended_ns
        elif launch in self.members:
            self.ended_ns.setdefault(launch, ended_ns)

    def note_over(self, launch: str) -> None:
        """Notes that this launch's launcher has ended too: no rank of it will start any more."""
        if launch in self.members:
            self.over.add(launch)

    def tell_token(self, launch: str, token: str) -> Place:
        """A launch has told where its ranks met (``token``): says where it belongs, and ends launches that met
        elsewhere.

        Of two that met in different places one is of another attempt: the older. BEGINS: a new attempt begins with it.
        """
        place = self.place(launch)
        if place is Place.PAST:
            return place
        met_alike = self._met == (token, len(self.tokens))  # a large job has thousands
        self.tokens[launch] = token
        self.again.discard(launch)
        strangers = [] if met_alike else [member for member, other in self.tokens.items() if other != token]
        if not strangers:
            self._met = token, len(self.tokens)
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

    def _come(self, launch: str, ranks: Collection[int], started_ns: int, *, again: bool = False) -> Place:
        """A launch that is new to the current attempt: it joins it, or begins the next one."""
        holders = self._holders(ranks)
        self.members[launch], self.started_ns[launch] = set(ranks), started_ns
        if self.founder in holders and self._is_older(launch, self.founder):
            self._end(launch)  # it ran before the current attempt, and is only told late
            return Place.PAST
        if not self.founder or (holders and not self._is_older(launch, self.founder)):
            self._begin(launch, again=again)
            return Place.BEGINS
        for holder in holders:  # both were before the current attempt, and what they said is only late
            self._end(holder)
        return Place.CURRENT

    def _holders(self, ranks: Collection[int]) -> list[str]:
        """Members that hold any of the ranks, which from now on are seen."""
        if self._seen is None:
            self._seen = set().union(*self.members.values())
        is_new = self._seen.isdisjoint(ranks)  # nearly always, while thousands of launches begin
        self._seen.update(ranks)
        return [] if is_new else [member for member, held in self.members.items() if not held.isdisjoint(ranks)]

    def _note_seen(self, ranks: Collection[int]) -> None:
        if self._seen is not None:
            self._seen.update(ranks)

    def _live_again(self, launch: str, ranks: Collection[int], started_ns: int) -> Place:
        """A rank has started after one of its launch had ended."""
        if launch in self.past:
            del self.past[launch]
            return self._come(launch, ranks, started_ns, again=True)
        del self.ended_ns[launch]
        if launch not in self.tokens:
            self.members[launch].update(ranks)
            self._note_seen(ranks)
            self.started_ns[launch] = started_ns
            self.again.add(launch)
            return Place.CURRENT
        del self.tokens[launch]
        self.members[launch], self.started_ns[launch] = set(ranks), started_ns
        self._note_seen(ranks)
        self._begin(launch, again=True)
        return Place.BEGINS

    def _ended_ns(self, launch: str) -> int:
        return self.past.get(launch) or self.ended_ns.get(launch, 0)

    def _is_older(self, launch: str, other: str) -> bool:
        """Whether it started so long before the other one that no difference between clocks explains it."""
        first, second = self.started_ns[launch], self.started_ns[other]
        return 0 < first < second - CLOCK_DOUBT_NS

    def _begin(self, launch: str, *others: str, again: bool = False) -> None:
        for member in list(self.members):
            if member != launch and member not in others and member not in self.again:
                self._end(member)
        self.count += 1
        self.founder, self.name = launch, f"{launch}.{self.count}" if again else launch

    def _end(self, launch: str) -> None:
        self.past[launch] = self.ended_ns.pop(launch, 0)
        if launch == self.founder:  # whoever ends it names the next one; until then one of those that are left stands
            self.founder = next((member for member in self.members if member != launch), "")
        self.again.discard(launch)
        self.over.discard(launch)
        for table in (self.members, self.started_ns, self.tokens):
            table.pop(launch, None)
        if len(self.past) > _MOST_PAST:
            del self.past[next(iter(self.past))]


def place_of(payload: Block | Flush | Event, attempts: Attempts, most_ranks: int = MOST_RANKS) -> Place:
    """Where a record belongs by its launch's id; tells ``attempts`` of the launch, its ranks, and ends of ranks.

    A flush tells its ranks only where nothing else does. most_ranks: from this number on they do not count.
    """
    launch = payload.identity.attempt
    if isinstance(payload, Event):
        ranks: Collection[int] = (payload.identity.rank,) if payload.identity.rank >= 0 else ()
        local_ns = payload.mono_ns or payload.time_ns
        if payload.name is EventName.RANK_STARTED:
            return attempts.place(launch, ranks, started_ns=payload.time_ns, started_local_ns=local_ns)
        if payload.name is EventName.RANK_EXIT:
            place = attempts.place(launch, ranks)
            attempts.note_end(launch, local_ns)
            return place
        return attempts.place(launch, ranks)
    if launch in attempts.members or launch in attempts.past:
        return attempts.place(launch)
    told: set[int] = set()
    for name, rows in tables_of(payload):
        told.update(np.frombuffer(rows, TABLES[name])["rank"].tolist())
    return attempts.place(launch, sorted(rank for rank in told if rank < most_ranks))
