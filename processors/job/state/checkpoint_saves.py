"""Saves of checkpoints as the ranks tell them: who has begun, whose part is durable, whose has failed.

A save is complete when every rank that began it is durable; a step, when all saves of it are. Sets of ranks are bits of
a number: two kilobytes for 16,384 ranks. Plain records, saved field by field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: Saves that are remembered, the newest.
MOST_SAVES = 12
#: Ways of saving of which one and the same state is kept twice: near the job, and in storage.
WHOLE_WAYS = frozenset({"whichrank", "whichrank_storage"})
#: Places of one save.
MOST_PLACES = 64


def bits_of(ranks: Iterable[int]) -> int:
    """Ranks as bits."""
    bits = 0
    for rank in ranks:
        bits |= 1 << rank
    return bits


def ranks_of(bits: int) -> list[int]:
    """Bits as ranks, ascending."""
    ranks = []
    while bits:
        lowest = bits & -bits
        ranks.append(lowest.bit_length() - 1)
        bits ^= lowest
    return ranks


@dataclass(slots=True, kw_only=True)
class CheckpointSave:
    """One way of saving one step. step: of the training, whose state it holds. Times are Unix ns, 0 not yet.

    begun, staged, durable, failed: ranks, as bits. again: ranks that have so many more saves open, of the same step and
    way. seconds: the longest that a rank's part took until it was durable. error: of a rank that failed.
    """

    step: int
    way: str
    tier: str = ""
    begin_ns: int = 0
    changed_ns: int = 0
    begun: int = 0
    staged: int = 0
    durable: int = 0
    failed: int = 0
    again: dict[int, int] = field(default_factory=dict)
    size_bytes: int = 0
    seconds: float = 0.0
    places: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def missing(self) -> int:
        """Ranks that began and are not durable, as bits."""
        return self.begun & ~self.durable

    @property
    def is_complete(self) -> bool:
        """Whether everything that was begun is durable."""
        return bool(self.begun) and not self.missing

    @property
    def is_open(self) -> bool:
        """Whether something that was begun has neither ended nor failed."""
        return bool(self.begun & ~self.durable & ~self.failed)

    def begin(self, ranks: int, time_ns: int, size_bytes: int) -> None:
        """These ranks begin; those that have begun already save once more."""
        for rank in ranks_of(self.begun & ~self.durable & ~self.failed & ranks):
            self.again[rank] = self.again.get(rank, 0) + 1
        self.begin_ns = min(self.begin_ns or time_ns, time_ns)
        self.begun |= ranks
        self.durable &= ~ranks
        self.size_bytes += size_bytes

    def end(self, ranks: int, seconds: float) -> None:
        """These ranks' parts are durable, but for what they save once more."""
        for rank in [rank for rank in self.again if ranks >> rank & 1]:
            ranks &= ~(1 << rank)
            self.again[rank] -= 1
            if not self.again[rank]:
                del self.again[rank]
        self.durable |= ranks & self.begun & ~self.failed
        self.seconds = max(self.seconds, seconds)

    def leave_out(self, ranks: int) -> None:
        """These ranks' parts are of no use: another rank has none."""
        self.begun &= ~ranks
        self.staged &= ~ranks
        self.durable &= ~ranks
        self.failed &= ~ranks

    def fail(self, ranks: int, error: str) -> None:
        """These ranks' parts were not written."""
        self.failed |= ranks & self.begun
        self.durable &= ~ranks
        self.error = self.error or error


class CheckpointSaves:
    """The newest saves of a job, by step and way. Mutable."""

    def __init__(self) -> None:
        self._saves: dict[tuple[int, str], CheckpointSave] = {}
        #: Whether ranks tell what becomes of saves; else it is judged by their phases.
        self.are_told = False
        #: Of complete saves, the newest: how long the last part took to be durable, in seconds.
        self.usual_s: list[float] = []
        #: The newest complete step when a save was last dropped: many in a row that fail do not push it out.
        self._complete_step = 0

    def __iter__(self) -> Iterator[CheckpointSave]:
        return iter(self._saves.values())

    def at(self, step: int, way: str) -> CheckpointSave:
        """The save of this step in this way; a new one if there is none yet, for which the oldest one goes."""
        save = self._saves.get((step, way))
        if save is None:
            save = self._saves[step, way] = CheckpointSave(step=step, way=way)
            while len(self._saves) > MOST_SAVES:
                self._complete_step = self.newest_complete_step()
                del self._saves[next(iter(self._saves))]
        return save

    def known_at(self, step: int, way: str) -> CheckpointSave | None:
        """The save of this step in this way, if it was begun."""
        return self._saves.get((step, way))

    def newest_complete_step(self) -> int:
        """The highest step of the training of which all saves are complete; 0 where there is none.

        A save that holds the whole state by itself (``WHOLE_WAYS``) makes its step complete whatever others do.
        """
        complete: dict[int, bool] = {}
        whole = {save.step for save in self if save.way in WHOLE_WAYS and save.is_complete}
        for save in self:
            complete[save.step] = complete.get(save.step, True) and save.is_complete
        return max(
            (step for step, is_whole in complete.items() if is_whole or step in whole), default=self._complete_step
        )

    def leave_attempt(self) -> None:
        """Drops what was not complete when the processes ended: nobody will complete it."""
        self._saves = {key: save for key, save in self._saves.items() if save.is_complete}
        self.are_told = False

    def as_rows(self) -> dict[str, Any]:
        """JSON values, for ``of_rows``."""
        return {
            "told": self.are_told,
            "usual_s": self.usual_s,
            "complete_step": self._complete_step,
            "saves": [_written(save) for save in self],
        }

    @classmethod
    def of_rows(cls, rows: Mapping[str, Any]) -> CheckpointSaves:
        """The saves that ``as_rows`` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        saves = cls()
        saves.are_told, saves.usual_s = bool(rows["told"]), [float(each) for each in rows["usual_s"]]
        saves._complete_step = int(rows["complete_step"])
        for row in rows["saves"]:
            values = {name: row[name] for name in _FIELDS if name in row}
            values |= {name: int(values[name], 16) for name in _BITS}
            values["again"] = {int(rank): int(times) for rank, times in values["again"].items()}
            save = CheckpointSave(**values)
            saves._saves[save.step, save.way] = save
        return saves


_FIELDS = tuple(each.name for each in fields(CheckpointSave))
_BITS = frozenset({"begun", "staged", "durable", "failed"})


def _written(save: CheckpointSave) -> dict[str, Any]:
    row = {name: getattr(save, name) for name in _FIELDS}
    row |= {name: f"{row[name]:x}" for name in _BITS}
    return row | {"again": {str(rank): times for rank, times in save.again.items()}}
