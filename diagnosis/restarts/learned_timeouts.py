"""How long a marked section, and the time between sections, may take, learned from how long they took. Pure.

A time-out is the longest ever seen over all ranks times a safety factor; with what earlier attempts learned it is
averaged, so that one odd attempt moves it half way. A section never seen has none. The rule is NVRx's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SAFETY_FACTOR = 5.0
#: Share of the new value against what was learned before.
NEW_SHARE = 0.5


class SectionMisuse(ValueError):
    """Events that cannot be: opened twice, closed and not open, unknown, back in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. ``out_of_section`` and sections that are absent: nothing learned yet."""

    sections: Mapping[str, float] = field(default_factory=dict)
    out_of_section: float | None = None


@dataclass(slots=True)
class SectionWatch:
    """One rank's sections. ``names``: all there are; ``began_s``: when its time began to count."""

    names: frozenset[str]
    began_s: float
    longest: dict[str, float] = field(default_factory=dict)
    longest_outside: float | None = None
    _open: dict[str, float] = field(default_factory=dict)
    _last_s: float = 0.0
    _outside_since_s: float | None = None

    def __post_init__(self) -> None:
        self._outside_since_s, self._last_s = self.began_s, self.began_s

    def open(self, name: str, t_s: float) -> None:
        """Opens a section at ``t_s``; ends the time outside of sections.

        Raises SectionMisuse for an unknown or open section, or a time before the last.
        """
        self._check(name, t_s)
        if name in self._open:
            raise SectionMisuse(f"section {name} is opened while it is open")
        if self._outside_since_s is not None:
            self.longest_outside = max(self.longest_outside or 0.0, t_s - self._outside_since_s)
            self._outside_since_s = None
        self._open[name] = t_s

    def close(self, name: str, t_s: float) -> None:
        """Closes a section at ``t_s``, and keeps its length if it is the longest so far.

        Raises SectionMisuse for an unknown or closed section, or a time before the last.
        """
        self._check(name, t_s)
        if name not in self._open:
            raise SectionMisuse(f"section {name} is closed while it is not open")
        self.longest[name] = max(self.longest.get(name, 0.0), t_s - self._open.pop(name))
        if not self._open:
            self._outside_since_s = t_s

    def close_all(self, t_s: float) -> None:
        """Closes every open section at ``t_s``. Raises SectionMisuse for a time before the last."""
        for name in list(self._open):
            self.close(name, t_s)

    def _check(self, name: str, t_s: float) -> None:
        if name not in self.names:
            raise SectionMisuse(f"section {name} is none of {', '.join(sorted(self.names))}")
        if t_s < self._last_s:
            raise SectionMisuse(f"section {name}: time goes back from {self._last_s} to {t_s}")
        self._last_s = t_s


def learn(
    watches: Iterable[SectionWatch], *, before: Timeouts | None = None, safety_factor: float = SAFETY_FACTOR
) -> Timeouts:
    """Time-outs for all ranks from now on: the longest that any took, times ``safety_factor``.

    before: learned earlier; what was not seen now stays as it is there.
    """
    longest: dict[str, float] = {}
    outside: float | None = None
    for watch in watches:
        for name, seconds in watch.longest.items():
            longest[name] = max(seconds, longest.get(name, 0.0))
        if watch.longest_outside is not None:
            outside = max(watch.longest_outside, outside or 0.0)
    known = before or Timeouts()
    sections = dict(known.sections)
    for name, seconds in longest.items():
        sections[name] = merge_learned(seconds * safety_factor, known.sections.get(name))
    out_of_section = known.out_of_section
    if outside is not None:
        out_of_section = merge_learned(outside * safety_factor, known.out_of_section)
    return Timeouts(sections=sections, out_of_section=out_of_section)


def merge_learned(new: float, learned: float | None) -> float:
    """What is known after an attempt that took ``new``. learned: by earlier attempts, None nothing."""
    return new if learned is None else NEW_SHARE * new + (1 - NEW_SHARE) * learned
