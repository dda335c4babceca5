"""All blocks of one flush in one record: tables in packed rows (``packed_rows``), and their groups once for all.

What a large job's nodes send (``agents.reduction.large_jobs``). The record is called ``PACKED``; readers of releases
before it pass it over, as they do with every name that they do not know. Its body is

  version (a byte), clock_offset_ns (zigzag varint), number of uids (varint), these (8 bytes each),
  and each table: its number (a byte), its bytes (varint), packed rows.

Groups are a list for people and programs in an attribute, as blocks have it; or, where that was told a moment ago, uids
alone, which stand for groups that the reader knows; or, where these were told a moment ago as well, one uid of all of
them (``uid_of_list``), and the tables have numbers of their own. A reader passes over tables whose numbers it does not
know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from . import attributes as names
from .block import MAX_ROWS, BlockError
from .otlp_wire import resource, sint, varint
from .packed_rows import LAYOUTS, MORE_ROWS, PackedReader, fits, pack_rows, unpack_by_columns
from .records import Block, Flush, Group, Identity
from .redaction import redact
from .tables import GROUPED_TABLES, TABLES
from .vocabulary import EventName

try:
    from ._packed_rows import unpack_flush as _unpack_flush
except ImportError:  # no compiler where this was installed
    _unpack_flush = None  # type: ignore[assignment]

PACKED = "whichrank.packed"
_VERSION = 1
#: Written numbers, of rows with the first codes of ``packed_rows`` alone: appended to, never changed.
_NUMBERS: dict[EventName, int] = {
    EventName.BLOCK_COLLECTIVES: 0,
    EventName.BLOCK_STEPS: 1,
    EventName.BLOCK_STEP_GROUPS: 2,
    EventName.BLOCK_DEVICE_STEPS: 3,
    EventName.BLOCK_PROGRESS: 4,
    EventName.BLOCK_GROUP_PROGRESS: 5,
}
#: Added to the numbers where rows may have all codes, which a reader that knows the first alone cannot read.
_WITH_ALL_CODES = 6
#: Added to these where the only uid is that of a list of groups.
_OF_LIST = 6
#: By its number: the table's name, and how its rows are made (``packed_rows.LAYOUTS``).
_KNOWN = 3 * tuple((name, *LAYOUTS[name]) for name, _ in sorted(_NUMBERS.items(), key=lambda item: item[1]))
#: Between the names in the text of who speaks, and its characters; a reader cuts what is much longer.
WHO_BETWEEN, _LONGEST_WHO = "\n", 1024
_UID_BYTES, _MOST_UIDS = 8, 1 << 12
#: Description of the group that stands for a list of them.
_LIST = "list"


class Packing(Enum):
    """How blocks are written: each by itself; packed, with all of their groups; packed, with the groups' uids alone."""

    NONE = "none"
    WHOLE = "whole"
    UIDS = "uids"


#: Name, and rows as bytes of ``TABLES[name]``.
Table = tuple[EventName, bytes]


class TaughtList(NamedTuple):
    """A list of groups that was told in an attempt: readers begin anew with the next one."""

    attempt: str
    uid: str


@dataclass(frozen=True, slots=True)
class PackedFlush:
    """uids: of the groups, where those are not told with it; of the list of them, where they are not told either."""

    clock_offset_ns: int
    uids: tuple[str, ...]
    tables: Sequence[Table]
    is_of_list: bool = False

    @property
    def groups(self) -> tuple[Group, ...]:
        """Stand-ins for the groups that are not told with it."""
        return referred_list(self.uids[0]) if self.is_of_list else referred(self.uids)


def can_be_packed(block: Block) -> bool:
    """Whether its rows are such as a reader takes."""
    if block.rows.dtype != TABLES[block.name] or not len(block.rows):
        return False
    return block.name not in GROUPED_TABLES or int(block.rows["group"].max()) < len(block.groups)


def groups_of(blocks: Iterable[Block]) -> tuple[Group, ...]:
    """The groups of all of them, each once."""
    return tuple(dict.fromkeys(group for block in blocks for group in block.groups))


