"""Packed rows of a block: descriptor of the columns, bounds-checked reading, splitting.

A body is a little-endian packed structured array; its columns are described in-band (``"<u4 rank;<i8[11] phase_ns"``).
Readers take columns by name: unknown ones are skipped, missing ones hold the value that means unknown. What comes
from the wire is never trusted: types are on a whitelist, sizes must add up, indices must be in range, and a number
that a newer release appended to an enum reads as "unknown". Pure functions; errors are ``BlockError``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from .records import Block
from .tables import GROUPED_TABLES, NO_GROUP, TABLES
from .vocabulary import EventName, ExitState, Level, Op, Phase, ProcessState

try:
    from ._otlp_scan import is_plain as _rows_are_plain
except ImportError:  # no compiler where this was installed: numpy does the same, more slowly
    _rows_are_plain = None  # type: ignore[assignment]

#: Version of the meaning of the columns; additive changes keep it.
BLOCK_SCHEMA_VERSION = 1
#: Largest body written, and largest read (a collector may batch records, not merge bodies).
MAX_BLOCK_BYTES = 64 * 1024
MAX_READ_BYTES = 1 << 20
MAX_ROWS = 1 << 16
MAX_COLUMNS = 128
MAX_ITEMS_PER_COLUMN = 256
#: No job has more ranks; a larger one is damage, and arrays sized by it would exhaust memory.
MAX_RANK = 1 << 22

_COLUMN = re.compile(r"(<(?:[iu][1248]|f[48]))(?:\[([0-9]{1,3})\])? ([A-Za-z_][A-Za-z0-9_]{0,63})")

#: What a column reads as where the writer did not have it. Others: signed -1, unsigned 0, float NaN, arrays 0.
_UNKNOWN: dict[str, int] = {
    "group": NO_GROUP,
    "phase": Phase.OTHER,
    "started_ns": 0,
    "done_ns": 0,
    "first_end_ns": 0,
    "last_end_ns": 0,
    "open_age_ns": 0,
    "collectives": 0,
    "collective_ns": 0,
}

#: Columns that hold a member of an enum: (highest known number, what a higher one reads as).
_ENUM_COLUMNS: dict[str, tuple[int, int]] = {
    "phase": (max(Phase), Phase.OTHER),
    "op": (max(Op), Op.UNKNOWN),
    "last_op": (max(Op), Op.UNKNOWN),
    "process_state": (max(ProcessState), ProcessState.UNKNOWN),
    "level": (max(Level), Level.EVENTS),
    "exit_state": (max(ExitState), ExitState.RUNNING),
}


def _place(dtype: np.dtype[Any], column: str, size: int) -> int:
    """Its first byte within a row."""
    assert dtype.fields is not None
    kind, place = dtype.fields[column][:2]
    assert kind.itemsize == size, column
    return place


_ENUMS: dict[EventName, tuple[tuple[str, int, int], ...]] = {
    name: tuple((column, *limits) for column, limits in _ENUM_COLUMNS.items() if column in (dtype.names or ()))
    for name, dtype in TABLES.items()
}
#: Of each table, where in a row the rank (4 bytes) and the group (2, -1 none) begin; of enums (1 byte), also the limit.
_PLACES: dict[EventName, tuple[int, int, tuple[tuple[int, int], ...]]] = {
    name: (
        _place(dtype, "rank", 4),
        _place(dtype, "group", 2) if "group" in (dtype.names or ()) else -1,
        tuple((_place(dtype, column, 1), limit) for column, limit, _ in _ENUMS[name]),
    )
    for name, dtype in TABLES.items()
}
#: The same, and the size of a row, as ``_otlp_scan.c`` takes it.
PLACES_IN_C: dict[EventName, tuple[int, int, int, bytes]] = {
    name: (TABLES[name].itemsize, rank, group, bytes(number for pair in enums for number in pair))
    for name, (rank, group, enums) in _PLACES.items()
}


class BlockError(ValueError):
    """One line: what is wrong with a block."""


def describe_dtype(dtype: np.dtype[Any]) -> str:
    """A structured dtype as text, as blocks carry it: ``"<u4 rank;<i8[11] phase_ns"``."""
    parts = []
    for name in dtype.names or ():
        column = dtype[name]
        base, shape = column.subdtype or (column, ())
        size = f"[{int(np.prod(shape))}]" if shape else ""
        parts.append(f"<{base.kind}{base.itemsize}{size} {name}")
    return ";".join(parts)


def parse_dtype(descriptor: str) -> np.dtype[Any]:
    """The dtype that ``describe_dtype`` described. Raises BlockError for types that are not on its list."""
    fields: list[tuple[str, str] | tuple[str, str, tuple[int]]] = []
    seen: set[str] = set()
    for part in descriptor.split(";", MAX_COLUMNS):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise BlockError(f"column {part[:40]!r} is not of a known type")
        base, items, name = match.groups()
        if name in seen:
            raise BlockError(f"column {name!r} appears twice")
        seen.add(name)
        if items is None:
            fields.append((name, base))
        elif 0 < int(items) <= MAX_ITEMS_PER_COLUMN:
            fields.append((name, base, (int(items),)))
        else:
            raise BlockError(f"column {name!r} has {items} items")
    return np.dtype(fields)


DESCRIPTORS: dict[EventName, str] = {name: describe_dtype(dtype) for name, dtype in TABLES.items()}
_foreign_dtypes: dict[str, np.dtype[Any]] = {}  # descriptors of other releases: a handful per process


def _foreign_dtype(descriptor: str) -> np.dtype[Any]:
    dtype = _foreign_dtypes.get(descriptor)
    if dtype is None:
        dtype = parse_dtype(descriptor)
        if len(_foreign_dtypes) >= 64:
            _foreign_dtypes.clear()
        _foreign_dtypes[descriptor] = dtype
    return dtype


def unknown_rows(dtype: np.dtype[Any], count: int) -> np.ndarray:
    """``count`` new rows of this dtype in which every column has its value for unknown (-1, NaN or its own)."""
    rows = np.zeros(count, dtype)
    for name in dtype.names or ():
        column = dtype[name]
        if column.subdtype is not None or name.startswith("spare"):
            continue
        if name in _UNKNOWN:
            rows[name] = _UNKNOWN[name]
        elif column.kind == "i":
            rows[name] = -1
        elif column.kind == "f":
            rows[name] = np.nan
    return rows


def _adapt(source: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Rows of another release's columns as rows of ours."""
    rows = unknown_rows(dtype, len(source))
    for name in dtype.names or ():
        if name not in (source.dtype.names or ()):
            continue
        from_base, from_shape = source.dtype[name].subdtype or (source.dtype[name], ())
        to_base, to_shape = dtype[name].subdtype or (dtype[name], ())
        if bool(from_shape) != bool(to_shape) or not np.can_cast(from_base, to_base, "same_kind"):
            continue
        if to_shape:  # an enum grew or shrank: the common part
            width = min(from_shape[0], to_shape[0])
            rows[name][:, :width] = source[name][:, :width]
        else:
            rows[name] = source[name].astype(to_base, casting="same_kind")
    return rows


