"""Plans that people announce: lines of plans.jsonl in a run's folder, and the findings that operators take.

A plan counts from when it was told. The newest word on an id holds.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from ...telemetry.records import Finding, Identity
from .jsonl_store import append_line, whole_lines
from .people_codec import MaintenancePlan, NoWord, read_plan_line, write_plan

PLANS_FILE = "plans.jsonl"


def finding_of_plan(plan: MaintenancePlan, cluster: str) -> Finding:
    """The plan as a finding that the cluster operator takes; cleared where it was called off."""
    body = {name: value for name, value in write_plan(plan).items() if name != "over"}
    return Finding(
        identity=Identity(cluster=cluster),
        key=f"plan/people/{plan.id}",
        cleared=bool(plan.is_over),
        time_ns=int(plan.told_s * 1e9),
        body={"plan": body},
    )


def append_plan(folder: Path, plan: MaintenancePlan) -> None:
    """Appends the plan to plans.jsonl. Raises Unusable."""
    append_line(folder / PLANS_FILE, json.dumps(write_plan(plan), ensure_ascii=False))


def read_plans(folder: Path, after: int = 0) -> tuple[list[MaintenancePlan], int]:
    """(plans in whole lines beyond byte ``after``, the byte behind them). What is no plan is left out.

    Raises OSError.
    """
    lines, read = whole_lines(folder / PLANS_FILE, after)
    plans: list[MaintenancePlan] = []
    for line in lines:
        with contextlib.suppress(NoWord):
            plans.append(read_plan_line(line))
    return plans, read
