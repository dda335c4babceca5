"""How what several jobs share, a plan, a hold and a person's word lie over what one job says of its incident. Pure.

``shared`` finds what is shared; here it only becomes part of the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ...telemetry.vocabulary import Action, Bucket, IncidentState, Severity
from .confidence import load_reliability
from .merging import MAX_EVIDENCE, MAX_RULED_OUT
from .shared.joint import SHARED_KINDS
from .shared.observers import CLOCK_CONFIDENCE

__all__ = ["SHARED_KINDS", "joint_of_document", "overlay"]
#: Of a joint incident, as they lie in its document.
_SAID_AS_IS = ("kind", "bucket", "scope", "severity", "confidence", "suspects", "jobs", "advice")


class Shared(Protocol):
    """What of a case lies over what its own job says (``case.Case``)."""

    joint: dict[str, Any] | None
    plan: dict[str, Any] | None
    hold: dict[str, Any] | None
    label: dict[str, Any] | None
    clock_note: dict[str, Any] | None
    charged_to: str | None

    @property
    def costs(self) -> dict[str, int]:
        """GPU-nanoseconds by ``cost_key``."""


def overlay(case: Shared, fields: dict[str, Any]) -> dict[str, Any]:
    """fields: as the incident's own job says them; changed in place and given back."""
    if case.clock_note is not None:
        fields["evidence"] = [*fields["evidence"], case.clock_note]
        if fields.get("confidence") is not None:
            fields["confidence"] = round(float(fields["confidence"]) * CLOCK_CONFIDENCE, 6)
    if case.joint is not None:
        _widen(fields, case.joint, case.costs)
    elif case.plan is not None:
        fields["severity"], fields["bucket"] = Severity.INFO.value, Bucket.PLANNED.value
        fields["evidence"] = [case.plan, *fields["evidence"]][:MAX_EVIDENCE]
        text = f"wait until it is over: {case.plan['shows']}"
        fields["advice"] = {"action": Action.WAIT.value, "by": "automatic", "text": text}
    if case.hold is not None and fields["state"] == IncidentState.OPEN.value:
        fields["hold"] = case.hold
    if case.label is not None:
        fields["label"] = case.label
    if case.charged_to is not None and fields.get("cost") is not None:
        fields["cost"] = {**fields["cost"], "charged_to": case.charged_to}
    if fields.get("confidence") is not None:
        probability = load_reliability().probability(float(fields["confidence"]), str(fields["kind"]))
        fields["confidence"] = round(probability, 3)
    return fields


def cost_key(job: str, attempt: str) -> str:
    """Of an attempt, among the costs of a joint incident."""
    return f"{job}\t{attempt}"


def _cost(gpu_ns: int) -> dict[str, float] | None:
    return {"gpu_seconds": gpu_ns / 1e9} if gpu_ns else None


def _widen(fields: dict[str, Any], joint: Mapping[str, Any], costs: Mapping[str, int]) -> None:
    """costs: GPU-nanoseconds by ``cost_key``, of all incidents that belong to it."""
    for name in _SAID_AS_IS:
        fields[name] = joint[name]
    fields["victims"] = {"count": joint["victims"], "ranks": None}
    fields["jobs"] = [
        {**row, "cost": _cost(costs.get(cost_key(row["id"], row["attempt"]), 0)) or {}} for row in fields["jobs"]
    ]
    fields["cost"] = _cost(sum(costs.values()))
    fields["evidence"] = _bounded([*joint["evidence"], *fields["evidence"]], MAX_EVIDENCE)
    fields["ruled_out"] = _bounded([*joint["ruled_out"], *fields["ruled_out"]], MAX_RULED_OUT)
    fields.pop("cause", None)
    if joint["cause"] is not None:
        fields["cause"] = joint["cause"]
    over = joint["resolved"]
    fields["state"] = IncidentState.OPEN.value if over is None else IncidentState.RESOLVED.value
    fields["times"] = {**fields["times"], "onset": min(fields["times"]["onset"], joint["onset"]), "resolved": over}


def _bounded(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The first of them, each once: an incident's own earlier revisions repeat what is laid over it."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        if row not in kept and len(kept) < most:
            kept.append(row)
    return kept


def joint_of_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a published joint incident said for all its jobs, until that is looked at anew."""
    told, kind = document.get("confidence"), str(document.get("kind"))
    return {
        **{name: document.get(name) for name in _SAID_AS_IS},
        "confidence": None if told is None else load_reliability().strength(float(told), kind),
        "rule": (document.get("cause") or {}).get("condition"),
        "value": (document.get("cause") or {}).get("entity"),
        "victims": (document.get("victims") or {}).get("count"),
        "cause": document.get("cause"),
        "evidence": [
            dict(row) for row in document.get("evidence") or () if str(row.get("signal")).startswith("shared.")
        ],
        "ruled_out": [],
        "members": [],
        "resolved": (document.get("times") or {}).get("resolved"),
        "onset": float((document.get("times") or {}).get("onset") or 0.0),
    }
