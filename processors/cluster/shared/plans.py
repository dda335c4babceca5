"""What was announced: maintenance, a drain, an owner's cancel, shrink or profiler: it lowers what it explains.

A plan counts from when it was told: one that is told only after an onset explains nothing. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....telemetry.incident_document import EvidenceRow
from .placements import Attempt, Value
from .troubles import Trouble

#: It may begin so much earlier, and what it brought about may take so long to pass.
EARLY_S, GRACE_S = 60.0, 60.0
#: Words that concern one job; all others concern what stands in the place.
OF_JOBS = frozenset({"cancel", "shrink", "profiler", "drain_job"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Something that was announced. begin, end: Unix seconds; told: since when it is known.

    where: by attribute, its values ("*": everything).
    """

    key: str
    what: str
    begin: float
    end: float
    told: float
    by: str
    where: dict[str, list[str]]
    jobs: list[str]

    def pack(self) -> bytes:
        """The plan as bytes, one row of the operator's state."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    def explains(self, trouble: Trouble, attempt: Attempt | None, counts: Mapping[Value, int], now: float) -> bool:
        """Whether the trouble is the plan's work, as far as one may say ``now`` (Unix seconds).

        attempt: that the trouble is of; counts: how many nodes of it have each value.
        """
        if not self.begin - EARLY_S <= trouble.onset <= self.end or now > self.end + GRACE_S:
            return False
        if self.told > trouble.onset or trouble.is_telemetry:
            return False
        if trouble.own and trouble.own.get("device_kind") not in ("nic", "link", "mount", "switch"):
            return False  # it has a reason of its own
        if self.what in OF_JOBS or self.jobs:
            return trouble.job in self.jobs
        nodes = set(trouble.nodes) or set(attempt.nodes if attempt is not None else ())
        return any(self._concerns(attribute, values, nodes, counts) for attribute, values in self.where.items())

    @staticmethod
    def _concerns(attribute: str, values: list[str], nodes: set[str], counts: Mapping[Value, int]) -> bool:
        if "*" in values:
            return True
        if attribute == "node":
            return not nodes.isdisjoint(values)
        return any((attribute, value) in counts for value in values)


def plan_for(
    plans: Iterable[Plan], trouble: Trouble, attempt: Attempt | None, counts: Mapping[Value, int], now: float
) -> Plan | None:
    """The plan with the earliest begin that explains the trouble now (Unix seconds); None: none does.

    counts: how many nodes of its job have each value.
    """
    found = [plan for plan in plans if plan.explains(trouble, attempt, counts, now)]
    return min(found, key=lambda plan: (plan.begin, plan.key)) if found else None


def plan_row(plan: Plan) -> EvidenceRow:
    """The row of evidence that names the plan."""
    return EvidenceRow(
        signal=f"plan.{plan.what}",
        source=plan.by or "announced",
        time_s=plan.begin,
        value=plan.what,
        shows=f"{plan.what} was announced for this time, until {plan.end - plan.begin:.0f} s after its begin",
    )