def write_packed(
    blocks: Sequence[Block], packing: Packing, lists: set[TaughtList] | None = None
) -> tuple[bytes, tuple[Group, ...]] | None:
    """The body of a record of these blocks, which ``can_be_packed``, and the groups that have to be told with it.

    lists: of groups, which readers know; of one of these Packing.UIDS tells nothing else. What is told here is added.
    The result is None where some rows are so alike that a reader would not take them for the little that they are.
    """
    groups = groups_of(blocks)
    base, uids = _WITH_ALL_CODES, b""
    of_list = taught_list(blocks[0].identity.attempt, groups) if len(groups) > 1 else None
    is_whole = packing is not Packing.UIDS or not has_short_uids(groups)
    if not is_whole:
        uids = b"".join(bytes.fromhex(group.uid) for group in groups)
        if lists and of_list in lists:
            base, uids = base + _OF_LIST, bytes.fromhex(of_list.uid)
    parts = [bytes((_VERSION,)), sint(blocks[0].clock_offset_ns), varint(len(uids) // _UID_BYTES), uids]
    place = {group: number for number, group in enumerate(groups)}
    for block in blocks:
        rows = block.rows
        if block.name in GROUPED_TABLES and block.groups != groups:
            rows = rows.copy()
            rows["group"] = np.array([place[group] for group in block.groups], np.uint16)[rows["group"]]
        packed = pack_rows(block.name, rows)
        if not fits(len(rows), len(packed)):
            return None
        parts += [bytes((base + _NUMBERS[block.name],)), varint(len(packed)), packed]
    if lists is not None and of_list is not None:
        lists.add(of_list)
    return b"".join(parts), groups if is_whole else ()


@lru_cache(maxsize=1024)
def who_resource(identity: Identity) -> bytes | None:
    """A serialized resource that says in one short text who speaks: the usual one is a fourth of a packed flush.

    None for a rank, and for names of which a reader, or the agent's gate, could not tell one from the next.
    """
    job = identity.job, identity.owner, identity.attempt
    values = identity.cluster, identity.run, *job, identity.world, identity.node  # as names.WHO_NAMES has them
    who = WHO_BETWEEN.join(values)
    is_plain = who.count(WHO_BETWEEN) == len(values) - 1 and len(who) <= _LONGEST_WHO and redact(who) == who
    return resource({names.WHO: who}) if is_plain and identity.rank < 0 else None


def has_short_uids(groups: Iterable[Group]) -> bool:
    """Whether their uids are such as agents make: 16 hexadecimal digits."""
    return all(len(group.uid) == 2 * _UID_BYTES and set(group.uid) <= set("0123456789abcdef") for group in groups)


def read_packed(body: bytes) -> PackedFlush:
    """What ``write_packed`` wrote. Raises BlockError for what it did not."""
    if _unpack_flush is not None:
        found = _unpack_flush(body, _VERSION, _MOST_UIDS, _KNOWN, MAX_ROWS, MORE_ROWS)
        if found is not None:
            offset_ns, uids, tables, highest = found
            return _flush(offset_ns, _uids(uids), tables, highest)
    return flush_by_python(body)


def flush_by_python(body: bytes) -> PackedFlush:
    """The same without C, as ``_packed_rows.unpack_flush`` does it, which leaves it to this to say what is wrong.

    Raises BlockError.
    """
    reader = PackedReader(body)
    try:
        version = reader.byte()
        if version != _VERSION:
            raise BlockError(f"packed flush of version {version}, which is not known")
        offset_ns, count = reader.signed(), reader.varint()
        if count > _MOST_UIDS:
            raise BlockError(f"{count} groups are more than {_MOST_UIDS}")
        uids = _uids(reader.take(_UID_BYTES * count))
        tables, highest = _tables_by_python(reader)
    except IndexError as error:
        raise BlockError(f"packed flush of {len(body)} bytes: {error}") from None
    return _flush(offset_ns - (1 << 64 if offset_ns >> 63 else 0), uids, tables, highest)


def _flush(offset_ns: int, uids: tuple[str, ...], tables: Sequence[Table], highest: int) -> PackedFlush:
    """highest: number of a table that is known. Raises BlockError."""
    is_of_list = highest >= _WITH_ALL_CODES + _OF_LIST
    if is_of_list and len(uids) != 1:
        raise BlockError(f"packed flush: {len(uids)} uids are not one of a list of groups")
    return PackedFlush(offset_ns, uids, tables, is_of_list)


def _tables_by_python(reader: PackedReader) -> tuple[list[Table], int]:
    """Also the highest of their numbers. Raises BlockError; IndexError where bytes are missing."""
    tables: list[Table] = []
    highest = 0
    while not reader.is_at_end:
        number, packed = reader.byte(), reader.take(reader.varint())
        if number >= len(_KNOWN):
            continue
        highest = max(highest, number)
        name, layout, unknown = _KNOWN[number]
        rows = unpack_by_columns(packed, layout, unknown, min(MAX_ROWS, len(packed) + MORE_ROWS))
        if rows is None:
            raise BlockError(f"packed flush: {name.value} is no packed rows")
        tables.append((name, rows))
    return tables, highest


@lru_cache(maxsize=65_536)
def _uids(raw: bytes) -> tuple[str, ...]:
    return tuple(raw[begin : begin + _UID_BYTES].hex() for begin in range(0, len(raw), _UID_BYTES))


def blocks_of(flush: Flush) -> list[Block]:
    """The flush as the blocks that it was packed from."""
    return [
        Block(
            name=name,
            identity=flush.identity,
            rows=np.frombuffer(rows, TABLES[name]),
            groups=flush.groups if name in GROUPED_TABLES else (),
            clock_offset_ns=flush.clock_offset_ns,
            time_ns=flush.time_ns,
        )
        for name, rows in flush.tables
    ]


def is_reference(group: Group) -> bool:
    """Whether it only stands for a group (``referred``)."""
    return not (group.name or group.ranks or group.size)


def taught_list(attempt: str, groups: Iterable[Group]) -> TaughtList:
    """Of these groups in this order."""
    return TaughtList(attempt, uid_of_list(groups))


def uid_of_list(groups: Iterable[Group]) -> str:
    """What stands for these groups in this order: made of nothing but their uids, 16 hexadecimal digits as they are."""
    return _uid_of_list(tuple([group.uid for group in groups]))


@lru_cache(maxsize=65_536)
def _uid_of_list(uids: tuple[str, ...]) -> str:
    return hashlib.blake2b("\0".join(("list", *uids)).encode(), digest_size=_UID_BYTES).hexdigest()


@lru_cache(maxsize=65_536)  # equal lists are one object: whoever looks groups up remembers by it
def referred_list(uid: str) -> tuple[Group, ...]:
    """A stand-in for a whole list of groups that the reader knows, by ``uid_of_list``."""
    return (Group(uid=uid, name="", desc=_LIST),)


def list_referred(groups: tuple[Group, ...]) -> str:
    """The uid of the list that this stands for (``referred_list``); "" where it stands for none."""
    return groups[0].uid if len(groups) == 1 and groups[0].desc == _LIST and is_reference(groups[0]) else ""


@lru_cache(maxsize=65_536)  # equal lists are one object: whoever looks groups up remembers by it
def referred(uids: tuple[str, ...]) -> tuple[Group, ...]:
    """Stand-ins for groups that the reader knows: with their uids alone."""
    return tuple(Group(uid=uid, name="") for uid in uids)
