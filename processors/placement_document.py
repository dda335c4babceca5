"""What JobOperator tells of where an attempt's ranks run, as fields, and its JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRank:
    """A rank that two nodes tell of. before, now: their names."""

    rank: int
    before: str
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementReport:
    """Where an attempt's ranks run. begin, end: Unix seconds; end None while it runs. nodes: by name, its ranks as
    ranges.
    """

    job: str
    attempt: str
    run: str = ""
    name: str = ""
    owner: str = ""
    world_size: int = 0
    begin: float
    end: float | None = None
    nodes: dict[str, str]
    moved: MovedRank | None = None


def write_placement(report: PlacementReport) -> dict[str, Any]:
    """A report as JSON values, for ``read_placement``."""
    moved = report.moved
    written = {
        "job": report.job,
        "run": report.run,
        "attempt": report.attempt,
        "name": report.name,
        "owner": report.owner,
        "world_size": report.world_size,
        "begin": report.begin,
        "end": report.end,
        "nodes": report.nodes,
    }
    return written if moved is None else {**written, "moved": write_move(moved)}


def write_move(moved: MovedRank) -> dict[str, Any]:
    """A moved rank as JSON values, within those of a report."""
    return {"rank": moved.rank, "from": moved.before, "to": moved.now}


def read_placement(body: Mapping[str, Any]) -> PlacementReport:
    """A report that this release or an earlier one wrote.

    Raises KeyError, ValueError, TypeError or AttributeError for what is none.
    """
    moved = body.get("moved")
    return PlacementReport(
        job=str(body["job"]),
        attempt=str(body["attempt"]),
        run=str(body.get("run") or ""),
        name=str(body.get("name") or ""),
        owner=str(body.get("owner") or ""),
        world_size=int(body.get("world_size") or 0),
        begin=float(body["begin"]),
        end=None if body.get("end") is None else float(body["end"]),
        nodes={str(node): str(ranks) for node, ranks in body["nodes"].items()},
        moved=MovedRank(rank=moved["rank"], before=moved["from"], now=moved["to"]) if moved else None,
    )
