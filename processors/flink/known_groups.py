"""Groups that a range has told its job's shard: they are most of what a node tells, and the same in each flush.

The shard keeps them as rows, so that what it knows is what was told, whatever is started anew: its operators get each
list of groups whole, as one object, as in the embedded engine. A range remembers what it has told, and after a start
tells all again.
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
#: Of one shard; of the largest jobs some of each node. The oldest goes first, and is told again.
MOST_GROUPS, MOST_LISTS = 1 << 17, 1 << 16
#: What was told is told again after so long, by the bus's stamps: it may have been forgotten.
AGAIN_NS = 60_000_000_000


def written_group(group: Group) -> list[object]:
    """Its fields, for JSON."""
    return [getattr(group, name) for name in _FIELDS]


def read_group(told: Sequence[object]) -> Group:
    """Of ``written_group``. Raises TypeError for what is none."""
    return Group(**dict(zip(_FIELDS, told, strict=False)))  # type: ignore[arg-type]


@lru_cache(maxsize=MOST_GROUPS)
def digest_of(group: Group) -> str:
    """What stands for a group: made of all that it says."""
    return hashlib.blake2b(json.dumps(written_group(group)).encode(), digest_size=12).hexdigest()


class KnownGroups:
    """Groups by their digests, kept as rows of ``table``; and lists of them, each as one object."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._groups: dict[str, Group] = {}
        self._lists: dict[tuple[str, ...], Groups] = {}
        for digest, row in list(table.rows()):
            try:
                self._groups[digest] = read_group(json.loads(bytes(row)))
            except (ValueError, TypeError):  # damage: it is told again
                table.delete(digest)

    def put(self, digest: str, group: Group) -> None:
        """Keeps a group that is told."""
        if self._groups.pop(digest, None) is None:
            self._table.put(digest, json.dumps(written_group(group)).encode())
        self._groups[digest] = group
        if len(self._groups) > MOST_GROUPS:
            oldest = next(iter(self._groups))
            del self._groups[oldest]
            self._table.delete(oldest)

    def list_of(self, digests: tuple[str, ...]) -> Groups:
        """These groups in this order; in place of one that was forgotten a group that no operator knows."""
        found = self._lists.get(digests)
        if found is None:
            found = tuple([self._groups.get(digest) or Group(uid=digest, name="") for digest in digests])
            if len(self._lists) >= MOST_LISTS:
                self._lists.clear()
            if all(digest in self._groups for digest in digests):
                self._lists[digests] = found
        return found


class ToldGroups:
    """What a range has told, by shard of jobs; of this process alone."""

    def __init__(self) -> None:
        self._told_ns: dict[tuple[str, str], int] = {}

    def is_known(self, shard: str, digest: str, stamp_ns: int) -> bool:
        """Whether the shard was told the group a moment ago; else it is told it now."""
        told_ns = self._told_ns.get((shard, digest))
        if told_ns is not None and 0 <= stamp_ns - told_ns < AGAIN_NS:
            return True
        if len(self._told_ns) >= MOST_GROUPS:
            self._told_ns.clear()
        self._told_ns[(shard, digest)] = stamp_ns
        return False
