"""What the attempts of one run have failed of: is this failure like earlier ones, and was it on other nodes then.

A row per incident that ended or stopped an attempt, kept in the table of its run. Two failures are alike if their kind,
their error and their place are the same: the line of code where both know it, else the rank. Attempts count, not
incidents: what one attempt failed of is told once. Attempts that fail of anything and get no further are counted as
well. Pure functions, and a register over a table of the operator's state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ...diagnosis.restarts.restart_progress import ProgressWatch
from ...telemetry.evidence_facts import EvidenceFact, How, SignalSender, signal_word
from ...telemetry.incident_document import EvidenceRow, IncidentDocument, SuspectEntry, word_of
from ...telemetry.vocabulary import Bucket
from ..older_sentences import fact_of_evidence, key_of_failure
from ..operator import Table
from .causes import suspect_ranks

#: Table of the operator's state.
FAILURES = "failures"
#: Of one run; the oldest go first.
MAX_FAILURES = 64
#: Incidents of these do not end an attempt.
_NO_FAILURE = frozenset({Bucket.PLANNED.value, Bucket.TELEMETRY.value, Bucket.SPEED_REGRESSION.value})
_MAX_ERROR_CHARS = 200
#: An attempt that failed in its first step has made none, wherever it began.
NO_STEP = -1
#: Ranks that fail at one place are told at steps so far apart.
_SAME_STEPS = 2
#: Rows of a rank's end.
_ENDS = frozenset({"rank.exception", "rank.exit"})
#: What differs each time: addresses, numbers, names of temporary files. An exit code is no such number.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|/\S+|(?<!exit code )\b\d[\d.,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What ended or stopped an attempt. attempt: job and attempt. onset: Unix seconds. step: None not known.

    failed_of, condition, place: what it is compared by; "" not known. reached: steps of the training that were made by
    then, ``NO_STEP`` where the attempt has made none; None: not known, as nobody saw from which checkpoint it began.
    """

    incident: str
    attempt: tuple[str, str]
    onset: float
    kind: str
    failed_of: str
    condition: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    step: int | None
    place: str
    reached: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedents:
    """How earlier attempts of a run failed. alike: how many failed alike, at steps that the training has not passed
    since. elsewhere: one of them at the same step and rank, on other nodes.

    recent: attempts of the run that failed within ``within_s`` of ``precedents``, this one included. stuck: failed
    attempts in a row, this one last, that got no further than one before them.
    """

    alike: int = 0
    elsewhere: bool = False
    recent: int = 1
    stuck: int = 0


def failure_of(incident: IncidentDocument, steps_before: int = 0) -> Failure | None:
    """An incident as a failure of its attempt; None for what ends no attempt, or has gone into another incident.

    steps_before: of the training, before its attempt, as far as checkpoints tell; 0: none, or not known.
    """
    if incident.bucket in _NO_FAILURE or incident.merged_into:
        return None
    fact = last_end(incident.evidence)
    place = f"{PurePosixPath(fact.file).name}:{fact.line}" if fact is not None and fact.file else ""
    suspects, job = incident.suspects, incident.job
    return Failure(
        incident=incident.id,
        attempt=(job.id or "", job.attempt or ""),
        onset=incident.times.onset_s,
        kind=word_of(incident.kind),
        failed_of=error_of(fact),
        condition=incident.cause.condition or "" if incident.cause is not None else "",
        ranks=tuple(sorted(suspect_ranks(suspects))),
        nodes=tuple(sorted({suspect.node for suspect in suspects if suspect.node})),
        step=incident.first_bad.step,
        place=place or _place_of(suspects),
        reached=_reached(incident.first_bad.step, steps_before),
    )


def _reached(step: int | None, steps_before: int) -> int | None:
    if step is None:
        return None
    return NO_STEP if step == 0 else steps_before + step


def last_end(evidence: Iterable[EvidenceRow]) -> EvidenceFact | None:
    """How the suspect ended, by the evidence; None: unknown. Facts that only repeat others' ends are asked last."""
    ends = (fact_of_evidence(row) for row in evidence if row.signal in _ENDS)
    known = [fact for fact in ends if fact is not None and error_of(fact)]
    return min(known, key=lambda fact: fact.is_repeat, default=None)


def error_of(fact: EvidenceFact | None) -> str:
    """The error raised, or the signal or code it ended with, without what differs each time; "": none of these."""
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


def precedents(failure: Failure | None, earlier: Iterable[Failure], within_s: float) -> Precedents:
    """How the run's earlier attempts failed, compared with this failure; none for None.

    earlier: failures of the run; those of the same attempt, or of a later onset, do not count. within_s: for
    ``recent``.
    """
    if failure is None:
        return Precedents()
    others = [each for each in earlier if each.attempt != failure.attempt and each.onset < failure.onset]
    others.sort(key=lambda each: each.onset)
    alike = [each for each in others if are_alike(each, failure) and not _is_behind(each, failure, others)]
    return Precedents(
        alike=_attempts(alike),
        elsewhere=any(_is_elsewhere(each, failure) for each in alike),
        recent=1 + _attempts(each for each in others if each.onset >= failure.onset - within_s),
        stuck=_stuck([*others, failure]),
    )


