"""Lists of groups that a range has told its job's shard: a node has the same in each flush, and they are most of it.

The shard keeps them as rows, so that what it knows is what was told, whatever is started anew: its operators get each
list whole, as one object, as in the embedded engine. A range remembers what it has told, and after a start tells all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache

from ...telemetry.records import Group
from ..operator import Table

Groups = tuple[Group, ...]
_FIELDS = tuple(each.name for each in fields(Group))
#: Of one shard; some of each node of the largest jobs. The oldest goes first, and is told again.
MOST_LISTS = 65_536
#: What was told is told again after so long, by the bus's stamps: it may have been forgotten.
AGAIN_NS = 60_000_000_000


def written_group(group: Group) -> list[object]:
    """Its fields, for JSON."""
    return [getattr(group, name) for name in _FIELDS]


def read_group(told: Sequence[object]) -> Group:
    """Of ``written_group``. Raises TypeError for what is none."""
    return Group(**dict(zip(_FIELDS, told, strict=False)))  # type: ignore[arg-type]


@lru_cache(maxsize=MOST_LISTS)
def digest_of(groups: Groups) -> str:
    """What stands for a list: made of all that it says."""
    text = json.dumps([written_group(group) for group in groups])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class KnownLists:
    """Lists by their digests, kept as rows of ``table``."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._lists: dict[str, Groups] = {}
        for digest, row in list(table.rows()):
            try:
                self._lists[digest] = tuple(read_group(each) for each in json.loads(bytes(row)))
            except (ValueError, TypeError):  # damage: it is told again
                table.delete(digest)

    def get(self, digest: str) -> Groups:
        """No groups where it is not known."""
        return self._lists.get(digest, ())

    def put(self, digest: str, groups: Groups) -> None:
        """Keeps a list; one that is known stays the object that it is."""
        known = self._lists.pop(digest, None)
        self._lists[digest] = groups if known is None else known
        if known is None:
            self._table.put(digest, json.dumps([written_group(group) for group in groups]).encode())
        if len(self._lists) > MOST_LISTS:
            oldest = next(iter(self._lists))
            del self._lists[oldest]
            self._table.delete(oldest)


class ToldLists:
    """What a range has told, by shard of jobs; of this process alone."""

    def __init__(self) -> None:
        self._told_ns: dict[tuple[str, str], int] = {}

    def is_known(self, shard: str, digest: str, stamp_ns: int) -> bool:
        """Whether the shard was told the list a moment ago; else it is told it now."""
        told_ns = self._told_ns.get((shard, digest))
        if told_ns is not None and 0 <= stamp_ns - told_ns < AGAIN_NS:
            return True
        if len(self._told_ns) >= MOST_LISTS:
            self._told_ns.clear()
        self._told_ns[(shard, digest)] = stamp_ns
        return False
