"""What other witnesses than the rings have said of an attempt: facts of flight-recorder dumps, NCCL's RAS.

Facts of dumps are a row of state for each rank (``dump/RANK``), written when they come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...operator import Table
from ..detectors.hang.second_opinion import Testimony

#: Of one attempt: mostly 5 kB for a rank, 2 kB in large jobs. What is beyond is not kept, and said.
MOST_BYTES = 32 << 20
#: To judge so many takes some seconds, in which nothing else of the job is judged.
MOST_DUMPS = 4_096
ROW = "dump/"


@dataclass(slots=True, kw_only=True)
class RankDumpFacts:
    """facts: ``dump_facts``; "" where there are none, and ``problem`` says why. written_ns: Unix."""

    facts: str
    problem: str
    written_ns: int


@dataclass(slots=True)
class WitnessState:
    """Of one attempt. dumps: by rank. left_out: dumps beyond ``MOST_BYTES`` and ``MOST_DUMPS``. due_ns: when dumps are
    judged.

    said: the testimony of each witness by its signal. ras_asked: requests for it so far; ras_due_ns: when the next is.
    """

    dumps: dict[int, RankDumpFacts] = field(default_factory=dict)
    left_out: int = 0
    due_ns: int = 0
    said: dict[str, Testimony] = field(default_factory=dict)
    ras_asked: int = 0
    ras_due_ns: int = 0
    kept_bytes: int = 0
    unsaved: set[int] = field(default_factory=set)
    #: Rows that an earlier attempt has left in the table.
    stale: set[str] = field(default_factory=set)

    def next_attempt(self) -> WitnessState:
        """What is known of an attempt that begins: nothing, but which rows of the one before have to go."""
        rows = {f"{ROW}{rank}" for rank in self.dumps if rank not in self.unsaved}
        return WitnessState(stale=self.stale | rows)

    def note_dump(self, rank: int, dump: RankDumpFacts) -> bool:
        """Keeps a rank's newest dump; False where there is no room for it."""
        before = self.dumps.get(rank)
        grown = self.kept_bytes + len(dump.facts) - (len(before.facts) if before is not None else 0)
        if grown > MOST_BYTES or (before is None and len(self.dumps) >= MOST_DUMPS):
            self.left_out += 1
            return False
        self.kept_bytes = grown
        self.dumps[rank] = dump
        self.unsaved.add(rank)
        return True

    def save_dumps(self, table: Table) -> None:
        """Writes the rows of dumps that came since the last call, and deletes those of earlier attempts."""
        for row in sorted(self.stale - {f"{ROW}{rank}" for rank in self.dumps}):
            table.delete(row)
        self.stale = set()
        for rank in sorted(self.unsaved):
            dump = self.dumps[rank]
            table.put(f"{ROW}{rank}", f"{dump.written_ns}\t{dump.problem}\t{dump.facts}".encode())
        self.unsaved = set()

    def read_dump(self, row: str, value: bytes) -> None:
        """Takes back a row of ``save_dumps``. Raises ValueError for what is none."""
        written_ns, problem, facts = value.decode().split("\t", 2)
        self.dumps[int(row.removeprefix(ROW))] = RankDumpFacts(facts=facts, problem=problem, written_ns=int(written_ns))
        self.kept_bytes += len(facts)
