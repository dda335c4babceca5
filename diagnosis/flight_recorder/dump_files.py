"""Files of dumps -> one dump per rank. The bytes come from the caller; this never opens a file.

A file holds one rank's dump (pickle or JSON, the rank at the end of its name or inside) or, in JSON, those of many
ranks, as a mapping from rank to dump or as a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from .pickle_values import BadPickle, load_pickle
from .rank_dump import MAX_RANK, RankDump, decode_dump, is_dump

#: A ring of 20,000 entries with stacks is 20 MB; JSON may hold many ranks, and its values can be counted beforehand.
MAX_PICKLE_BYTES = 64 << 20
MAX_JSON_BYTES = 256 << 20
MAX_CONTAINERS = 4_000_000
MAX_VALUES = 16_000_000
#: Entries kept over all ranks: about 1 GB at the very most, and thousands per rank in any job that one machine reads.
MAX_ENTRIES = 1_000_000
MIN_ENTRIES_PER_RANK = 64

_JSON_START = re.compile(rb"\s*[\[{]")
_NAMED_RANK = re.compile(r"rank[_\-.]?(\d{1,8})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,8})(?=\D*$)")
_ENDING = re.compile(r"\.(json|pickle|pkl|p|bin|txt|trace|dump|fr)$", re.IGNORECASE)


class BadDump(ValueError):
    """A file that is no flight-recorder dump; the text is one line that says why."""


class DumpFiles:
    """Collects dumps file by file. ``files``: how many there will be, which bounds what is kept of each."""

    def __init__(self, files: int) -> None:
        self._keep = max(MIN_ENTRIES_PER_RANK, MAX_ENTRIES // max(1, files))
        self.dumps: dict[int, RankDump] = {}
        self.notes: list[str] = []

    def add(self, name: str, data: bytes) -> None:
        """Decodes a file's dumps and keeps the newest of each rank; what is odd is noted in ``notes``.

        Raises BadDump; what was collected before stays.
        """
        found = list(dumps_in(name, data))
        if not found:
            raise BadDump("holds no flight-recorder dump (no list of entries)")
        keep = max(MIN_ENTRIES_PER_RANK, min(self._keep, MAX_ENTRIES // len(found)))
        for rank, raw in found:
            dump = decode_dump(raw, rank, name, keep=keep)
            if dump.unread:
                self.notes.append(f"{name}: {dump.unread} entries of rank {rank} make no sense and were left out")
            if (other := self.dumps.get(rank)) is not None:
                newer = dump if _newest_ns(dump) >= _newest_ns(other) else other
                self.notes.append(f"rank {rank} is in {other.source} and in {name}: {newer.source} is newer and counts")
                dump = newer
            self.dumps[rank] = dump


def _newest_ns(dump: RankDump) -> int:
    return max((entry.created_ns for entry in dump.entries), default=0)


def dumps_in(name: str, data: bytes) -> Iterator[tuple[int, object]]:
    """(rank, decoded dump) of each dump in a file. Raises BadDump for what is none, or of no known rank."""
    value = _decoded(data)
    if is_dump(value):
        inside = _rank_number(value.get("rank")) if isinstance(value, Mapping) else None
        rank = inside if inside is not None else rank_in_name(name)
        if rank is None:
            raise BadDump(
                "is a dump, but neither its name nor its content says of which rank: end the name in the rank"
            )
        yield rank, value
    elif isinstance(value, Mapping):
        if len(value) == 1 and not any(is_dump(one) for one in value.values()):
            value = next(iter(value.values()))
        if isinstance(value, Mapping):
            for key, one in value.items():
                if is_dump(one):
                    inside = _rank_number(one.get("rank")) if isinstance(one, Mapping) else None
                    rank = inside if inside is not None else rank_in_name(str(key))
                    if rank is not None:
                        yield rank, one
    elif isinstance(value, list):
        for position, one in enumerate(value):
            if is_dump(one):
                inside = _rank_number(one.get("rank")) if isinstance(one, Mapping) else None
                yield inside if inside is not None else position, one


def _decoded(data: bytes) -> object:
    if not data:
        raise BadDump("is empty: the rank was ended while it dumped")
    is_json = _JSON_START.match(data) is not None
    if len(data) > (MAX_JSON_BYTES if is_json else MAX_PICKLE_BYTES):
        raise BadDump(f"is larger than {(MAX_JSON_BYTES if is_json else MAX_PICKLE_BYTES) >> 20} MiB")
    if not is_json:
        try:
            return load_pickle(data)
        except BadPickle as wrong:
            raise BadDump(str(wrong)) from None
    # Every container and every value of a JSON text has one of these characters before it: an upper bound of both.
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS or data.count(b",") > MAX_VALUES:
        raise BadDump(f"has more than {MAX_CONTAINERS} containers or {MAX_VALUES} values")
    try:
        decoded: object = json.loads(data.decode("utf-8", "replace"))
    except json.JSONDecodeError as wrong:
        raise BadDump(f"is cut or no JSON: {wrong.msg} (line {wrong.lineno}, column {wrong.colno})") from None
    except (ValueError, RecursionError) as wrong:
        raise BadDump(f"is no JSON of a dump: {str(wrong)[:80]}") from None
    return decoded


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name or a key ends in: "nccl_trace_rank_12", "_dump_3.pickle", "7". None: in none."""
    stem = _ENDING.sub("", name.replace("\\", "/").rpartition("/")[2])
    found = _NAMED_RANK.search(stem) or _LAST_NUMBER.search(stem)
    return int(found[1]) if found and int(found[1]) < MAX_RANK else None


def _rank_number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_RANK else None
