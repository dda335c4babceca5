"""The process groups of one rank: their rows of its progress page, and what the agent knows of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...telemetry import ring_layout as L
from ..rings.progress_page import GroupRow, parse_group_row


@dataclass(slots=True, kw_only=True)
class RankGroups:
    """rows: the last good one by its index in the page. Owned by the polling thread."""

    rows: dict[int, GroupRow] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)  # row -> agent-wide number
    uids: dict[int, str] = field(default_factory=dict)  # row -> what all ranks call the group
    on_device: set[int] = field(default_factory=set)  # rows of groups whose operations a device does
    default: int = -1  # agent-wide number of the default group, -1 not known yet
    recorder_numbers: tuple[int, int] = (-1, -1)  # flight recorder: enqueued, completed of the default group
    recorder_moved_ns: int = 0
    _seen_bytes: bytes = b""

    def are_unmoved(self, page: tuple[bytes, bytes]) -> bool:
        """True if the group rows are byte for byte those of the previous call; remembers them."""
        part = page[1][L.FIRST_GROUP_ROW * L.ROW_BYTES :]
        same = part == self._seen_bytes
        self._seen_bytes = part
        return same

    def parse(self, page: tuple[bytes, bytes]) -> dict[int, GroupRow]:
        """Updates ``rows`` by those rows of a page that can be read, and returns it.

        page: two reads of the same page.
        """
        first, second = page
        for index in self.numbers:
            row = parse_group_row(first, second, index)
            if row is not None:
                self.rows[index] = row
        return self.rows

    def open_since_ns(self, index: int) -> int:
        """Since when the oldest open operation of a group (by row) has kept it; 0 = none open, or it cannot be told.

        A host launches steps ahead of its device, so there an operation counts from when the device began it, or, where
        nobody tells, from the device's last move.
        """
        group = self.rows[index]
        if group.open <= 0 or not group.oldest_open_ns:
            return 0
        if index not in self.on_device:
            return group.oldest_open_ns
        if group.completed <= 0:
            return 0  # no end was ever seen in it: it may be that nobody tells them
        if group.started > group.completed:
            return max(group.oldest_open_ns, group.started_ns)
        ended_ns = [self.rows[other].complete_ns for other in self.on_device if other in self.rows]
        return max(group.oldest_open_ns, *ended_ns)
