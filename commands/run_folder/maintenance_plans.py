"""Plans that people announce: lines of plans.jsonl in a run's folder, and the findings that operators take.

A plan counts from when it was told. The newest word on an id holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...telemetry.records import Finding, Identity
from .jsonl_store import append_line, read_objects

PLANS_FILE = "plans.jsonl"


def finding_of_plan(said: Mapping[str, Any], cluster: str) -> Finding:
    """As the cluster operator takes it. said: as ``whichrank plan`` writes it; ``over``: called off."""
    plan = {name: value for name, value in said.items() if name not in ("over", "cluster")}
    return Finding(
        identity=Identity(cluster=cluster),
        key=f"plan/people/{said['id']}",
        cleared=bool(said.get("over")),
        time_ns=int(float(said["told"]) * 1e9),
        body={"plan": plan},
    )


def append_plan(folder: Path, said: Mapping[str, Any]) -> None:
    """One line more. Raises Unusable."""
    append_line(folder / PLANS_FILE, said)


def read_plans(folder: Path, after: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole lines beyond byte ``after``, and how far that is. What is no plan is left out. Raises OSError."""
    said, read = read_objects(folder / PLANS_FILE, after)
    return [each for each in said if each.get("id") and isinstance(each.get("told"), int | float)], read
