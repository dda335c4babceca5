"""Sums over 28 days: hours of every node in jobs, and how often it was to blame, for the fleet and for each node.

A row per node with the hours of each day and the blame of each incident; so a label of a person, or a better cause,
takes a count back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...operator import Table
from .placements import DAY_S, KEPT_S, Attempt

_FLEET = "*"
MAX_INCIDENTS_PER_NODE = 64


class Sums:
    """Rows are read as they are needed."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._rows: dict[str, dict[str, Any]] = {}

    def add_hours(self, attempt: Attempt, until: float, *, sign: float = 1.0) -> None:
        """The attempt's nodes were in use from its begin until then."""
        hours = max(0.0, until - attempt.begin) / 3600.0 * sign
        if not hours:
            return
        day = str(int(until // DAY_S))
        for node in attempt.nodes:
            row = self._read(node)
            row["hours"][day] = row["hours"].get(day, 0.0) + hours
            self._write(node, row, until)
        fleet = self._read(_FLEET)
        fleet["hours"][day] = fleet["hours"].get(day, 0.0) + hours * len(attempt.nodes)
        self._write(_FLEET, fleet, until)

    def blame(
        self, incident: str, job: str, weights: Mapping[str, float], before: Mapping[str, float], time: float
    ) -> None:
        """Set how much each node is to blame for an incident, and take back what it was ``before``."""
        fleet, day = self._read(_FLEET), str(int(time // DAY_S))
        for node in sorted({*before, *weights}):
            row = self._read(node)
            known = row["blame"].pop(incident, None)
            if known is not None:
                fleet["days"][known[2]] = fleet["days"].get(known[2], 0.0) - known[1]
            weight = weights.get(node, 0.0)
            if weight > 0:
                row["blame"][incident] = [job, weight, day, time]
                fleet["days"][day] = fleet["days"].get(day, 0.0) + weight
                while len(row["blame"]) > MAX_INCIDENTS_PER_NODE:
                    del row["blame"][next(iter(row["blame"]))]
            self._write(node, row, time)
        self._write(_FLEET, fleet, time)

    def of(self, node: str, now: float) -> tuple[float, float, dict[str, list[Any]]]:
        """(failures, hours, blame by incident: [job, weight, day, time]) of the last 28 days."""
        row = self._read(node)
        blame = {id_: entry for id_, entry in row["blame"].items() if entry[3] > now - KEPT_S}
        return sum(entry[1] for entry in blame.values()), _recent(row["hours"], now), blame

    def of_fleet(self, now: float) -> tuple[float, float]:
        fleet = self._read(_FLEET)
        return max(0.0, _recent(fleet["days"], now)), _recent(fleet["hours"], now)

    def _read(self, node: str) -> dict[str, Any]:
        known = self._rows.get(node)
        if known is None:
            row = self.table.get(node)
            known = json.loads(row) if row else {"hours": {}, "blame": {}}
            if node == _FLEET:
                known.setdefault("days", {})
            self._rows[node] = known
        return known

    def _write(self, node: str, row: dict[str, Any], now: float) -> None:
        oldest = int((now - KEPT_S) // DAY_S)
        for name in ("hours", "days"):
            if name in row:
                row[name] = {day: value for day, value in row[name].items() if int(day) >= oldest}
        row["blame"] = {id_: entry for id_, entry in row["blame"].items() if entry[3] > now - KEPT_S}
        if row["hours"] or row["blame"] or node == _FLEET:
            self.table.put(node, json.dumps(row, separators=(",", ":")).encode())
        else:
            self.table.delete(node)
            self._rows.pop(node, None)


def _recent(days: Mapping[str, float], now: float) -> float:
    oldest = int((now - KEPT_S) // DAY_S)
    return sum(value for day, value in days.items() if int(day) >= oldest)
