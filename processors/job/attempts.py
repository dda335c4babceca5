"""Which attempt of the job a record belongs to: the current one, one that is over, or one that begins with it. Pure.

Nodes restart at different moments, and records of an old attempt still come in when another node's new one has begun.
An attempt has one token, the same on all nodes; until it is known, each node's launch of ranks has a provisional id of
its own. Two facts decide: an attempt has one token, and no rank twice. What the launch that began the attempt says of
its token outweighs what a launch says that only came to it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

from ...telemetry.identity import is_provisional

#: Ids of attempts that are over; far more than records of an old attempt can be late by.
_MOST_PAST = 16_384


class Place(Enum):
    CURRENT = 0
    PAST = 1
    #: A new attempt has begun with this record; whatever belonged to the one before is over.
    BEGINS = 2


class Attempts:
    """``token``: id of the current attempt by its token, "" while unknown. Mutable; saved as JSON."""

    __slots__ = ("count", "founder", "members", "past", "token", "token_by")

    def __init__(self) -> None:
        self.count = 0
        self.token = ""
        self.token_by = ""  # the launch that told it first
        self.founder = ""  # id of the launch with which the current attempt began
        self.members: dict[str, set[int]] = {}  # ids that the current attempt goes by, with the ranks seen under each
        self.past: dict[str, None] = {}  # ids of attempts that are over, the oldest first

    def place(self, attempt: str, ranks: Collection[int] = ()) -> Place:
        """Where a record with this id belongs. ranks: those it speaks of, as far as one record tells."""
        seen = self.members.get(attempt)
        if seen is not None:
            seen.update(ranks)
            return Place.CURRENT
        if attempt in self.past:
            return Place.PAST
        contradicts = bool(self.token) and not is_provisional(attempt)
        if not self.members or contradicts or self._holds_any(ranks):
            self._begin(attempt)
            self.members[attempt].update(ranks)
            return Place.BEGINS
        self.members[attempt] = set(ranks)
        if not is_provisional(attempt):
            self.token, self.token_by = attempt, attempt
        return Place.CURRENT

    def alias(self, launch: str, attempt: str) -> Place:
        """A launch has learned its token: ``attempt`` is what its ranks are called from now on."""
        if launch in self.past and attempt != self.token:
            self._end(attempt)
            return Place.PAST
        if launch not in self.members and launch not in self.past:
            place = self.place(attempt)
            if place is Place.PAST:
                self._end(launch)
            else:
                self.members[launch] = set()
            return place
        if attempt == self.token:
            self.past.pop(launch, None)
            self.members.setdefault(launch, set())
            return Place.CURRENT
        if launch == self.founder and (not self.token or self.token_by != self.founder):
            # Others' word for the token, if there was any, came from launches of an earlier attempt.
            wrong, self.token, self.token_by = self.token, attempt, launch
            if wrong:
                self._end(wrong)
            self.past.pop(attempt, None)
            self.members.setdefault(attempt, set())
            return Place.CURRENT
        if attempt in self.past:
            self._end(launch)  # it is of an earlier attempt, and only its records were late
            return Place.PAST
        if not self.token:
            self.token, self.token_by = attempt, launch
            self.members.setdefault(attempt, set())
            return Place.CURRENT
        ranks = self.members.pop(launch)
        self._begin(launch)
        self.token, self.token_by = attempt, launch
        self.members[launch], self.members[attempt] = ranks, set()
        return Place.BEGINS

    def _holds_any(self, ranks: Collection[int]) -> bool:
        """Whether one of these ranks has been seen in the current attempt under another id."""
        return any(not seen.isdisjoint(ranks) for seen in self.members.values())

    def _begin(self, attempt: str) -> None:
        for member in list(self.members):
            self._end(member)
        self.count += 1
        self.founder = attempt
        self.token, self.token_by = ("", "") if is_provisional(attempt) else (attempt, attempt)
        self.members = {attempt: set()}

    def _end(self, attempt: str) -> None:
        self.members.pop(attempt, None)
        self.past[attempt] = None
        if len(self.past) > _MOST_PAST:
            del self.past[next(iter(self.past))]

    # --- as a row of state --------------------------------------------------------------------------------------------
    def as_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "token": self.token,
            "token_by": self.token_by,
            "founder": self.founder,
            "members": [[member, sorted(ranks)] for member, ranks in self.members.items()],
            "past": list(self.past),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Attempts:
        attempts = cls()
        for name in ("count", "token", "token_by", "founder"):
            setattr(attempts, name, values[name])
        members: Sequence[tuple[str, list[int]]] = values["members"]
        attempts.members = {member: set(ranks) for member, ranks in members}
        attempts.past = dict.fromkeys(values["past"])
        return attempts
