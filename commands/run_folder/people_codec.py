"""What people say, as JSON: labels of incidents, and plans, in files and in findings. Parsing and writing only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...telemetry.incident_document import IncidentLabel
from ...telemetry.incident_reading import read_label
from ...telemetry.incident_writing import write_label


class NoWord(ValueError):
    """It is no label, or no plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleLabel:
    """The newest word on an incident. cluster: the incident's, "" where nobody says it."""

    incident: str
    said: IncidentLabel
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """What is going to be done. begin_s, end_s, told_s: Unix seconds. where: names by attribute of a place.

    is_over: it was called off; None: nobody has said.
    """

    id: str
    what: str
    begin_s: float
    end_s: float
    told_s: float
    where: Mapping[str, tuple[str, ...]]
    jobs: tuple[str, ...]
    by: str
    is_over: bool | None = None


def write_people_label(label: PeopleLabel) -> dict[str, Any]:
    """The label as JSON data, for a line of the file and the answer of ``whichrank incidents label``."""
    written = {**write_label(label.said), "incident": label.incident}
    return {**written, "cluster": label.cluster} if label.cluster else written


def read_people_label(line: bytes) -> PeopleLabel:
    """The label in a line of the file. Raises NoWord for what names no incident or no time."""
    found = dict(_object(line))
    incident, cluster = found.pop("incident", None), found.pop("cluster", None)
    said = read_label(found)
    if not incident or said is None or said.time_s is None:
        raise NoWord("a label names its incident and its time")
    return PeopleLabel(incident=str(incident), said=said, cluster=str(cluster or ""))


def write_plan(plan: MaintenancePlan) -> dict[str, Any]:
    """The plan as JSON data, for a line of the file and the answer of ``whichrank plan``."""
    written: dict[str, Any] = {
        "id": plan.id,
        "what": plan.what,
        "begin": plan.begin_s,
        "end": plan.end_s,
        "told": plan.told_s,
        "where": {attribute: list(names) for attribute, names in plan.where.items()},
        "jobs": list(plan.jobs),
        "by": plan.by,
    }
    return written if plan.is_over is None else {**written, "over": plan.is_over}


def read_plan(written: Mapping[str, Any]) -> MaintenancePlan:
    """The plan in JSON data. Raises NoWord for what is no plan."""
    over = written.get("over")
    try:
        return MaintenancePlan(
            id=str(written["id"]),
            what=str(written.get("what") or ""),
            begin_s=float(written["begin"]),
            end_s=float(written["end"]),
            told_s=float(written["told"]),
            where={str(name): tuple(map(str, each)) for name, each in (written.get("where") or {}).items()},
            jobs=tuple(map(str, written.get("jobs") or ())),
            by=str(written.get("by") or ""),
            is_over=None if over is None else bool(over),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoWord(f"no plan: {error}") from error


def read_plan_line(line: bytes) -> MaintenancePlan:
    """The plan in a line of the file. Raises NoWord for what is no plan."""
    return read_plan(_object(line))


def _object(line: bytes) -> Mapping[str, Any]:
    """Raises NoWord."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NoWord("no JSON") from error
    if not isinstance(found, dict):
        raise NoWord("no JSON object")
    return found