def read_rows(name: EventName, descriptor: str, count: int, body: bytes, group_count: int) -> np.ndarray:
    """Rows of a block's body in the columns of ``TABLES[name]``; read-only where no conversion was needed.

    descriptor: of the columns as written; count: of rows; group_count: groups that ``group`` may point to. Raises
    BlockError if the body is not what its head says, or if an index points nowhere.
    """
    dtype = TABLES[name]
    same = descriptor == DESCRIPTORS[name]
    written = dtype if same else _foreign_dtype(descriptor)
    if not 0 <= count <= MAX_ROWS:
        raise BlockError(f"{count} rows are more than {MAX_ROWS}")
    if len(body) > MAX_READ_BYTES:
        raise BlockError(f"body of {len(body)} bytes is more than {MAX_READ_BYTES}")
    if len(body) != count * written.itemsize:
        raise BlockError(f"body has {len(body)} bytes, {count} rows of {written.itemsize} bytes were announced")
    rows: np.ndarray = np.frombuffer(body, written)
    if not same:
        rows = _adapt(rows, dtype)
    if not count or (same and _is_plain(body, name, count, group_count)):
        return rows
    return _checked(rows, name, group_count)


def checked_rows(body: bytes, name: EventName, group_count: int) -> bytes:
    """Rows of ``TABLES[name]`` as bytes, with what a newer release has appended to an enum as unknown.

    group_count: groups that ``group`` may point to. Raises BlockError if an index points nowhere.
    """
    dtype = TABLES[name]
    if not body or _is_plain(body, name, len(body) // dtype.itemsize, group_count):
        return body
    return _checked(np.frombuffer(body, dtype), name, group_count).tobytes()


def _is_plain(body: bytes, name: EventName, count: int, group_count: int) -> bool:
    """Whether all indices and members of enums are certainly known. One pass over the bytes: it is asked of every
    block, and a look at each column takes twice as long."""
    if _rows_are_plain is not None:
        row_bytes, rank, group, pairs = PLACES_IN_C[name]
        return _rows_are_plain(body, row_bytes, rank, MAX_RANK - 1, group, group_count, pairs)
    return is_plain_by_columns(body, name, count, group_count)


def is_plain_by_columns(body: bytes, name: EventName, count: int, group_count: int) -> bool:
    """Whether all ranks, group indexes and enum values of the rows are within bounds, as ``_is_plain`` says in C.

    It may doubt rows that are plain, and never the other way round.
    """
    rank, group, enums = _PLACES[name]
    highest = np.maximum.reduce(np.frombuffer(body, np.uint8).reshape(count, -1), axis=0).tolist()
    if highest[rank + 2] >= MAX_RANK >> 16 or highest[rank + 3]:
        return False
    if group >= 0 and (highest[group + 1] or highest[group] >= group_count):
        return False
    return all(highest[place] <= known for place, known in enums)


def _checked(rows: np.ndarray, name: EventName, group_count: int) -> np.ndarray:
    """rows: not empty. As ``read_rows``."""
    if (rank := _largest(rows["rank"])) >= MAX_RANK:
        raise BlockError(f"rank {rank} is out of range")
    if name in GROUPED_TABLES and (group := _largest(rows["group"])) >= group_count:
        raise BlockError(f"group index {group} points past {group_count} groups")
    for column, highest, instead in _ENUMS[name]:
        if _largest(rows[column]) > highest:
            if not rows.flags.writeable:
                rows = rows.copy()
            values = rows[column]
            values[values > highest] = instead
    return rows


def _largest(values: np.ndarray) -> int:
    """``values.max()`` without what numpy does around it."""
    return int(np.maximum.reduce(values))


def write_rows(block: Block) -> bytes:
    """The rows of a block as bytes, converted to the dtype of ``TABLES[block.name]`` where they have another."""
    dtype = TABLES[block.name]
    rows = block.rows
    if rows.dtype != dtype:
        rows = _adapt(rows, dtype)
    return rows.tobytes()


def split_block(block: Block, limit_bytes: int = MAX_BLOCK_BYTES) -> list[Block]:
    """The block in pieces whose bodies are at most ``limit_bytes``; itself if it fits."""
    per_piece = max(1, limit_bytes // TABLES[block.name].itemsize)
    if len(block.rows) <= per_piece:
        return [block]
    return [replace(block, rows=block.rows[i : i + per_piece]) for i in range(0, len(block.rows), per_piece)]
