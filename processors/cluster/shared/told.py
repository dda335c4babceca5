"""What findings tell of nodes and jobs, and of no incident: places, changes, loads and plans. Pure.

Each function reads a body, and raises KeyError, ValueError, TypeError or AttributeError for what is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....telemetry.carried import UNREADABLE_WORD
from .landscape import NodeChange, NodePlaces, ToldLoad
from .plans import EARLY_S, Plan


def read_places(body: Mapping[str, Any]) -> NodePlaces:
    """Where a node stands, from the "topology" of a finding."""
    return NodePlaces(
        node=str(body["entity"]),
        labels={str(name): str(value) for name, value in body["labels"].items()},
        refused=tuple(str(name) for name in body.get("refused") or ()),
    )


def read_change(body: Mapping[str, Any]) -> NodeChange:
    """A change of a version, or a step of a clock, from the "change" of a finding."""
    return NodeChange(
        node=str(body["entity"]),
        what=str(body["what"]),
        where=str(body.get("where") or ""),
        new=str(body["new"]),
        old=str(body.get("old") or ""),
        time_s=float(body["time"]),
        is_baseline=bool(body.get("baseline")),
    )


def read_load(body: Mapping[str, Any]) -> ToldLoad:
    """How much a node asks of a service, from the "load" of a finding."""
    usual, since, until = body.get("usual"), body.get("since"), body.get("until")
    return ToldLoad(
        node=str(body["entity"]),
        service=str(body["service"]),
        operation=str(body["operation"]),
        usual=None if usual is None else float(usual),
        since_s=None if since is None else float(since),
        until_s=None if until is None else float(until),
        rate=0.0 if since is None else float(body["rate"]),
        job=str(body.get("job") or ""),
        whole=float(body.get("whole") or 0.0),
    )


def plan_of(body: Mapping[str, Any], key: str, *, over: bool) -> Plan:
    """What was announced, from the "plan" of a finding; key: the finding's. over: called off, so it
    explains nothing.

    Raises KeyError, TypeError or ValueError for what is none.
    """
    if UNREADABLE_WORD in body:
        raise ValueError(body[UNREADABLE_WORD])
    begin = float(body["begin"])
    return Plan(
        key=key,
        what=str(body["what"]),
        begin=begin,
        end=begin - EARLY_S - 1.0 if over else float(body["end"]),
        told=float(body.get("told", begin)),
        by=str(body.get("by") or ""),
        where={str(name): [str(value) for value in values] for name, values in (body.get("where") or {}).items()},
        jobs=[str(job) for job in body.get("jobs") or ()],
    )
