"""Putting together what several findings of one cause say: evidence, suspects, who is ruled out. Plain functions.

All results are bounded and their order does not depend on the order in which findings came within one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ...telemetry.evidence_facts import EvidenceFact
from ...telemetry.incident_document import CodePlace, EvidenceRow, RuledOutEntry, SuspectEntry, word_of
from ..older_sentences import ranks_ruled_out
from ..told_finding import ToldFinding
from .causes import suspect_ranks

MAX_EVIDENCE = 24
MAX_RULED_OUT = 24
_NOTHING = EvidenceFact()
_T = TypeVar("_T")


def merge_evidence(findings: Sequence[ToldFinding], earlier: Iterable[EvidenceRow]) -> tuple[EvidenceRow, ...]:
    """Rows of all findings, oldest first, at most MAX_EVIDENCE; those of the leading finding are kept before others.

    findings: leading one first. earlier: what older revisions said; a (signal, source) that a finding still speaks of
    is replaced, because its words carry ages that grow.
    """
    chosen: list[EvidenceRow] = []
    spoken: set[tuple[str, str]] = set()
    for rows in [*(finding.evidence for finding in findings), tuple(earlier)]:
        fresh = [row for row in rows if (row.signal, row.source) not in spoken]
        chosen.extend(row for row in fresh if row not in chosen)
        spoken.update((row.signal, row.source) for row in fresh)
    return tuple(sorted(chosen[:MAX_EVIDENCE], key=by_time))


def by_time(row: EvidenceRow) -> tuple[float, str, str]:
    """Sort key of rows of evidence: time, then signal and source."""
    return row.time_s or 0.0, row.signal, row.source


def merge_suspects(findings: Sequence[ToldFinding]) -> tuple[SuspectEntry, ...]:
    """The leading finding's suspects; fields it does not know are taken from others on the same suspect.

    findings: not empty, leading one first.
    """
    merged: list[SuspectEntry] = []
    for suspect in findings[0].suspects:
        known = suspect
        for finding in findings[1:]:
            for other in finding.suspects:
                if (other.scope, other.id) == (suspect.scope, suspect.id):
                    known = _fill(known, other)
        merged.append(known)
    return tuple(merged)


def merge_ruled_out(
    findings: Sequence[ToldFinding], consequences: Sequence[ToldFinding], earlier: Iterable[RuledOutEntry]
) -> tuple[RuledOutEntry, ...]:
    """Who looks guilty and is not, in order of ranks, at most MAX_RULED_OUT: each named once, the suspects never.

    findings: leading one first; consequences: findings that follow from it; earlier: rows of older revisions.
    """
    guilty = suspect_ranks(findings[0].suspects)
    chosen: dict[str, RuledOutEntry] = {}
    told = [row for finding in [*findings, *consequences] for row in finding.ruled_out]
    told += [row for finding in consequences for row in _explain_away(finding, findings[0])]
    named = frozenset(rank for row in told for rank in ranks_ruled_out(row))
    # "ranks 0-2" of an older revision has nothing to add once each of them has its own words.
    kept = [row for row in earlier if not (ranks_ruled_out(row) and ranks_ruled_out(row) <= named)]
    for row in [*told, *kept]:
        if row.who not in chosen and not (ranks_ruled_out(row) & guilty) and len(chosen) < MAX_RULED_OUT:
            chosen[row.who] = row
    return tuple(sorted(chosen.values(), key=lambda row: (min(ranks_ruled_out(row), default=1 << 30), row.who)))


def _explain_away(consequence: ToldFinding, cause: ToldFinding) -> list[RuledOutEntry]:
    delay = consequence.onset_s - cause.onset_s
    return [
        RuledOutEntry(
            who=f"{word_of(suspect.scope)} {suspect.id}",
            looks_guilty=consequence.kind.value,
            because=f"it began {delay:.1f} s after the cause" if delay >= 0 else "the cause explains it",
            fact=_whom(suspect),
        )
        for suspect in consequence.suspects
    ]


def _whom(suspect: SuspectEntry) -> EvidenceFact | None:
    """The machine part of ``who``, where it is a rank or a node."""
    rank = suspect.rank
    fact = EvidenceFact(rank=rank, node="" if rank is not None else suspect.node or "")
    return fact if fact != _NOTHING else None


def _fill(known: SuspectEntry, other: SuspectEntry) -> SuspectEntry:
    """With what the other one knows and it does not."""
    return replace(
        known,
        rank=_either(known.rank, other.rank),
        node=_either(known.node, other.node),
        gpu=_either(known.gpu, other.gpu),
        pid=_either(known.pid, other.pid),
        where=_fill_place(known.where, other.where),
        probability=_either(known.probability, other.probability),
        ranks=_either(known.ranks, other.ranks),
        extra=known.extra or other.extra,
    )


def _fill_place(known: CodePlace | None, other: CodePlace | None) -> CodePlace | None:
    if known is None or other is None:
        return known or other
    return CodePlace(
        file=_either(known.file, other.file),
        line=_either(known.line, other.line),
        phase=_either(known.phase, other.phase),
        extra=known.extra or other.extra,
    )


def _either(mine: _T | None, other: _T | None) -> _T | None:
    return other if mine is None else mine
