"""Rows of a table in few bytes: each column by what its numbers have in common, in as many bits as the rest needs.

A node's rows of one flush are few and alike; in their own widths, with a description of their columns, they are ten
times what they say. Columns are told by their place in ``_ORDER``, where new ones are appended: a reader passes over
columns behind those that it knows, and has its value for unknown where the writer had none. Lossless. Pure functions;
in C (``_packed_rows.c``) they do the same.

A table is: rows, period, columns (varints), then each column: a byte of code, and
  CONSTANT  its value (zigzag varint), for all rows
  BITS      least value (zigzag varint), shift, width (a byte each), and of each row (value - least) >> shift in so many
            bits
  ZEROS     nothing: as many columns more as its lower bits say are 0 in all rows, as this one is
The code also says of what these are the numbers: of differences to the column before (OF_COLUMN), and then to the row
before (OF_ROW) or ``period`` rows before (OF_PERIOD). Rows that have none so far before them come first, as zigzag
varints. CHAINED: shift comes right behind the code, all numbers are told without so many low bits, which are 0, and of
the rows that come first each but the first as difference to the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .block import MAX_COLUMNS, MAX_ROWS, unknown_rows
from .otlp_wire import sint, varint
from .tables import TABLES
from .vocabulary import EventName

CONSTANT, BITS = 0, 1
OF_ROW, OF_PERIOD, OF_COLUMN, CHAINED = 2, 4, 8, 16
ZEROS, _MORE_ZEROS = 32, 31
#: Rows that a table may have beyond one for each byte that it takes: what is read is bounded by what came.
MORE_ROWS = 16
_MASK = (1 << 64) - 1
Words = NDArray[np.int64]


# --- columns ----------------------------------------------------------------------------------------------------------
#: The order in which a table's columns are told (``NAME:N``: the first N items of an array). What comes new, an item as
#: well, is appended to it; nothing is ever moved.
_ORDER: dict[EventName, str] = {
    EventName.BLOCK_COLLECTIVES: ("rank group op flags dtype phase peer seq bytes step enqueued_ns started_ns done_ns"),
    EventName.BLOCK_STEPS: (
        "rank flags step begin_ns end_ns phase_ns:11 collective_ns collectives loss grad_norm run_delay_ns"
    ),
    EventName.BLOCK_STEP_GROUPS: "rank group step count collective_ns last_seq last_op last_bytes",
    EventName.BLOCK_DEVICE_STEPS: "rank group calls step stood_ns first_end_ns last_end_ns",
    EventName.BLOCK_PROGRESS: (
        "rank pid step phase process_state level exit_state hook_state read_ns phase_age_ns step_age_ns"
        " heartbeat_age_ns cpu_ns own_cost_ns open still_ns in_io"
    ),
    EventName.BLOCK_GROUP_PROGRESS: (
        "rank group op flags dtype blind peer bytes enqueued started completed p2p_enqueued p2p_completed open"
        " open_age_ns moved_age_ns"
    ),
}


def _layout(name: EventName) -> tuple[tuple[int, int, str], ...]:
    """Of each single column: where it begins in a row, its bytes, and its type; floats are told by their bits."""
    fields = TABLES[name].fields
    assert fields is not None
    found: list[tuple[int, int, str]] = []
    for word in _ORDER[name].split():
        column, _, items = word.partition(":")
        kind, place = fields[column][:2]
        base = kind.base
        of = f"<{'i' if base.kind == 'f' else base.kind}{base.itemsize}"
        found += [(place + item * base.itemsize, base.itemsize, of) for item in range(int(items or 1))]
    return tuple(found)


_LAYOUTS = {name: _layout(name) for name in TABLES}
#: As ``_packed_rows.c`` takes it: of each column its place (two bytes) and size; and a row of which nothing is known.
LAYOUTS: dict[EventName, tuple[bytes, bytes]] = {
    name: (
        b"".join(place.to_bytes(2, "little") + bytes((size,)) for place, size, _ in _LAYOUTS[name]),
        unknown_rows(dtype, 1).tobytes(),
    )
    for name, dtype in TABLES.items()
}


def _columns_of(name: EventName, rows: np.ndarray) -> Words:
    """(columns, rows), each number as 64 bits."""
    layout = _LAYOUTS[name]
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    words = np.empty((len(layout), len(rows)), np.int64)
    for number, (place, size, kind) in enumerate(layout):
        words[number] = np.ascontiguousarray(raw[:, place : place + size]).view(kind)[:, 0]
    return words


# --- writing ----------------------------------------------------------------------------------------------------------
def pack_rows(name: EventName, rows: np.ndarray) -> bytes:
    """Rows of ``TABLES[name]``, at least one, packed."""
    words = _columns_of(name, rows)
    period = _period(words[0])
    before = np.zeros_like(words)
    before[1:] = words[:-1]
    lags = ((0, 0), (OF_ROW, 1), (OF_PERIOD, period)) if 1 < period < len(rows) else ((0, 0), (OF_ROW, 1))
    choices = [
        _Choice(of_column | of_row, lag, numbers)
        for of_column, numbers in ((0, words), (OF_COLUMN, words - before))
        for of_row, lag in lags
        if lag < len(rows)
    ]
    best = np.argmin([choice.costs for choice in choices], axis=0).tolist()
    parts = [varint(len(rows)), varint(period), varint(len(words))]
    zeros = 0
    for column, is_used in enumerate(np.any(words, axis=1).tolist()):
        if not is_used:
            zeros += 1
            continue
        parts += _zeros(zeros)
        zeros = 0
        choices[best[column]].write(column, parts)
    return b"".join(parts + _zeros(zeros))


def _zeros(columns: int) -> list[bytes]:
    whole, rest = divmod(columns, _MORE_ZEROS + 1)
    return [bytes((ZEROS | _MORE_ZEROS,))] * whole + ([bytes((ZEROS | rest - 1,))] if rest else [])


#: What is saved by shorter varints is more than a byte from so many bits on, and less than that of so many bits in all.
_SHIFTED_BITS, _COARSE_BITS = 7, 64


class _Choice:
    """All columns, told in one way. costs: by column, about how many bits it takes."""

    def __init__(self, code: int, lag: int, numbers: Words) -> None:
        self._code, self._lag, self._numbers = code, lag, numbers
        rest = numbers[:, lag:] - numbers[:, : numbers.shape[1] - lag] if lag else numbers
        self._least = rest.min(axis=1)
        self._above = (rest - self._least[:, None]).view(np.uint64)
        self._used = np.bitwise_or.reduce(self._above, axis=1)
        #: Low bits that are 0 in all numbers, and in what is told of rows.
        self._shift = _low_zeros(np.bitwise_or.reduce(numbers, axis=1).view(np.uint64))
        self._own_shift = _low_zeros(self._used)
        first = numbers[:, :lag].copy()
        first[:, 1:] -= numbers[:, : max(lag - 1, 0)]
        once = np.concatenate((first, self._least[:, None]), axis=1) >> self._shift[:, None]
        self._first = first
        width = _about_bits(self._used) - self._own_shift
        self.costs = rest.shape[1] * width * (self._used > 0) + _about_bits(np.abs(once).view(np.uint64)).sum(axis=1)
        self.costs = self.costs + 8 * lag + 0.1 * (code > 0)

    def write(self, column: int, parts: list[bytes]) -> None:
        used, shift = int(self._used[column]), int(self._shift[column])
        code = self._code | (BITS if used else CONSTANT)
        coarser = (int(self._own_shift[column]) - shift) * self._above.shape[1] if used else 0
        if coarser < _COARSE_BITS and (used or self._lag > 1 or shift >= _SHIFTED_BITS):
            parts.append(bytes((code | CHAINED, shift)))
            parts += [sint(value) for value in (self._first[column] >> shift).tolist()]
            parts.append(sint(int(self._least[column]) >> shift))
        else:
            parts.append(bytes((code,)))
            parts += [sint(value) for value in self._numbers[column, : self._lag].tolist()]
            parts.append(sint(int(self._least[column])))
            shift = int(self._own_shift[column])
            parts.append(bytes((shift,)) if used else b"")
        if used:
            width = used.bit_length() - shift
            parts += (bytes((width,)), _in_bits(self._above[column] >> np.uint64(shift), width))


def _low_zeros(words: NDArray[np.uint64]) -> NDArray[np.intp]:
    """How many low bits of each are 0; 0 of 0."""
    lowest: NDArray[np.uint64] = words & (~words + np.uint64(1))
    return np.where(words > 0, np.frexp(lowest.astype(np.float64))[1] - 1, 0)


def _about_bits(words: NDArray[np.uint64]) -> NDArray[np.intp]:
    """How many bits the numbers have; one more for some of more than 53."""
    return np.frexp(words.astype(np.float64))[1]


def _period(ranks: Words) -> int:
    """How many rows of a rank follow each other, as those of its groups do."""
    changes = np.flatnonzero(ranks[1:] != ranks[:-1])
    return min(int(changes[0]) + 1, 255) if changes.size else 1


def _in_bits(numbers: NDArray[np.uint64], width: int) -> bytes:
    bits = (numbers[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little").tobytes()


# --- reading ----------------------------------------------------------------------------------------------------------
def fits(count: int, size: int) -> bool:
    """Whether a reader takes so many rows in packed ones of so many bytes."""
    return count <= min(MAX_ROWS, size + MORE_ROWS)


def unpack_by_columns(content: bytes, layout: bytes, unknown: bytes, limit: int) -> bytes | None:
    """As ``_packed_rows.unpack`` does in C; None for what is not packed rows, or more rows than ``limit``."""
    reader = PackedReader(content)
    try:
        count, period, columns = reader.varint(), reader.varint(), reader.varint()
        if count > limit or not 1 <= period <= 255 or columns > MAX_COLUMNS:
            return None
        rows = np.frombuffer(unknown * count, np.uint8).reshape(count, len(unknown)).copy()
        before = np.zeros(count, np.uint64)
        for column, words in enumerate(_columns(reader, count, period, columns)):
            if words is None:
                return None
            before = words + before if reader.is_of_column else words
            if 3 * column < len(layout):
                place, size = int.from_bytes(layout[3 * column : 3 * column + 2], "little"), layout[3 * column + 2]
                rows[:, place : place + size] = before.view(np.uint8).reshape(count, 8)[:, :size]
    except IndexError:
        return None
    return rows.tobytes() if reader.is_at_end else None


def _columns(reader: PackedReader, count: int, period: int, columns: int) -> Iterator[NDArray[np.uint64] | None]:
    """Each column but for what is of the column before it; None: it cannot be read."""
    zeros = 0
    for _ in range(columns):
        code = reader.byte() if not zeros else ZEROS | zeros - 1
        if code & ZEROS and code <= ZEROS | _MORE_ZEROS:
            zeros = code & _MORE_ZEROS
            reader.is_of_column = False
            yield np.zeros(count, np.uint64)
            continue
        reader.is_of_column = bool(code & OF_COLUMN)
        words = _column(reader, code, count, period)
        yield words
        if words is None:
            return
    if zeros:
        yield None


def _column(reader: PackedReader, code: int, count: int, period: int) -> NDArray[np.uint64] | None:
    """One column behind its code, as ``_columns`` gives it."""
    if code & (OF_ROW | OF_PERIOD) == OF_ROW | OF_PERIOD or code >= ZEROS:
        return None
    shift = reader.byte() if code & CHAINED else 0
    if shift > 63:
        return None
    lag = min(1 if code & OF_ROW else period if code & OF_PERIOD else 0, count)
    first = np.array([reader.signed() for _ in range(lag)], np.uint64) << np.uint64(shift)
    words: NDArray[np.uint64] = np.full(count, reader.signed(), np.uint64) << np.uint64(shift)
    words[:lag] = np.cumsum(first, dtype=np.uint64) if code & CHAINED else first
    if code & BITS:
        if not code & CHAINED:
            shift = reader.byte()
        width = reader.byte()
        if shift > 63 or not 1 <= width <= 64 or shift + width > 64:
            return None
        size = (count - lag) * width
        raw = np.frombuffer(reader.take(-(-size // 8)), np.uint8)
        bits = np.unpackbits(raw, count=size, bitorder="little")
        powers = np.uint64(1) << np.arange(width, dtype=np.uint64)
        numbers = (bits.reshape(count - lag, width).astype(np.uint64) * powers).sum(axis=1, dtype=np.uint64)
        words[lag:] += numbers << np.uint64(shift)
    for begin in range(lag):
        words[begin::lag] = np.cumsum(words[begin::lag], dtype=np.uint64)
    return words


class PackedReader:
    """Numbers out of bytes, one after the other. Each method raises IndexError beyond the end."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0
        self.is_of_column = False

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        return self._place == len(self._content)

    def byte(self) -> int:
        """One byte. Raises IndexError."""
        self._place += 1
        return self._content[self._place - 1]

    def varint(self) -> int:
        """A number in base 128, of 64 bits at most. Raises IndexError."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if value > _MASK:
                    raise IndexError("more than 64 bits")
                return value
            if shift > 63:
                raise IndexError("more than 64 bits")

    def signed(self) -> int:
        """A zigzag varint; of 64 bits, as an unsigned number. Raises IndexError."""
        zigzag = self.varint()
        return (zigzag >> 1) ^ (_MASK if zigzag & 1 else 0)

    def rest(self) -> bytes:
        """All that is left."""
        return self._content[self._place :]

    def take(self, size: int) -> bytes:
        """So many bytes. Raises IndexError."""
        if self._place + size > len(self._content):
            raise IndexError("beyond the end")
        self._place += size
        return self._content[self._place - size : self._place]
