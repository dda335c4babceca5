"""Gathers witnesses into episodes, in bounded memory: what stands between two signs of progress belongs together.

The same statement of many ranks is one group, so 10,000 ranks that say the same cost what one does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .model import Episode, Form, Group, Progress, Role, Stamp, Witness

#: Different statements kept per episode, episodes kept per job (the first and the newest), lines kept per group.
MOST_GROUPS = 1000
MOST_EPISODES = 64
KEPT_LINES = 20
MOST_RANKS = 1 << 17
#: Time-outs that lie closer than this are of one standstill: by their times of day, or by lines where they have none.
WAVE_S = 300.0
WAVE_LINES = 1000
CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']{0,200}/[^']{0,200}'")


@dataclass(slots=True)
class Wave:
    """Time-outs of collectives over the ranks, that one standstill explains."""

    timeout_ms: int | None
    source: int
    last_line: int
    first_line: int
    stamps: list[Stamp] = field(default_factory=list)
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    operations: set[str] = field(default_factory=set)
    lines: list[int] = field(default_factory=list)


class Episodes:
    """Takes witnesses and progress in the order in which each file has them."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.waves: list[Wave] = []
        self.dropped_episodes = 0
        self.first_progress: Progress | None = None
        self.last_progress: Progress | None = None
        self.last_checkpoint: Progress | None = None
        self._is_open = False
        self._groups: dict[tuple[str, Role, str], Group] = {}
        self._terminal: Episode | None = None
        self._terminal_groups: dict[tuple[str, Role, str], Group] = {}

    def add(self, witness: Witness) -> None:
        if not self._is_open:
            self._begin()
        if witness.failure.name == "collective_timeout" and witness.collective is not None:
            self._join_wave(witness)
        key = (witness.failure.name, witness.role, CHANGING.sub("#", witness.text[:200].partition("\n")[0]))
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MOST_GROUPS:
                self.episodes[-1].overflow += 1
                return
            group = self._groups[key] = Group(first=witness, count=0)
            self.episodes[-1].groups.append(group)
        _join(group, witness)

    @property
    def waits_for_progress(self) -> bool:
        """Whether the next sign of progress changes anything; otherwise only the last of many counts."""
        return self._is_open or self.first_progress is None

    def progress(self, progress: Progress) -> None:
        if progress.checkpoint:
            self.last_checkpoint = progress
            return
        if self.first_progress is None:
            self.first_progress = progress
        self.last_progress = progress
        if self._is_open:
            self.episodes[-1].after = progress
            self._is_open = False

    def end_of_file(self) -> None:
        """Files are ranks of one job, beside each other in time: what each ends with is one episode of all."""
        if self._is_open:
            last = self.episodes.pop()
            if self._terminal is None:
                self._terminal, self._terminal_groups = last, self._groups
            else:
                self._merge(last)
        self._is_open = False

    def finish(self) -> None:
        if self._terminal is not None:
            self.episodes.append(self._terminal)
            self._terminal = None

    def _merge(self, last: Episode) -> None:
        terminal = self._terminal
        assert terminal is not None
        terminal.overflow += last.overflow
        for key, group in self._groups.items():
            into = self._terminal_groups.get(key)
            if into is not None:
                _merge_groups(into, group)
            elif len(self._terminal_groups) < MOST_GROUPS:
                self._terminal_groups[key] = group
                terminal.groups.append(group)
            else:
                terminal.overflow += group.count

    def _begin(self) -> None:
        if len(self.episodes) >= MOST_EPISODES:
            del self.episodes[1]
            self.dropped_episodes += 1
        self.episodes.append(Episode(before=self.last_progress))
        self._groups = {}
        self._is_open = True

    def _join_wave(self, witness: Witness) -> None:
        operation = witness.collective
        assert operation is not None
        line = witness.line
        for wave in self.waves[-8:]:
            if wave.timeout_ms == operation.timeout_ms and _is_near(wave, witness):
                break
        else:
            if len(self.waves) >= MOST_EPISODES:
                return
            wave = Wave(operation.timeout_ms, line.source, line.number, line.number)
            self.waves.append(wave)
        wave.last_line = line.number
        wave.source = line.source
        wave.count += 1
        wave.operations.add(operation.operation)
        if line.own_stamp is not None and len(wave.stamps) < KEPT_LINES:
            wave.stamps.append(line.own_stamp)
        if line.rank is not None and len(wave.ranks) < MOST_RANKS:
            wave.ranks.add(line.rank)
        if len(wave.lines) < KEPT_LINES:
            wave.lines.append(line.number)


def _is_near(wave: Wave, witness: Witness) -> bool:
    line = witness.line
    if line.own_stamp is not None and wave.stamps:
        # By the time of day: c10d writes the month and day of its own, local, sometimes stale, idea.
        return any(abs(line.own_stamp.of_day().minus(stamp.of_day())) <= WAVE_S for stamp in wave.stamps)
    return line.source != wave.source or abs(line.number - wave.last_line) <= WAVE_LINES


def _join(group: Group, witness: Witness) -> None:
    group.count += 1
    line = witness.line
    if line.rank is not None and len(group.ranks) < MOST_RANKS:
        group.ranks.add(line.rank)
    if line.node is not None and len(group.nodes) < MOST_RANKS:
        group.nodes.add(line.node)
    if len(group.lines) < KEPT_LINES:
        group.lines.append((line.source, line.number))
    if group.count > 1 and _comes_first(witness, group.first):
        group.first = witness


def _merge_groups(into: Group, group: Group) -> None:
    into.count += group.count
    into.ranks |= group.ranks
    into.nodes |= group.nodes
    into.lines += group.lines[: KEPT_LINES - len(into.lines)]
    if _comes_first(group.first, into.first):
        into.first = group.first


def _comes_first(one: Witness, other: Witness) -> bool:
    """Tracebacks are handed out when they end, so a later one may have begun before."""
    if one.quoted != other.quoted:
        return other.quoted
    later_s = one.line.seconds_after(other.line)
    if later_s is not None and abs(later_s) > 0.5:
        return later_s < 0
    return one.line.source == other.line.source and one.line.number < other.line.number and one.form is Form.EXCEPTION
