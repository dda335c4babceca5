"""The newest emergency save that was asked for, as the ranks tell it. Plain record, saved field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True, kw_only=True)
class EmergencySave:
    """request: its number. asked_ns, due_ns (its time is over), last_ns (the newest word): Unix, 0 not known.

    step: of the attempt. asked: ranks that know of it; saved, failed, missed: those of which that was told; missed with
    the word for why. seconds: the longest that a rank's part took. is_judged: said, unless news come.
    """

    request: int
    reason: str = ""
    asked_ns: int = 0
    due_ns: int = 0
    last_ns: int = 0
    step: int = 0
    asked: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    missed: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    is_judged: bool = False

    @property
    def has_news(self) -> bool:
        """Whether all that know of it have said what became of it."""
        return self.asked <= self.saved | self.failed | self.missed.keys()

    def as_row(self) -> dict[str, Any]:
        """JSON values, for ``of_row``."""
        row = {each.name: getattr(self, each.name) for each in fields(self)}
        row |= {name: sorted(row[name]) for name in _SETS}
        return row | {"missed": {str(rank): why for rank, why in self.missed.items()}}

    @classmethod
    def of_row(cls, row: Mapping[str, Any] | None) -> EmergencySave | None:
        """What ``as_row`` wrote; None stays None. Raises KeyError, TypeError or ValueError for anything else."""
        if row is None:
            return None
        values = {each.name: row[each.name] for each in fields(cls) if each.name in row}
        values |= {name: set(map(int, values[name])) for name in _SETS}
        values["missed"] = {int(rank): str(why) for rank, why in values["missed"].items()}
        return cls(**values)


_SETS = ("asked", "saved", "failed")
