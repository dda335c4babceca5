"""Flushes of a large job are taken many at a time: what a thousand nodes tell within a moment is one table then.

Most of what a message costs does not depend on its rows, and a node's has those of eight ranks. When the flushes are
taken follows from the records and their stamps alone, never from where a reader's batches end: that moment after the
first one came, before each look, before an event (but for those of a start, ``intake.starting``), and before a node
tells again of the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....telemetry.packed_flush import Table
from ....telemetry.records import Block, Flush
from ....telemetry.tables import GROUPED_TABLES, TABLES
from ....telemetry.vocabulary import EventName
from ..columns.packing import pack, unpack
from ..columns.rows import in_dtype

#: A job on so many nodes, or more, waits so long. On fewer it would gain little.
FEWEST_NODES = 16
HOLD_NS = 100_000_000
#: Columns of open steps that hold times of the node's clock, 0 meaning none.
NODE_TIMES: dict[EventName, tuple[str, ...]] = {
    EventName.BLOCK_COLLECTIVES: ("enqueued_ns", "started_ns", "done_ns"),
    EventName.BLOCK_STEPS: ("begin_ns", "end_ns"),
    EventName.BLOCK_DEVICE_STEPS: ("first_end_ns", "last_end_ns"),
}


@dataclass(slots=True, kw_only=True, eq=False)
class Gathered:
    """A flush of the current attempt. stamp_ns: its arrival. closed_ns: when its node closed it, by the node's clock.

    tables: rows as bytes of ``TABLES[name]``. offset_ns: turns the node's clock into the job's. groups: the job's
    number of each group of the flush, and last of all what stands for none; None: no table has groups.
    """

    node: str
    stamp_ns: int
    closed_ns: int
    offset_ns: int
    groups: np.ndarray | None
    tables: Sequence[Table]


@dataclass(slots=True, kw_only=True, eq=False)
class Arrivals:
    """Rows of one table from several flushes, one after the other, with the job's times and numbers of groups.

    rows: (n,), may be changed. of_flush: (n,), by row the index of its flush.
    """

    rows: np.ndarray
    flushes: Sequence[Gathered]
    of_flush: np.ndarray


def tables_of(told: Block | Flush) -> Sequence[Table]:
    """Its tables, of those that jobs have; none for a block of another sort."""
    if isinstance(told, Flush):
        return told.tables
    if told.name not in TABLES:
        return ()
    return ((told.name, in_dtype(told.rows, TABLES[told.name]).tobytes()),)


def have_groups(tables: Sequence[Table]) -> bool:
    """Whether rows of any of them are of groups."""
    for name, _ in tables:  # noqa: SIM110 (asked of every message, and a generator is one call more)
        if name in GROUPED_TABLES:
            return True
    return False


def ranks_by_flush(came: Arrivals) -> Iterator[tuple[Gathered, np.ndarray]]:
    """Of each flush the ranks (k,) of its rows, in their order."""
    ends = np.bincount(came.of_flush, minlength=len(came.flushes)).cumsum().tolist()
    ranks, begin = came.rows["rank"].copy(), 0
    for flush, end in zip(came.flushes, ends, strict=True):
        yield flush, ranks[begin:end]
        begin = end


def arrivals_by_table(flushes: Sequence[Gathered]) -> Iterable[tuple[EventName, Arrivals]]:
    """What the flushes tell, table by table, in the order in which tables first come."""
    if len(flushes) == len(flushes[0].tables) == 1:  # each of a small job's messages
        ((name, only),) = flushes[0].tables
        return ((name, _of_one(name, flushes, only)),)
    found: dict[EventName, tuple[list[Gathered], list[bytes]]] = {}
    for flush in flushes:
        for name, rows in flush.tables:
            of_table = found.get(name)
            if of_table is None:
                of_table = found[name] = ([], [])
            of_table[0].append(flush)
            of_table[1].append(rows)
    return [(name, _joined(name, those, parts)) for name, (those, parts) in found.items()]


def _joined(name: EventName, flushes: Sequence[Gathered], parts: Sequence[bytes]) -> Arrivals:
    dtype = TABLES[name]
    if len(flushes) == 1:
        return _of_one(name, flushes, parts[0])
    rows = np.frombuffer(bytearray().join(parts), dtype)
    of_flush = np.arange(len(flushes)).repeat([len(part) // dtype.itemsize for part in parts])
    _move_times(name, rows, np.array([flush.offset_ns for flush in flushes], np.int64)[of_flush])
    if name in GROUPED_TABLES:
        _renumber(rows, [flush.groups for flush in flushes if flush.groups is not None], of_flush)
    return Arrivals(rows=rows, flushes=flushes, of_flush=of_flush)


def _of_one(name: EventName, flushes: Sequence[Gathered], part: bytes) -> Arrivals:
    only, rows = flushes[0], np.frombuffer(bytearray(part), TABLES[name])
    rows = put_in_job_terms(name, rows, only.offset_ns, only.groups if name in GROUPED_TABLES else None)
    return Arrivals(rows=rows, flushes=flushes, of_flush=np.zeros(rows.size, np.intp))


def put_in_job_terms(name: EventName, rows: np.ndarray, offset_ns: int, groups: np.ndarray | None) -> np.ndarray:
    """The rows (n,) of one flush, changed in place. offset_ns, groups: as of ``Gathered``; None: none to replace."""
    _move_times(name, rows, offset_ns)
    if groups is not None:
        rows["group"] = groups[np.minimum(rows["group"], groups.size - 1)]
    return rows


def _move_times(name: EventName, rows: np.ndarray, offsets_ns: np.ndarray | int) -> None:
    for column in NODE_TIMES.get(name, ()):
        times = rows[column]
        np.add(times, offsets_ns, out=times, where=times > 0)


def _renumber(rows: np.ndarray, lookups: Sequence[np.ndarray], of_flush: np.ndarray) -> None:
    """Puts the job's group numbers in place of each flush's own, for all at once. lookups: by flush."""
    sizes = np.array([lookup.size for lookup in lookups], np.int64)
    first = np.cumsum(sizes) - sizes
    place = np.minimum(rows["group"], (sizes - 1)[of_flush]) + first[of_flush]
    rows["group"] = np.concatenate(lookups)[place]


class Gathering:
    """Flushes of a job that are held, to be taken many at a time. Owned by the job's state."""

    __slots__ = ("_flushes", "_told", "due_ns", "is_put")

    def __init__(self) -> None:
        self._flushes: list[Gathered] = []
        self._told: dict[str, set[EventName]] = {}
        #: When what is here has to be taken; 0: nothing is.
        self.due_ns = 0
        #: Whether the row of state is to be made of what is here by then: a flush more changes nothing else.
        self.is_put = False

    def holds(self, node: str, tables: Iterable[Table]) -> bool:
        """Whether rows of any of these tables of this node are held already."""
        told = self._told.get(node)
        return told is not None and any(name in told for name, _ in tables)

    def holds_any(self, node: str) -> bool:
        """Whether a flush of this node is held."""
        return node in self._told

    def add(self, flush: Gathered) -> None:
        """Holds a flush; the first one sets ``due_ns``, when all are to be taken."""
        self._flushes.append(flush)
        told = self._told.get(flush.node)
        if told is None:
            told = self._told[flush.node] = set()
        told.update([name for name, _ in flush.tables])
        if not self.due_ns:
            self.due_ns = flush.stamp_ns + HOLD_NS

    def take(self) -> list[Gathered]:
        """Removes and returns all flushes held, in order of arrival."""
        flushes, self._flushes, self.due_ns, self.is_put = self._flushes, [], 0, False
        self._told.clear()
        return flushes

    # --- as a row of state --------------------------------------------------------------------------------------------
    def pack(self) -> bytes:
        """What is held as a row of state, for ``read``; of what is added later another one has to be put."""
        self.is_put = False
        arrays: dict[str, np.ndarray] = {}
        tables: list[tuple[str, str]] = []
        numbers: list[tuple[int, int, int]] = []
        for flush in self._flushes:
            for name, rows in flush.tables:
                place = len(tables)
                arrays[f"rows/{place}"] = np.frombuffer(rows, TABLES[name])
                if flush.groups is not None and name in GROUPED_TABLES:
                    arrays[f"lookup/{place}"] = flush.groups
                tables.append((name.value, flush.node))
                numbers.append((flush.stamp_ns, flush.closed_ns, flush.offset_ns))
        arrays["numbers"] = np.array(numbers, np.int64).reshape(-1, 3)
        return pack({"blocks": tables}, arrays)

    def read(self, row: bytes) -> None:
        """Holds what ``pack`` has written, besides what is held. Raises ValueError or KeyError for another row."""
        values, arrays = unpack(row)
        numbers = arrays["numbers"].tolist()
        for place, (name, node) in enumerate(values["blocks"]):
            stamp_ns, closed_ns, offset_ns = numbers[place]
            rows = in_dtype(arrays[f"rows/{place}"], TABLES[EventName(name)])  # of an earlier release
            self.add(
                Gathered(
                    node=node,
                    stamp_ns=stamp_ns,
                    closed_ns=closed_ns,
                    offset_ns=offset_ns,
                    groups=arrays.get(f"lookup/{place}"),
                    tables=((EventName(name), rows.tobytes()),),
                )
            )