def _is_behind(one: Failure, last: Failure, others: Sequence[Failure]) -> bool:
    """Whether the training has gone past the step at which it failed earlier: then that was no place where it always
    fails. others: failures before the last one, in order. Only what is known to count the whole training is compared.
    """
    if one.reached is None or last.reached is None or not _is_counted([last], last.reached):
        return False
    is_known = one.attempt == others[0].attempt or _is_counted([one], one.reached)
    return is_known and last.reached > one.reached + _SAME_STEPS


def _stuck(failures: Sequence[Failure]) -> int:
    """How many attempts in a row, the last one included, got no further. failures: in the order of their onsets."""
    furthest: dict[tuple[str, str], int | None] = {}
    for each in failures:
        known = furthest.get(each.attempt)
        furthest[each.attempt] = each.reached if known is None else max(known, each.reached or known)
    watch = ProgressWatch()
    for place, reached in enumerate(furthest.values()):
        # Ranks count from 0 in every attempt: without a checkpoint that was seen, only the first one's count is known.
        is_known = reached is not None and (place == 0 or reached == NO_STEP)
        watch.end_cycle(None if reached == NO_STEP else reached, is_readable=is_known or _is_counted(failures, reached))
    return watch.cycles_without


def _is_counted(failures: Sequence[Failure], reached: int | None) -> bool:
    """Whether the count includes what lay before the attempt: more steps than the attempt itself was in."""
    return reached is not None and any(
        each.reached == reached and each.step is not None and reached > each.step for each in failures
    )


def are_alike(one: Failure, other: Failure) -> bool:
    """Whether two attempts failed of the same kind, error, condition and place, as far as these are known."""
    if one.kind != other.kind or one.failed_of != other.failed_of:
        return False
    if one.condition and other.condition and one.condition != other.condition:
        return False
    if one.place and other.place:
        return one.place == other.place
    return bool(set(one.ranks) & set(other.ranks)) or not (one.ranks or other.ranks)


def _is_elsewhere(one: Failure, other: Failure) -> bool:
    """The same step and rank, and nobody of them on the same node."""
    if one.step is None or one.step != other.step or not set(one.ranks) & set(other.ranks):
        return False
    return bool(one.nodes and other.nodes) and not set(one.nodes) & set(other.nodes)


def _attempts(failures: Iterable[Failure]) -> int:
    return len({failure.attempt for failure in failures})


def _place_of(suspects: Sequence[SuspectEntry]) -> str:
    where = suspects[0].where if len(suspects) == 1 else None
    if where is None or not where.file or where.line is None:
        return ""
    return f"{PurePosixPath(where.file).name}:{where.line}"


class FailureRegister:
    """What attempts have failed of, over a table with a row per run."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def of(self, run: str) -> list[Failure]:
        """Failures noted of the run, the oldest first; [] for an unknown run, and where its row cannot be read."""
        try:
            return [
                Failure(
                    incident=row["incident"],
                    attempt=(row["attempt"][0], row["attempt"][1]),
                    onset=row["onset"],
                    kind=row["kind"],
                    failed_of=key_of_failure(row["error"]),
                    condition=row["condition"],
                    ranks=tuple(row["ranks"]),
                    nodes=tuple(row["nodes"]),
                    step=row["step"],
                    place=row["place"],
                    reached=row.get("reached"),
                )
                for row in json.loads(self._table.get(run) or b"[]")
            ]
        except (ValueError, TypeError, KeyError, IndexError):
            return []  # the run's next incident must not go down with it

    def note(self, run: str, incident: IncidentDocument, steps_before: int = 0) -> None:
        """Notes the failure of an incident as it is published, in place of what was noted of it before.

        steps_before: as of ``failure_of``.
        An incident that is no failure (any more) is dropped.
        """
        known = self.of(run)
        failures = [each for each in known if each.incident != incident.id]
        if (failure := failure_of(incident, steps_before)) is not None:
            failures.append(failure)
            failures.sort(key=lambda each: (each.onset, each.incident))
        if failures != known:
            self._put(run, failures[-MAX_FAILURES:])

    def forget(self, run: str, job: str) -> None:
        """Drops what the job's attempts failed of, as its incidents are forgotten."""
        self._put(run, [each for each in self.of(run) if each.attempt[0] != job])

    def _put(self, run: str, failures: Sequence[Failure]) -> None:
        if failures:
            rows = [
                {("error" if name == "failed_of" else name): getattr(each, name) for name in Failure.__slots__}
                for each in failures
            ]
            self._table.put(run, json.dumps(rows, separators=(",", ":")).encode())
        else:
            self._table.delete(run)
