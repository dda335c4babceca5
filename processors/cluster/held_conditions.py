"""Working copies of what entities' rows of conditions hold, so that one change costs one condition, and not the row.

Bounded in bytes: of the copies, and of all rows together, which take their share from the entity that has most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..condition_document import ConditionReport, read_condition, write_condition
from ..operator import Table

#: Of the rows of all entities and clusters. Beyond that a cluster is cut that has more than its share.
MAX_ROW_BYTES = 128 << 20
#: Beyond its share a cluster's rows are cut to so much of it, so that it is not done for each condition.
_CUT_TO = 0.9
#: Of rows whose conditions are held.
MAX_HELD_BYTES = 48 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityConditions:
    """Of one entity, by name. written: each as it stands in the row, after its name. Not to be changed."""

    known: Mapping[str, ConditionReport] = field(default_factory=dict)
    written: Mapping[str, bytes] = field(default_factory=dict)
    row: bytes = b""

    def changed_to(self, known: Mapping[str, ConditionReport]) -> EntityConditions:
        """Those conditions in place of these; only what is new among them is written anew."""
        written = {
            key: self.written[key] if self.known.get(key) is condition else _written(key, condition)
            for key, condition in known.items()
        }
        row = b"{" + b",".join(written.values()) + b"}" if written else b""
        return EntityConditions(known=known, written=written, row=row)


def _written(key: str, condition: ConditionReport) -> bytes:
    return json.dumps({key: write_condition(condition)}, separators=(",", ":")).encode()[1:-1]


def read_row(row: bytes) -> EntityConditions:
    """The conditions of a row of this release or an earlier one. Raises ValueError, KeyError or TypeError for none."""
    known = {key: read_condition(each) for key, each in json.loads(row).items()}
    return EntityConditions(known=known, written={key: _written(key, each) for key, each in known.items()}, row=row)


def halved(conditions: EntityConditions) -> EntityConditions:
    """The newer half of them, those that last before those that are over; nothing of a single one."""
    known = conditions.known
    order = sorted(known, key=lambda key: (known[key].until is None, known[key].last))
    gone = set(order[: (len(order) + 1) // 2])
    return conditions.changed_to({key: each for key, each in known.items() if key not in gone})


class HeldConditions:
    """By cluster and entity: what is held, the longest unused first, and how many bytes each row has."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], EntityConditions] = {}
        self._held_bytes = 0
        self._sizes: dict[str, dict[str, int]] = {}
        self._totals: dict[str, int] = {}

    def clear(self) -> None:
        """Forgets all: rows may have been taken back."""
        self._held.clear()
        self._sizes.clear()
        self._totals.clear()
        self._held_bytes = 0

    def let_go(self, cluster: str) -> None:
        """Forgets a cluster: all its rows are deleted."""
        for key in [key for key in self._held if key[0] == cluster]:
            self._held_bytes -= len(self._held.pop(key).row)
        self._sizes.pop(cluster, None)
        self._totals.pop(cluster, None)

    def get(self, cluster: str, entity: str) -> EntityConditions | None:
        """What is held of an entity; None: nothing. It may be older than the row."""
        held = self._held.pop((cluster, entity), None)
        if held is not None:
            self._held[(cluster, entity)] = held
        return held

    def hold(self, cluster: str, entity: str, conditions: EntityConditions) -> None:
        """Holds what the entity's row says now."""
        before = self._held.pop((cluster, entity), None)
        self._held_bytes += len(conditions.row) - (len(before.row) if before is not None else 0)
        if conditions.row:
            self._held[(cluster, entity)] = conditions
        while self._held_bytes > MAX_HELD_BYTES:
            oldest = next(iter(self._held))
            self._held_bytes -= len(self._held.pop(oldest).row)
        if (sizes := self._sizes.get(cluster)) is not None:
            size = len(conditions.row)
            self._totals[cluster] += size - sizes.pop(entity, 0)
            if size:
                sizes[entity] = size

    def too_large(self, cluster: str, rows: Table) -> dict[str, int]:
        """Entities that have to be cut, and to how many bytes, so that the cluster has its share; {} mostly.

        rows: of the cluster's entities, which are looked through once.
        """
        sizes = self._sizes.get(cluster)
        if sizes is None:
            sizes = self._sizes[cluster] = {entity: len(row) for entity, row in rows.rows()}
            self._totals[cluster] = sum(sizes.values())
        share = MAX_ROW_BYTES // len(self._sizes)
        if self._totals[cluster] <= share or sum(self._totals.values()) <= MAX_ROW_BYTES:
            return {}
        most = _level(list(sizes.values()), share * _CUT_TO)
        return {entity: most for entity, size in sizes.items() if size > most}


def _level(sizes: list[int], room: float) -> int:
    """What each may have at most, so that all have room: the small are left as they are."""
    left, count = room, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            break
        left -= size
        count -= 1
    return int(left / max(count, 1))
