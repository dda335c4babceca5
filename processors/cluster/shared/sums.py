"""Sums over 28 days: hours of every node in jobs, and how often it was to blame, for the fleet and for each node.

A row per node with the hours of each day and the blame of each incident; so a label of a person, or a better cause,
takes a count back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...operator import Table
from .placements import DAY_S, KEPT_S, Attempt

_FLEET = "*"
MAX_INCIDENTS_PER_NODE = 64


#: Job, weight, day and Unix seconds of an incident that a node is to blame for.
Blame = tuple[str, float, str, float]


@dataclass(slots=True, kw_only=True)
class NodeSums:
    """Sums of a node, or of the fleet. hours: in jobs, by day. blame: by incident.

    days: blame by day, of the whole fleet alone; None of a node.
    """

    hours: dict[str, float] = field(default_factory=dict)
    blame: dict[str, Blame] = field(default_factory=dict)
    days: dict[str, float] | None = None

    def pack(self) -> bytes:
        """These sums as JSON bytes, one row of the operator's state; ``Sums`` reads it back."""
        fields = {"hours": self.hours, "blame": self.blame}
        row = fields if self.days is None else {**fields, "days": self.days}
        return json.dumps(row, separators=(",", ":")).encode()


class Sums:
    """Hours and blame of nodes and of the fleet, over a table whose rows are read as they are needed."""

    def __init__(self, table: Table, note_problem: Callable[[str], None] = lambda _what: None) -> None:
        """note_problem: takes what is wrong with a row, in words; a row that cannot be read counts as none."""
        self.table, self._note_problem = table, note_problem
        self._rows: dict[str, NodeSums] = {}

    def add_hours(self, attempt: Attempt, until: float, *, sign: float = 1.0) -> None:
        """Adds the hours of the attempt's nodes from its begin until ``until`` (Unix seconds). sign -1: takes them
        back.
        """
        hours = max(0.0, until - attempt.begin) / 3600.0 * sign
        if not hours:
            return
        day = str(int(until // DAY_S))
        for node in attempt.nodes:
            row = self._read(node)
            row.hours[day] = row.hours.get(day, 0.0) + hours
            self._write(node, row, until)
        fleet = self._read(_FLEET)
        fleet.hours[day] = fleet.hours.get(day, 0.0) + hours * len(attempt.nodes)
        self._write(_FLEET, fleet, until)

    def blame(
        self, incident: str, job: str, weights: Mapping[str, float], before: Mapping[str, float], time: float
    ) -> None:
        """Sets how much each node is to blame for an incident (weights), and takes back what it was ``before``.

        time: Unix seconds.
        """
        fleet, day = self._read(_FLEET), str(int(time // DAY_S))
        days = fleet.days if fleet.days is not None else {}
        for node in sorted({*before, *weights}):
            row = self._read(node)
            known = row.blame.pop(incident, None)
            if known is not None:
                days[known[2]] = days.get(known[2], 0.0) - known[1]
            weight = weights.get(node, 0.0)
            if weight > 0:
                row.blame[incident] = (job, weight, day, time)
                days[day] = days.get(day, 0.0) + weight
                while len(row.blame) > MAX_INCIDENTS_PER_NODE:
                    del row.blame[next(iter(row.blame))]
            self._write(node, row, time)
        fleet.days = days
        self._write(_FLEET, fleet, time)

    def has_blame(self, node: str, incident: str) -> bool:
        """Whether the node is to blame for it by now."""
        return incident in self._read(node).blame

    def of(self, node: str, now: float) -> tuple[float, float, dict[str, Blame]]:
        """(failures, hours in jobs, blame by incident) of the node in the last 28 days. now: Unix seconds."""
        row = self._read(node)
        blame = {id_: entry for id_, entry in row.blame.items() if entry[3] > now - KEPT_S}
        return sum(entry[1] for entry in blame.values()), _recent(row.hours, now), blame

    def of_fleet(self, now: float) -> tuple[float, float]:
        """Failures and node-hours of all nodes in the last 28 days. now: Unix seconds."""
        fleet = self._read(_FLEET)
        return max(0.0, _recent(fleet.days or {}, now)), _recent(fleet.hours, now)

    def _read(self, node: str) -> NodeSums:
        known = self._rows.get(node)
        if known is None:
            try:
                known = _sums_of(self.table.get(node) or b"{}", of_fleet=node == _FLEET)
            except (ValueError, TypeError, AttributeError, OverflowError):
                known = NodeSums(days={} if node == _FLEET else None)
                self._note_problem("sums of a node that could not be read")
            self._rows[node] = known
        return known

    def _write(self, node: str, row: NodeSums, now: float) -> None:
        oldest = int((now - KEPT_S) // DAY_S)
        row.hours = {day: value for day, value in row.hours.items() if int(day) >= oldest}
        if row.days is not None:
            row.days = {day: value for day, value in row.days.items() if int(day) >= oldest}
        row.blame = {id_: entry for id_, entry in row.blame.items() if entry[3] > now - KEPT_S}
        if row.hours or row.blame or node == _FLEET:
            self.table.put(node, row.pack())
        else:
            self.table.delete(node)
            self._rows.pop(node, None)


def _sums_of(packed: bytes, *, of_fleet: bool) -> NodeSums:
    """What ``NodeSums.pack`` wrote. Raises ValueError, TypeError, AttributeError or OverflowError for anything else."""
    row = json.loads(packed)
    return NodeSums(
        hours=_by_day(row.get("hours", {})),
        blame={
            str(id_): (str(job), float(weight), str(int(day)), float(time))
            for id_, (job, weight, day, time) in row.get("blame", {}).items()
        },
        days=_by_day(row.get("days", {})) if of_fleet else None,
    )


def _by_day(told: Mapping[str, float]) -> dict[str, float]:
    return {str(int(day)): float(value) for day, value in told.items()}


def _recent(days: Mapping[str, float], now: float) -> float:
    oldest = int((now - KEPT_S) // DAY_S)
    return sum(value for day, value in days.items() if int(day) >= oldest)
