"""Time-outs of collectives, compared over the ranks: who is elsewhere, who is behind, who says nothing.

Who reports a time-out has waited. Where the reports agree in one operation of one group, they tell nothing of each
other; where one names another operation or number than the rest, it went another way, and the others wait for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .model import LineStamp, LogLine, Witness

MOST_WAVES = 64
KEPT_LINES = 20
MOST_RANKS = 1 << 17
MOST_GROUPS = 4096
#: Time-outs that lie closer than this are of one standstill: by their times of day, or by lines where they have none.
WAVE_S = 300.0
WAVE_LINES = 1000
#: More ranks than this that are elsewhere are no suspects, but a split of the job.
MOST_ODD = 64
WORK = re.compile(r"SeqNum=(?P<sequence>\d+),\s*OpType=(?P<operation>\w+)(?:,\s*NumelIn=(?P<numel>\d+))?")
#: Collectives in which all ranks give the same number of elements; in others they may differ.
EQUAL_SIZES = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "ALLREDUCE_COALESCED"})
#: "Last enqueued NCCL work: 7, last completed NCCL work: 6", "last enqueued work: 7, last completed work: 6".
QUEUE = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)", re.I
)
DEFAULT = re.compile(r"^$|default_pg|^0\b(?!\s*PG GUID [1-9])")


#: Number, operation, elements (0 where ranks may differ in them).
Work = tuple[int, str, int]


@dataclass(slots=True)
class Wave:
    """Time-outs of collectives over the ranks, that one standstill explains."""

    timeout_ms: int | None
    source: int
    last_line: int
    first_line: int
    stamps: list[LineStamp] = field(default_factory=list)
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    operations: set[str] = field(default_factory=set)
    lines: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a comparison of the ranks of one group found.

    ranks: those that are not where the others are. differs: "elsewhere" (another operation, or ahead), "behind" (an
    earlier number of the same operation, or one that was never enqueued), "silent" (no report, all others' agree).
    """

    ranks: tuple[int, ...]
    differs: str
    theirs: str = ""
    others: str = ""


@dataclass(slots=True)
class _Group:
    works: dict[int, Work] = field(default_factory=dict)
    enqueued: dict[int, int] = field(default_factory=dict)


class Standstills:
    """``add`` witnesses for the waves, ``see`` lines for what each rank was in."""

    def __init__(self) -> None:
        self.waves: list[Wave] = []
        self._groups: dict[str, _Group] = {}

    def see(self, line: LogLine) -> None:
        """Notes the operation or the numbers that a watchdog's line tells of its rank.

        The first of each rank counts, later ones are of the abort.
        """
        if line.rank is None:
            return
        work, queue = WORK.search(line.text), QUEUE.search(line.text)
        if work is None and queue is None:
            return
        group = self._groups.get(line.group)
        if group is None:
            if len(self._groups) >= MOST_GROUPS:
                return
            group = self._groups[line.group] = _Group()
        if len(group.works) + len(group.enqueued) >= MOST_RANKS:
            return
        if work is not None:
            operation = work["operation"]
            size = int(work["numel"] or 0) if operation in EQUAL_SIZES else 0
            group.works.setdefault(line.rank, (int(work["sequence"]), operation, size))
        if queue is not None and int(queue["enqueued"]) >= 0:
            group.enqueued.setdefault(line.rank, int(queue["enqueued"]))

    def add(self, witness: Witness) -> None:
        """Adds a time-out that names its operation to the wave that it is of, or a new one; ignores other witnesses."""
        operation = witness.collective
        if operation is None or witness.failure.name != "collective_timeout":
            return
        line = witness.line
        for wave in self.waves[-8:]:
            if wave.timeout_ms == operation.timeout_ms and _is_near(wave, witness):
                break
        else:
            if len(self.waves) >= MOST_WAVES:
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

    def difference(self) -> Difference | None:
        """The ranks that differ from the others in the first group where some do; None where nobody does.

        Else, of the job's own group, ranks that are silent.
        """
        for group in self._groups.values():
            if (found := _odd_works(group.works) or _never_enqueued(group)) is not None:
                return found
        for name, group in self._groups.items():
            if DEFAULT.search(name) and (quiet := _silent(sorted(group.works.keys() | group.enqueued.keys()))):
                return Difference(ranks=quiet, differs="silent")
        return None


def _odd_works(works: dict[int, Work]) -> Difference | None:
    counted = Counter(works.values())
    if len(counted) < 2:
        return None
    (usual, most), (_, second) = counted.most_common(2)
    if most == second:
        # No majority: the group waits for those who have got less far.
        usual = max(counted)
    odd = tuple(sorted(rank for rank, work in works.items() if work != usual))
    if len(odd) > MOST_ODD:
        return None
    theirs = Counter(works[rank] for rank in odd).most_common(1)[0][0]
    is_behind = theirs[0] < usual[0] and theirs[1] == usual[1]
    return Difference(
        ranks=odd, differs="behind" if is_behind else "elsewhere", theirs=_told(theirs), others=_told(usual)
    )


def _never_enqueued(group: _Group) -> Difference | None:
    """Ranks whose last enqueued number is below the one in which others wait: they never came to it."""
    waited = Counter(sequence for sequence, _, _ in group.works.values()).most_common(1)
    if not waited:
        levels = Counter(group.enqueued.values()).most_common()
        if len(levels) < 2 or levels[0][1] <= levels[1][1]:
            return None
        sequence = levels[0][0]
    else:
        sequence = waited[0][0]
    odd = tuple(sorted(rank for rank, last in group.enqueued.items() if last < sequence and rank not in group.works))
    if not odd or len(odd) > MOST_ODD or 2 * len(odd) > len(group.works.keys() | group.enqueued.keys()):
        return None
    return Difference(
        ranks=odd, differs="behind", theirs=f"#{group.enqueued[odd[0]]} as the last enqueued", others=f"#{sequence}"
    )


def _silent(said: Sequence[int]) -> tuple[int, ...]:
    """Numbers left out below the highest: few beside those that said something, or the log is of some nodes only."""
    if len(said) < 2:
        return ()
    quiet = sorted(set(range(said[-1] + 1)) - set(said)) if said[-1] < 4 * len(said) else []
    return tuple(quiet) if 0 < 2 * len(quiet) <= len(said) else ()


def _told(work: Work) -> str:
    return f"{work[1]} #{work[0]}" + (f" of {work[2]} elements" if work[2] else "")


def _is_near(wave: Wave, witness: Witness) -> bool:
    line = witness.line
    if line.own_stamp is not None and wave.stamps:
        # By the time of day: c10d writes the month and day of its own, local, sometimes stale, idea. The newest first.
        return any(abs(line.own_stamp.minus_of_day(stamp)) <= WAVE_S for stamp in reversed(wave.stamps))
    return line.source != wave.source or abs(line.number - wave.last_line) <= WAVE_LINES
