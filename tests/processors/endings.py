"""How ranks ended, as rows of evidence that findings carry."""

from __future__ import annotations

from typing import Any

from whichrank.telemetry.evidence_facts import FACT, EvidenceFact, How, write_fact


def raised_fact(words: str, **where: Any) -> EvidenceFact:
    """words: ``"OSError: [Errno 5] I/O error"``. where: other fields of the fact."""
    kind, _, message = words.partition(": ")
    return EvidenceFact(how=How.RAISED, type=kind, message=message, **where)


def row_of(signal: str, source: str, time: float, fact: EvidenceFact | None) -> dict[str, Any]:
    """A row whose sentence is nothing that any program may rely on."""
    row = {"signal": signal, "source": source, "time": time, "value": None, "shows": "for people"}
    return row if fact is None else {**row, FACT: write_fact(fact)}
