"""Plans that people announce: lines of plans.jsonl in a run's folder, and the findings that operators take.

A plan counts from when it was told. The newest word on an id holds.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...telemetry.carried import UNREADABLE_WORD
from ...telemetry.records import Finding, Identity
from .jsonl_store import OnOdd, append_line, read_entries
from .people_codec import MaintenancePlan, read_plan_line, write_plan

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


def finding_of_odd_line(place: str, why: str, cluster: str, now_ns: int) -> Finding:
    """A line that nobody can read, as a finding: the judge counts it and tells of it once. now_ns: Unix."""
    body = {"plan": {UNREADABLE_WORD: why}}
    return Finding(identity=Identity(cluster=cluster), key=place, cleared=False, time_ns=now_ns, body=body)


def read_plans(folder: Path, after: int = 0, on_odd: OnOdd | None = None) -> tuple[list[MaintenancePlan], int]:
    """(plans in whole lines beyond byte ``after``, the byte behind them). What is no plan is left out, and told to
    ``on_odd``.

    Raises OSError.
    """
    return read_entries(folder / PLANS_FILE, after, read_plan_line, on_odd)
