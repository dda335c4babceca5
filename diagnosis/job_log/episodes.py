"""Gathers witnesses into episodes, in bounded memory: what stands between two signs of progress belongs together.

The same statement of many ranks is one group, so 10,000 ranks that say the same cost what one does.
"""

from __future__ import annotations

import re

from .model import Episode, Form, LineRole, LogLine, Progress, StatementGroup, Witness
from .standstills import Standstills, Wave

#: Different statements kept per episode, episodes kept per job (the first and the newest), lines kept per group.
MOST_GROUPS = 1000
MOST_EPISODES = 64
KEPT_LINES = 20
MOST_RANKS = 1 << 17
CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']{0,200}/[^']{0,200}'")


class Episodes:
    """Takes witnesses and progress in the order in which each file has them."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.standstills = Standstills()
        self.dropped_episodes = 0
        self.first_progress: Progress | None = None
        self.last_progress: Progress | None = None
        self.last_checkpoint: Progress | None = None
        #: How often the job was started again, as far as this log shows.
        self.attempt = 0
        self._finished_at: tuple[int, int] | None = None
        self._is_open = False
        self._groups: dict[tuple[str, LineRole, str], StatementGroup] = {}
        self._terminal: Episode | None = None
        self._terminal_groups: dict[tuple[str, LineRole, str], StatementGroup] = {}

    def add(self, witness: Witness) -> None:
        """Adds a statement to the open episode, or to a new one, where like ones are counted together.

        Statements beyond ``MOST_GROUPS`` different ones are counted only.
        """
        if not self._is_open:
            self._begin()
        self.standstills.add(witness)
        key = (witness.failure.name, witness.role, CHANGING.sub("#", witness.text[:200].partition("\n")[0]))
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MOST_GROUPS:
                self.episodes[-1].overflow += 1
                return
            group = self._groups[key] = StatementGroup(first=witness, count=0)
            self.episodes[-1].groups.append(group)
        _join(group, witness)
        group.attempts.add(self.attempt)

    @property
    def waves(self) -> list[Wave]:
        """Time-outs over many ranks that one standstill explains, in the order in which they came."""
        return self.standstills.waves

    def started_again(self) -> None:
        """Begins a new attempt: the launcher says that it starts the workers anew."""
        self.attempt += 1
        self._finished_at = None

    def finished(self, line: LogLine) -> None:
        """Training is done, says the trainer in this line: what came before was outlived, and its episode is over."""
        self._finished_at = (line.source, line.number)
        if self._is_open:
            self.episodes[-1].after = Progress(source=line.source, number=line.number, step=None)
            self._is_open = False

    @property
    def is_finished(self) -> bool:
        """Whether the log said that training is done, and no new attempt since."""
        return self._finished_at is not None

    @property
    def waits_for_progress(self) -> bool:
        """Whether the next sign of progress changes anything; otherwise only the last of many counts."""
        return self._is_open or self.first_progress is None

    def progress(self, progress: Progress) -> None:
        """Takes a step or a checkpoint. A step ends the open episode; one below the last step begins a new attempt."""
        if progress.checkpoint:
            self.last_checkpoint = progress
            return
        if self.first_progress is None:
            self.first_progress = progress
        last = self.last_progress
        if last is not None and last.source == progress.source and _is_below(progress.step, last.step):
            self.attempt += self._is_open
            self._finished_at = None
        self.last_progress = progress
        if progress.is_last:
            self._finished_at = (progress.source, progress.number)
        if self._is_open:
            self.episodes[-1].after = progress
            self._is_open = False

    def step(self, progress: Progress) -> None:
        """Notes a higher step that does not end the open episode, because its own line tells of trouble."""
        last = self.last_progress
        if not progress.checkpoint and progress.step is not None and last is not None and last.step is not None:
            self.last_progress = progress if progress.step > last.step else last

    def end_of_file(self) -> None:
        """Ends a file: what is open at its end is joined with what the other files end with, as one episode.

        Files are of ranks of one job, beside each other in time.
        """
        if self._is_open:
            last = self.episodes.pop()
            if self._terminal is None:
                self._terminal, self._terminal_groups = last, self._groups
            else:
                self._merge(last)
        self._is_open = False

    def finish(self) -> None:
        """Ends the log: what its files ended with becomes the last episode."""
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
        self.episodes.append(Episode(before=self.last_progress, is_after_end=self._finished_at is not None))
        self._groups = {}
        self._is_open = True


def _is_below(step: int | None, last: int | None) -> bool:
    return step is not None and last is not None and step < last


def _join(group: StatementGroup, witness: Witness) -> None:
    group.count += 1
    line = witness.line
    if line.rank is not None and len(group.ranks) < MOST_RANKS:
        group.ranks.add(line.rank)
    if line.node is not None and len(group.nodes) < MOST_RANKS:
        group.nodes.add(line.node)
    if len(group.lines) < KEPT_LINES:
        group.lines.append((line.source, line.number))
    target = witness.target
    if target.peer is not None and (target.peer in group.peers or len(group.peers) < KEPT_LINES):
        group.peers[target.peer] = group.peers.get(target.peer, 0) + 1
    named = (*target.missing, *(() if target.peer_rank is None else (target.peer_rank,)))
    for rank in dict.fromkeys(named):
        if rank in group.missing or len(group.missing) < MOST_RANKS:
            group.missing[rank] = group.missing.get(rank, 0) + 1
    if group.count > 1 and _comes_first(witness, group.first):
        group.first = witness


def _merge_groups(into: StatementGroup, group: StatementGroup) -> None:
    into.count += group.count
    into.ranks |= group.ranks
    into.nodes |= group.nodes
    into.attempts |= group.attempts
    for peer, count in group.peers.items():
        into.peers[peer] = into.peers.get(peer, 0) + count
    for rank, count in group.missing.items():
        into.missing[rank] = into.missing.get(rank, 0) + count
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
