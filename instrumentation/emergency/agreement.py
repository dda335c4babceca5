"""On which step the ranks save: every rank says at which boundary it will stop at the latest, the highest is taken.

The gate comes first: from then on a rank passes no boundary before the decision is known, so none can be beyond what it
has said, and each can still reach the highest. The words lie on a board; nobody waits for a rank that does not answer:
after ``ANSWER_S`` it is left out, and named. Nothing here knows torch. For the watching thread, but for what is marked.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ...telemetry.emergency_words import DEFAULT_SECONDS, MOST_REASON
from ...telemetry.ring_layout import cut_text
from .word_board import WordBoard

#: So long everybody is waited for, from the moment at which the request is known to the one who decides.
ANSWER_S = 3.0
#: Whoever asked decides; after so many times as long, anybody does.
_BACKUP_TIMES = 2.0


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A save that was asked for. rank: who put it there. seconds: from now on, for all of it."""

    reason: str
    rank: int
    seconds: float

    def as_word(self) -> str:
        """For the board."""
        return json.dumps({"reason": cut_text(self.reason, MOST_REASON), "rank": self.rank, "seconds": self.seconds})

    @classmethod
    def of_word(cls, word: str) -> SaveRequest:
        """What a board or a person's file says; what is missing or strange gets the defaults."""
        try:
            said: Any = json.loads(word)
        except ValueError:
            said = {}
        said = said if isinstance(said, dict) else {}
        seconds, rank = said.get("seconds"), said.get("rank")
        return cls(
            reason=cut_text(str(said.get("reason") or "person"), MOST_REASON),
            rank=rank if isinstance(rank, int) else -1,
            seconds=float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 1e6 else DEFAULT_SECONDS,
        )


class Agreement:
    """One request and what the ranks answer. number: of the request, counted in the order in which they came."""

    def __init__(self, board: WordBoard, number: int, rank: int, world_size: int, request: SaveRequest) -> None:
        self._board, self._rank, self._world_size = board, rank, world_size
        self.number, self.request = number, request
        self.began_s = monotonic()
        self.deadline_s = self.began_s + request.seconds
        self.has_answered = False
        self._answers: dict[int, int] = {}
        #: Set once it is known where to save (``step``), or that nobody will know.
        self.is_decided = threading.Event()
        self.step: int | None = None
        self.missing: tuple[int, ...] = ()
        self.decided_s = 0.0

    def answer(self, boundary: int) -> None:
        """Says that this rank passes no boundary after this one. Raises OSError, RuntimeError."""
        self._board.put(self._key(f"answer-{self._rank}"), str(boundary))
        self.has_answered = True

    def look(self) -> None:
        """Takes the decision in, or makes it if that is up to this rank. Raises OSError, RuntimeError."""
        if self.is_decided.is_set():
            return
        word = self._board.get(self._key("step"))
        passed_s = monotonic() - self.began_s
        if word is None and (self.request.rank == self._rank or passed_s > ANSWER_S * _BACKUP_TIMES):
            word = self._decide(passed_s > ANSWER_S)
        if word is not None:
            said = json.loads(word)
            self.step, self.missing = int(said["step"]), tuple(map(int, said["missing"]))
            self.decided_s = monotonic()
            self.is_decided.set()

    def held(self, step: int) -> int:
        """Where no boundary can be reached any more: the step whose state is saved by those who hold it. Any thread.

        Raises OSError, RuntimeError.
        """
        return int(self._board.put(self._key("held"), str(step)))

    def give_up(self) -> None:
        """Nobody will know: whoever waits at a boundary goes on."""
        self.is_decided.set()

    def _decide(self, is_late: bool) -> str | None:
        for rank in range(self._world_size):
            if rank not in self._answers:
                word = self._board.get(self._key(f"answer-{rank}"))
                if word is not None:
                    self._answers[rank] = int(word)
        missing = [rank for rank in range(self._world_size) if rank not in self._answers]
        if not self._answers or (missing and not is_late):
            return None
        decision = {"step": max(self._answers.values()), "missing": missing[:64]}
        return self._board.put(self._key("step"), json.dumps(decision))

    def _key(self, word: str) -> str:
        return f"{self.number}-{word}"


def request_key(number: int) -> str:
    """Where the request of this number lies on the board."""
    return f"{number}-request"
