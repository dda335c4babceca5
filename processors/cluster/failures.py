"""What the attempts of one run have failed of: is this failure like earlier ones, and was it on other nodes then.

A row per incident that ended or stopped an attempt, kept in the table of its run. Two failures are alike if their kind,
their error and their place are the same: the line of code where both know it, else the rank. Attempts count, not
incidents: what one attempt failed of is told once. Pure functions, and a register over a table of the operator's state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ...telemetry.evidence_facts import EvidenceFact, How, SignalSender, signal_word
from ...telemetry.vocabulary import Bucket
from ..older_sentences import fact_of_row, key_of_failure
from ..operator import Table
from .causes import suspect_ranks

#: Table of the operator's state.
FAILURES = "failures"
#: Of one run; the oldest go first.
MAX_FAILURES = 64
#: Incidents of these do not end an attempt.
_NO_FAILURE = frozenset({Bucket.PLANNED.value, Bucket.TELEMETRY.value, Bucket.SPEED_REGRESSION.value})
_MAX_ERROR_CHARS = 200
#: Rows of a rank's end.
_ENDS = frozenset({"rank.exception", "rank.exit"})
#: What differs each time: addresses, numbers, names of temporary files. An exit code is no such number.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|/\S+|(?<!exit code )\b\d[\d.,]*")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedents:
    """alike: earlier attempts of the run that failed alike. elsewhere: one of them at the same step and rank, on other
    nodes. recent: attempts of the run that failed within ``within_s`` of ``precedents``, this one included."""

    alike: int = 0
    elsewhere: bool = False
    recent: int = 1


def failure_of(fields: Mapping[str, Any]) -> Row | None:
    """The row of an incident's document; None for what ends no attempt, or has gone into another incident."""
    if fields["bucket"] in _NO_FAILURE or fields.get("merged_into"):
        return None
    fact = last_end(fields.get("evidence") or ())
    place = f"{PurePosixPath(fact.file).name}:{fact.line}" if fact is not None and fact.file else ""
    suspects = fields.get("suspects") or ()
    job = fields["job"]
    return {
        "incident": fields["id"],
        "attempt": [job.get("id") or "", job.get("attempt") or ""],
        "onset": fields["times"]["onset"],
        "kind": fields["kind"],
        "error": error_of(fact),
        "condition": str((fields.get("cause") or {}).get("condition") or ""),
        "ranks": sorted(suspect_ranks(fields)),
        "nodes": sorted({str(suspect["node"]) for suspect in suspects if suspect.get("node")}),
        "step": (fields.get("first_bad") or {}).get("step"),
        "place": place or _place_of(suspects),
    }


def last_end(evidence: Iterable[Mapping[str, Any]]) -> EvidenceFact | None:
    """How the suspect ended; None: unknown. Who only counts others that ended alike is asked last."""
    ends = (fact_of_row(row) for row in evidence if row.get("signal") in _ENDS)
    known = [fact for fact in ends if fact is not None and error_of(fact)]
    return min(known, key=lambda fact: fact.is_repeat, default=None)


def error_of(fact: EvidenceFact | None) -> str:
    """What it raised, or the signal that ended it, without what differs each time; "": neither."""
    if fact is None:
        return ""
    match fact.how:
        case How.RAISED:
            error = _VARIES.sub("#", fact.said)
        case How.SIGNAL | How.ABORTED:
            error = _VARIES.sub("#", signal_word(fact.signal)) + (
                " by itself" if fact.sender is SignalSender.ITSELF else ""
            )
        case How.EXIT:
            error = f"exit code {fact.exit_code}"
        case How.VANISHED:
            error = How.VANISHED.value
        case How.TOGETHER | How.VICTIMS:
            error = "; ".join(map(error_of, fact.endings))
        case _:
            error = ""
    return error[:_MAX_ERROR_CHARS]


def precedents(failure: Row | None, earlier: Iterable[Row], within_s: float) -> Precedents:
    """earlier: rows of the run; those of the same attempt, or of a later onset, do not count."""
    if failure is None:
        return Precedents()
    others = [row for row in earlier if row["attempt"] != failure["attempt"] and row["onset"] < failure["onset"]]
    alike = [row for row in others if are_alike(row, failure)]
    return Precedents(
        alike=_attempts(alike),
        elsewhere=any(_is_elsewhere(row, failure) for row in alike),
        recent=1 + _attempts(row for row in others if row["onset"] >= failure["onset"] - within_s),
    )


def are_alike(one: Row, other: Row) -> bool:
    if one["kind"] != other["kind"] or one["error"] != other["error"]:
        return False
    if one["condition"] and other["condition"] and one["condition"] != other["condition"]:
        return False
    if one["place"] and other["place"]:
        return bool(one["place"] == other["place"])
    return bool(set(one["ranks"]) & set(other["ranks"])) or not (one["ranks"] or other["ranks"])


def _is_elsewhere(one: Row, other: Row) -> bool:
    """The same step and rank, and nobody of them on the same node."""
    if one["step"] is None or one["step"] != other["step"] or not set(one["ranks"]) & set(other["ranks"]):
        return False
    return bool(one["nodes"] and other["nodes"]) and not set(one["nodes"]) & set(other["nodes"])


def _attempts(rows: Iterable[Row]) -> int:
    return len({tuple(row["attempt"]) for row in rows})


def _place_of(suspects: Sequence[Mapping[str, Any]]) -> str:
    where = (suspects[0].get("where") if len(suspects) == 1 else None) or {}
    if not where.get("file") or where.get("line") is None:
        return ""
    return f"{PurePosixPath(str(where['file'])).name}:{where['line']}"


class FailureRegister:
    """Over a table with a row per run."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def of(self, run: str) -> list[Row]:
        rows: list[Row] = json.loads(self._table.get(run) or b"[]")
        return [{**row, "error": key_of_failure(row["error"])} for row in rows]

    def note(self, run: str, document: Mapping[str, Any]) -> None:
        """An incident's document as it is published; what was noted of it before is replaced."""
        known = self.of(run)
        rows = [row for row in known if row["incident"] != document["id"]]
        if (failure := failure_of(document)) is not None:
            rows.append(failure)
            rows.sort(key=lambda row: (row["onset"], row["incident"]))
        if rows != known:
            self._put(run, rows[-MAX_FAILURES:])

    def forget(self, run: str, job: str) -> None:
        """The job's incidents are forgotten."""
        self._put(run, [row for row in self.of(run) if row["attempt"][0] != job])

    def _put(self, run: str, rows: list[Row]) -> None:
        if rows:
            self._table.put(run, json.dumps(rows, separators=(",", ":")).encode())
        else:
            self._table.delete(run)
