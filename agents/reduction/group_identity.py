"""Which process group is which: ids that are the same on every node and in every replay. Pure, but a registry.

Two groups over the same ranks (a world and a mesh dimension) are two groups: the name and the ordinal, how many groups
of that name and list came before, tell them apart.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...telemetry.printable import printable
from ...telemetry.records import Group
from ...telemetry.redaction import redact
from ...telemetry.tables import NO_GROUP

_MAX_TEXT = 256
_MAX_MEMBERS = 1 << 22
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def group_uid(name: str, ranks: str, ordinal: int) -> str:
    """16 hexadecimal digits. ranks: as ``format_ranks`` writes them, without strides.

    ordinal: how many groups with equal name and ranks came before, from 0.
    """
    return hashlib.blake2b("\0".join(("group", name, ranks, str(ordinal))).encode(), digest_size=8).hexdigest()


def _text(value: Any) -> str:
    """Made printable here, where it enters: a group's name is the program's. Secrets go first: keys have lines."""
    return printable(redact(value), _MAX_TEXT) if isinstance(value, str) else ""


def _merged(text: str) -> list[tuple[int, int]]:
    """The ranges of a list of ranks, in order and none beside another: as ``format_ranks`` would write all of them.

    Nothing grows with what a range claims. Raises ValueError for a list of something else, or of more than any job has.
    """
    ranges: list[tuple[int, int]] = []
    for part in filter(None, text.split(",")):
        match = _RANGE.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if high - low >= _MAX_MEMBERS or high >= 1 << 31:
            raise ValueError(f"group members {text[:60]!r} are not ranges of ranks")
        if low <= high:
            ranges.append((low, high))
        elif match is None:
            raise ValueError(f"group members {text[:60]!r} are not ranges of ranks")
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    if sum(high - low + 1 for low, high in merged) > _MAX_MEMBERS:
        raise ValueError(f"group members {text[:60]!r} are more than any job has")
    return merged


def group_from_definition(payload: Mapping[str, Any]) -> Group:
    """A Group from the JSON of a ring's definition. Raises ValueError for members that cannot be read."""
    ranks_text = payload.get("ranks")
    if not isinstance(ranks_text, str) or len(ranks_text) > 1 << 16:
        raise ValueError("group definition without a member list")
    ranges = _merged(ranks_text)
    ranks = ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)
    name = _text(payload.get("name"))
    ordinal = payload.get("ordinal")
    ordinal = ordinal if isinstance(ordinal, int) and not isinstance(ordinal, bool) else 0
    timeout = payload.get("timeout_s")
    timeout_s = float(timeout) if isinstance(timeout, int | float) and math.isfinite(timeout) else 0.0
    return Group(
        uid=group_uid(name, ranks, ordinal),
        name=name,
        desc=_text(payload.get("desc")),
        ranks=ranks,
        size=sum(high - low + 1 for low, high in ranges),
        backend=_text(payload.get("backend")),
        timeout_s=max(timeout_s, 0.0),
        is_default=payload.get("default") is True,
    )


#: Columns that are remembered: so many bytes, and so many of them.
_SHORT_COLUMN_BYTES, _MOST_COLUMNS = 512, 4096


class AgentGroupRegistry:
    """Numbers groups agent-wide, so that rows of many rings can be handled in one array."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._number_of: dict[Group, int] = {}
        #: By the numbers of a column: a node's rows are of the same groups, flush after flush.
        self._of_column: dict[bytes, tuple[tuple[Group, ...], np.ndarray]] = {}

    def number(self, group: Group) -> int:
        """The group's agent-wide number, a new one where it is not known yet.

        NO_GROUP once 65534 groups exist: later ones are blind. A restarted job's groups are equal to those before and
        keep their numbers, so restarts do not use them up.
        """
        known = self._number_of.get(group)
        if known is not None:
            return known
        if len(self.groups) >= NO_GROUP - 1:
            return NO_GROUP
        self.groups.append(group)
        self._number_of[group] = len(self.groups) - 1
        return len(self.groups) - 1

    def for_block(self, numbers: np.ndarray) -> tuple[tuple[Group, ...], np.ndarray]:
        """The groups of a block, and the column as indexes into them.

        numbers: one agent-wide group number per row of the block.
        """
        if not len(numbers):
            return (), numbers
        column = numbers.tobytes() if numbers.nbytes <= _SHORT_COLUMN_BYTES else b""
        known = self._of_column.get(column)
        if known is not None:
            return known
        found = self._indexed(numbers)
        if column:
            if len(self._of_column) >= _MOST_COLUMNS:
                self._of_column.clear()
            self._of_column[column] = found
        return found

    def _indexed(self, numbers: np.ndarray) -> tuple[tuple[Group, ...], np.ndarray]:
        used = np.zeros(len(self.groups), dtype=bool)
        used[numbers] = True
        where = used.nonzero()[0].tolist()
        if len(where) == len(used):  # the usual case: every group of the node is in the block
            return tuple(self.groups), numbers.copy()
        index_of = np.zeros(len(used), dtype=np.uint16)
        index_of[where] = range(len(where))
        return tuple(self.groups[number] for number in where), index_of[numbers]
