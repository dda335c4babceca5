"""Flushes of many nodes as one record between two stages: one table per kind, in narrow columns. Pure; knows no Flink.

A column is told as its least number and what each row has more, in as few whole bytes as that takes: numpy writes and
reads it for thousands of rows at once, where packed rows of one node are read one node at a time.

A record is a line of JSON (names and counts), the numbers of the flushes (int64, by column), and the tables' columns.
Groups are told once in a while (``known_groups``), and else by their digests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...telemetry.block import unknown_rows
from ...telemetry.records import Flush, Identity
from ...telemetry.tables import TABLES
from ...telemetry.vocabulary import EventName
from .known_groups import KnownGroups, digest_of, read_group, written_group

#: Of an identity, what its nodes have alike.
_WHO = ("cluster", "run", "job", "attempt", "world", "owner")
#: Numbers of a flush: where and when it came, its times, and the places of its names in the head.
_STAMP, _PARTITION, _OFFSET, _TIME, _CLOCK, _WHO_AT, _NODE, _LIST, _TOPIC, _SHAPE = range(10)
_NUMBERS = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CameFlush:
    """A flush, and the place of its message on the bus."""

    stamp_ns: int
    topic: str
    partition: int
    offset: int
    flush: Flush


class _Names(dict[Any, int]):
    """What is told once, by its place."""

    def place_of(self, name: Any) -> int:
        return self.setdefault(name, len(self))


def write_joined(came: Sequence[CameFlush], is_known: Callable[[str, int], bool]) -> bytes:
    """The record of these flushes, at least one, each of a node and no rank.

    is_known: whether its reader knows the group with this digest at a stamp; else it is told.
    """
    who, nodes, lists, topics, shapes = _Names(), _Names(), _Names(), _Names(), _Names()
    groups = _Names()
    numbers = np.empty((_NUMBERS, len(came)), np.int64)
    parts: dict[EventName, list[bytes]] = {}
    for at, each in enumerate(came):
        flush, identity = each.flush, each.flush.identity
        numbers[:, at] = (
            each.stamp_ns,
            each.partition,
            each.offset,
            flush.time_ns,
            flush.clock_offset_ns,
            who.place_of(tuple(getattr(identity, name) for name in _WHO)),
            nodes.place_of(identity.node),
            lists.place_of(tuple([groups.place_of(group) for group in flush.groups])),
            topics.place_of(each.topic),
            shapes.place_of(tuple(name.value for name, _ in flush.tables)),
        )
        for name, rows in flush.tables:
            parts.setdefault(name, []).append(rows)
    bodies = [numbers.tobytes()]
    tables: list[list[object]] = []
    for name, those in parts.items():
        size = TABLES[name].itemsize
        counts = np.array([len(rows) // size for rows in those], np.uint32)
        columns, body = _narrowed(np.frombuffer(b"".join(those), TABLES[name]))
        tables.append([name.value, len(those), columns])
        bodies += [counts.tobytes(), *body]
    told_groups = [
        [digest] if is_known(digest := digest_of(group), came[0].stamp_ns) else [digest, written_group(group)]
        for group in groups
    ]
    head = [len(came), told_groups, *(list(names) for names in (lists, who, nodes, topics, shapes)), tables]
    return b"\n".join((json.dumps(head, separators=(",", ":")).encode(), b"".join(bodies)))


def read_joined(value: bytes, known: KnownGroups) -> list[CameFlush]:
    """What ``write_joined`` wrote. Raises ValueError, TypeError, KeyError or IndexError for anything else.

    known: what was told before, to which is added what is told here.
    """
    line, newline, body = value.partition(b"\n")
    if not newline:
        raise ValueError("joined flushes without a head")
    count, told_groups, lists, who, nodes, topics, shapes, tables = json.loads(line)
    numbers = np.frombuffer(body, np.int64, _NUMBERS * count).reshape(_NUMBERS, count)
    rows_of, begin = {}, numbers.nbytes
    for name, told, columns in tables:
        counts = np.frombuffer(body, np.uint32, told, begin)
        rows, begin = _widened(TABLES[EventName(name)], int(counts.sum()), columns, body, begin + counts.nbytes)
        rows_of[name] = _Parts(EventName(name), rows, counts)
    identities = [Identity(**dict(zip(_WHO, each, strict=True))) for each in who]
    for digest, *told in told_groups:
        if told:
            known.put(digest, read_group(told[0]))
    groups = [known.list_of(tuple([told_groups[at][0] for at in of])) for of in lists]
    parts_of = [[rows_of[name] for name in shape] for shape in shapes]
    of_node: dict[tuple[int, int], Identity] = {}
    found = []
    for stamp, partition, offset, time, clock, who_at, node, of_list, topic, shape in numbers.T.tolist():
        identity = of_node.get((who_at, node))
        if identity is None:
            identity = of_node[(who_at, node)] = replace(identities[who_at], node=nodes[node])
        flush = Flush(
            identity=identity,
            tables=tuple([part.take() for part in parts_of[shape]]),
            groups=groups[of_list],
            clock_offset_ns=clock,
            time_ns=time,
        )
        found.append(CameFlush(stamp_ns=stamp, topic=topics[topic], partition=partition, offset=offset, flush=flush))
    return found


class _Parts:
    """Rows of a table, given out flush by flush."""

    def __init__(self, name: EventName, rows: np.ndarray, counts: np.ndarray) -> None:
        self._name, self._rows, self._at = name, rows.data, 0
        self._ends = iter((counts.astype(np.int64).cumsum() * TABLES[name].itemsize).tolist())

    def take(self) -> tuple[EventName, bytes]:
        begin, self._at = self._at, next(self._ends)
        return self._name, bytes(self._rows[begin : self._at])


# --- columns ----------------------------------------------------------------------------------------------------------
def _single_columns(dtype: np.dtype) -> list[tuple[int, int, str]]:
    """Of each number of a row where it begins, its bytes, and its type; floats are told by their bits."""
    assert dtype.fields is not None
    found = []
    for kind, place in (field[:2] for field in dtype.fields.values()):
        base = kind.base
        of = f"<{'i' if base.kind == 'f' else base.kind}{base.itemsize}"
        found += [(place + at, base.itemsize, of) for at in range(0, kind.itemsize, base.itemsize)]
    return found


def _in_rows(rows: np.ndarray, place: int, kind: str) -> np.ndarray:
    """One column of rows of bytes (n, bytes of a row), as a view."""
    column: np.ndarray = np.ndarray(len(rows), kind, rows, place, (rows.shape[1],))
    return column


_SINGLE = {dtype: _single_columns(dtype) for dtype in TABLES.values()}


def _narrowed(rows: np.ndarray) -> tuple[list[list[int]], list[bytes]]:
    """By column its least number and how many bytes each row takes, and these bytes; of no rows nothing."""
    if not rows.size:
        return [], []
    raw = rows.view(np.uint8).reshape(rows.size, -1)
    told: list[list[int]] = []
    body: list[bytes] = []
    for place, size, kind in _SINGLE[rows.dtype]:
        column = _in_rows(raw, place, kind)
        least = column.min()
        more = (column - least).view(f"<u{size}")  # of signed numbers that are far apart it wraps, and wraps back
        most = int(more.max())
        bytes_each = 0 if not most else next(each for each in (1, 2, 4, 8) if most < 1 << 8 * each)
        told.append([int(least), bytes_each])
        if bytes_each:
            body.append(more.astype(f"<u{bytes_each}").tobytes())
    return told, body


def _widened(
    dtype: np.dtype, count: int, columns: Sequence[tuple[int, int]], body: bytes, begin: int
) -> tuple[np.ndarray, int]:
    """The bytes of so many rows of what ``_narrowed`` told, and where the body goes on behind them. Raises ValueError.

    Another release may have told of fewer columns, which are unknown then, or of more, which are passed over.
    """
    rows = np.empty(count, dtype) if len(columns) >= len(_SINGLE[dtype]) else unknown_rows(dtype, count)
    raw: np.ndarray = rows.view(np.uint8).reshape(count, dtype.itemsize)
    for (place, size, kind), (least, bytes_each) in zip(_SINGLE[dtype], columns, strict=False):
        column = _in_rows(raw, place, kind)
        if not bytes_each:
            column[:] = least
            continue
        more = np.frombuffer(body, f"<u{bytes_each}", count, begin)
        begin += more.nbytes
        np.add(more.astype(f"<u{size}").view(kind), np.array(least, kind), out=column)
    begin += sum(count * bytes_each for _, bytes_each in columns[len(_SINGLE[dtype]) :])
    return raw.reshape(-1), begin
