"""The JSON of ``whichrank diagnose flight-recorder``: a diagnosis in, docs/diagnose-flight-recorder.md out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...diagnosis.flight_recorder.activity import Activity, DumpOperation, alike
from ...diagnosis.flight_recorder.analysis import Diagnosis
from ...diagnosis.flight_recorder.group_state import GroupState
from ...diagnosis.nccl_ras import RasFinding
from ...telemetry.ring_layout import format_ranks


def write_diagnosis(diagnosis: Diagnosis, ras: Sequence[RasFinding], notes: Sequence[str]) -> dict[str, Any]:
    """The JSON document; docs/diagnose-flight-recorder.md lists its fields."""
    return {
        "schema": 1,
        "verdict": diagnosis.finding.value,
        "kind": diagnosis.kind.value if diagnosis.kind else None,
        "bucket": diagnosis.bucket.value if diagnosis.bucket else None,
        "scope": diagnosis.scope.value if diagnosis.scope else None,
        "summary": diagnosis.summary,
        "confidence": diagnosis.confidence,
        "suspects": [
            {
                "rank": suspect.rank,
                "probability": suspect.probability,
                "finding": suspect.finding.value,
                "because": suspect.because,
                "doing": _doing(diagnosis.activities.get(suspect.rank)),
            }
            for suspect in diagnosis.suspects
        ],
        "group": _group(diagnosis.state) if diagnosis.state else None,
        "groups": [_group(state) for state in diagnosis.states],
        "victims": {"count": len(diagnosis.victims), "ranks": format_ranks(list(diagnosis.victims))},
        "ruled_out": [
            {"ranks": format_ranks(list(row.ranks)), "looks_guilty": row.looks_guilty, "because": row.because}
            for row in diagnosis.ruled_out
        ],
        "no_dump": format_ranks(list(diagnosis.silent)),
        "coverage": {"ranks_seen": len(diagnosis.activities), "ranks_expected": diagnosis.ranks_expected},
        "ranks": [
            {"ranks": format_ranks(list(ranks)), "doing": _doing(activity)}
            for ranks, activity in alike(diagnosis.activities)
        ],
        "advice": {"action": diagnosis.advice.action.value, "text": diagnosis.advice.text}
        if diagnosis.advice
        else None,
        "nccl_ras": [
            {
                "problem": finding.problem.value,
                "communicator": finding.communicator,
                "says": finding.says,
                "communicator_ranks": format_ranks(list(finding.ranks)),
                "processes": [{"pid": one.pid, "node": one.node, "gpu": one.gpu} for one in finding.processes],
            }
            for finding in ras
        ],
        "notes": list(notes),
    }


def _group(state: GroupState) -> dict[str, Any]:
    divergence = state.divergence
    return {
        "name": state.group.name,
        "description": state.group.description,
        "ranks": format_ranks(list(state.group.members)),
        "finding": state.finding.value,
        "operation": state.call.op if state.call else None,
        "sequence": state.sequence,
        "waiting": format_ranks(list(state.open_calls)),
        "missing": format_ranks(list(state.missing_at(state.sequence))) if state.waits else "",
        "no_dump": format_ranks(list(state.group.silent)),
        "not_finished": format_ranks(list(state.not_finished)),
        "not_started": format_ranks(list(state.not_started)),
        "diverged": {
            "sequence": divergence.sequence,
            "ranks": {str(rank): mismatch.value for rank, mismatch in sorted(divergence.ranks.items())},
        }
        if divergence
        else None,
        "matched": state.matched,
    }


def _doing(activity: Activity | None) -> dict[str, Any] | None:
    if activity is None:
        return None
    where = activity.where
    return {
        "open": _operation(activity.open),
        "open_count": activity.open_count,
        "last": _operation(activity.last),
        "where": {"file": where.file, "line": where.line, "function": where.function} if where else None,
    }


def _operation(operation: DumpOperation | None) -> dict[str, Any] | None:
    if operation is None:
        return None
    return {"name": operation.name, "group": operation.group, "sequence": operation.sequence}
