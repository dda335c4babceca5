"""An incident in which nothing is missing that its telemetry could carry, and a step of ``whichrank respond``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...telemetry.vocabulary import Bucket, Change, IncidentState, Kind, Outcome, Scope, Severity


def whole_incident() -> Mapping[str, Any]:
    return {
        "schema": 1,
        "id": "0123456789abcdef",
        "revision": 3,
        "change": Change.RESOLVED.value,
        "state": IncidentState.RESOLVED.value,
        "severity": Severity.PAGE.value,
        "cluster": "cluster",
        "job": {"run": "run", "id": "job", "name": "name", "attempt": "attempt"},
        "bucket": Bucket.COMMUNICATION_HANG.value,
        "kind": Kind.RANK_NOT_ENTERED.value,
        "scope": Scope.RANK.value,
        "suspects": [{"scope": "rank", "id": "3", "rank": 3, "node": "node", "gpu": "GPU"}],
        "first_bad": {"step": 7},
        "times": {"onset": 1.0, "detected": 2.0, "attributed": 3.0, "resolved": 4.0},
        "confidence": 0.9,
    }


def whole_response() -> Mapping[str, Any]:
    return {
        "time": 1.0,
        "outcome": Outcome.DONE.value,
        "text": "text",
        "incident": "0123456789abcdef",
        "revision": 3,
        "job": "job",
        "action": "restart_without_node",
        "hook": "slurm",
        "operation": "drain_node",
        "target": "node",
        "why": "why",
        "detail": "detail",
        "mode": "act",
    }
