"""Faults of a node's chassis, as its management controller (BMC) tells them to ``ipmitool``. Text in, facts out. Pure.

``ipmitool sdr elist all`` tells how sensors stand now; ``ipmitool sel elist`` what has happened, in the order of its
records, most of it long ago. Which words are faults stands in chassis.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..telemetry.vocabulary import Action
from .data_file import read_toml

#: Sensors and records of one answer; a large node has some 300.
MAX_ROWS = 4096
_MAX_TEXT = 200
_ENTITY = re.compile(r"(\d{1,3})\.\d{1,3}")
_UNIT = re.compile(r"-?\d[\d.]*\s+([A-Za-z]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChassisFault:
    """condition: its name in chassis.toml. sensor: as the BMC names it. text: what it says."""

    condition: str
    sensor: str
    severity: str
    action: Action
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One record of the event log. number: of the record; the log may be cleared, and begins anew then.

    fault: None where it is none. is_over: it takes back what was told of this sensor before.
    """

    number: int
    sensor: str
    fault: ChassisFault | None
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    condition: str
    entities: frozenset[int]
    sorts: tuple[str, ...]
    words: tuple[str, ...]
    levels: frozenset[str]
    unit: str
    severity: str
    action: Action

    def fault(self, sensor: str, said: str) -> ChassisFault:
        return ChassisFault(
            condition=self.condition,
            sensor=sensor,
            severity=self.severity,
            action=self.action,
            text=f"{sensor}: {said}"[:_MAX_TEXT],
        )


def faults_of_sensors(text: str) -> dict[tuple[str, str], ChassisFault] | None:
    """By condition and sensor what is wrong now, in the answer of ``ipmitool sdr elist all``; None where no sensor
    stands in it.
    """
    found: dict[tuple[str, str], ChassisFault] = {}
    rows = [row for row in _rows(text) if len(row) == 5]
    for sensor, _, level, entity, said in rows:
        number = _ENTITY.fullmatch(entity)
        unit = _UNIT.match(said)
        rule = _rule_of(int(number[1]) if number else -1, level.lower(), said.lower(), unit[1].lower() if unit else "")
        if rule is not None:
            found[rule.condition, sensor] = rule.fault(sensor, said)
    return found if rows else None


def records_of_log(text: str) -> list[LogRecord]:
    """Records in the answer of ``ipmitool sel elist``, in its order; lines that are none are left out."""
    return [record for row in _rows(text) if (record := _record_of(row)) is not None]


def conditions() -> frozenset[str]:
    """Names of all conditions that a BMC can tell."""
    return frozenset(rule.condition for rule in _rules())


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines()[:MAX_ROWS]:
        yield [cell.strip() for cell in line[:1024].split("|")]


def _rule_of(entity: int, level: str, said: str, unit: str) -> _Rule | None:
    if level in ("ns", "na"):
        return None  # nothing is measured
    for rule in _rules():
        is_of_it = unit.startswith(rule.unit) if rule.unit else entity in rule.entities
        if is_of_it and (level in rule.levels or any(word in said for word in rule.words)):
            return rule
    return None


def _record_of(row: list[str]) -> LogRecord | None:
    """NUMBER | DATE | TIME | SORT SENSOR | EVENT | Asserted; DATE and TIME are one column before the clock is set."""
    places = [place for place, cell in enumerate(row) if cell.lower() in ("asserted", "deasserted")]
    if not places or places[0] < 3 or not re.fullmatch(r"[0-9a-fA-F]{1,5}", row[0]):
        return None
    what, said, is_over = row[places[0] - 2], row[places[0] - 1], row[places[0]].lower() == "deasserted"
    number = int(row[0], 16)
    for rule in _rules():
        sort = next((sort for sort in rule.sorts if what.startswith(sort + " ")), "")
        if sort and any(word in said.lower() for word in rule.words):
            sensor = what.removeprefix(sort + " ").strip()
            return LogRecord(number=number, sensor=sensor, fault=rule.fault(sensor, said), is_over=is_over)
    return LogRecord(number=number, sensor=what, fault=None, is_over=is_over)


@cache
def _rules() -> tuple[_Rule, ...]:
    return tuple(_rule(entry) for entry in read_toml(__package__ or "", "chassis.toml")["fault"])


def _rule(entry: Mapping[str, Any]) -> _Rule:
    return _Rule(
        condition=entry["condition"],
        entities=frozenset(entry.get("entities", ())),
        sorts=tuple(entry.get("sorts", ())),
        words=tuple(entry.get("words", ())),
        levels=frozenset(entry.get("levels", ())),
        unit=entry.get("unit", ""),
        severity=entry["severity"],
        action=Action(entry["action"]),
    )
