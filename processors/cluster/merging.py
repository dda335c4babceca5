"""Putting together what several findings of one cause say: evidence, suspects, who is ruled out. Plain functions.

All results are bounded and their order does not depend on the order in which findings came within one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...telemetry.evidence_facts import FACT, EvidenceFact, write_fact
from ..older_sentences import ranks_of_row
from .causes import Body, kind_of, onset_of, suspect_ranks

MAX_EVIDENCE = 24
MAX_RULED_OUT = 24

Row = Mapping[str, Any]


def merge_evidence(bodies: Sequence[Body], earlier: Iterable[Row]) -> list[Row]:
    """Evidence of the leading body first in right, the others' added, oldest first.

    bodies: leading body first. earlier: what older revisions said; a (signal, source) that a body still speaks of is
    replaced, because its words carry ages that grow.
    """
    chosen: list[Row] = []
    spoken: set[tuple[Any, Any]] = set()
    for rows in [*(body.get("evidence") or () for body in bodies), tuple(earlier)]:
        fresh = [row for row in rows if (row.get("signal"), row.get("source")) not in spoken]
        chosen.extend(row for row in fresh if row not in chosen)
        spoken.update((row.get("signal"), row.get("source")) for row in fresh)
    kept = chosen[:MAX_EVIDENCE]
    return sorted(kept, key=lambda row: (row.get("time") or 0.0, str(row.get("signal")), str(row.get("source"))))


def merge_suspects(bodies: Sequence[Body]) -> list[Row]:
    """The leading body's suspects; fields it does not know are taken from other bodies on the same suspect."""
    merged: list[Row] = []
    for suspect in bodies[0].get("suspects") or ():
        known = dict(suspect)
        for body in bodies[1:]:
            for other in body.get("suspects") or ():
                if (other.get("scope"), other.get("id")) == (suspect.get("scope"), suspect.get("id")):
                    known = _fill(known, other)
        merged.append(known)
    return merged


def merge_ruled_out(bodies: Sequence[Body], consequences: Sequence[Body], earlier: Iterable[Row]) -> list[Row]:
    """Who looks guilty and is not: each named once, the suspects never."""
    guilty = suspect_ranks(bodies[0])
    chosen: dict[str, Row] = {}
    own = list(bodies[0].get("ruled_out") or ())
    others = [row for body in [*bodies[1:], *consequences] for row in body.get("ruled_out") or ()]
    followers = [row for body in consequences for row in _explain_away(body, bodies[0])]
    named = frozenset(rank for row in [*own, *others, *followers] for rank in ranks_of_row(row))
    # "ranks 0-2" of an older revision has nothing to add once each of them has its own words.
    kept = [row for row in earlier if not (ranks_of_row(row) and ranks_of_row(row) <= named)]
    for row in [*own, *others, *followers, *kept]:
        who = str(row.get("who"))
        if who not in chosen and not (ranks_of_row(row) & guilty) and len(chosen) < MAX_RULED_OUT:
            chosen[who] = row
    return sorted(chosen.values(), key=lambda row: (min(ranks_of_row(row), default=1 << 30), str(row["who"])))


def _explain_away(consequence: Body, cause: Body) -> list[Row]:
    delay = onset_of(consequence) - onset_of(cause)
    return [
        {
            **_whom(suspect),
            "who": f"{suspect.get('scope')} {suspect.get('id')}",
            "looks_guilty": kind_of(consequence).value,
            "because": f"it began {delay:.1f} s after the cause" if delay >= 0 else "the cause explains it",
        }
        for suspect in consequence.get("suspects") or ()
    ]


def _whom(suspect: Row) -> Row:
    """The machine part of ``who``, where it is a rank or a node."""
    rank = suspect.get("rank")
    fact = EvidenceFact(rank=rank, node="" if rank is not None else str(suspect.get("node") or ""))
    return {FACT: written} if (written := write_fact(fact)) else {}


def _fill(known: dict[str, Any], other: Row) -> dict[str, Any]:
    filled = dict(known)
    for name, value in other.items():
        mine = filled.get(name)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            filled[name] = _fill(dict(mine), value)
        elif mine is None:
            filled[name] = value
    return filled
