"""A job that ends after a restart as it did before it: people have been called for it, and know. Pure over Memory."""

from __future__ import annotations

from ....telemetry.incident_document import EvidenceRow
from ....telemetry.vocabulary import Severity
from .memory import Memory
from .troubles import Trouble


def known_before(memory: Memory, trouble: Trouble) -> Trouble | None:
    """The open page of an earlier attempt of its run in which the same ranks ended with the same error.

    An incident is open until the job has passed the step of it: so the job has not got any further since then. None:
    there is none, or nobody has been called for it.
    """
    if not trouble.error or not trouble.ranks:
        return None
    for other in memory.of_run(trouble):
        is_same = other.words == trouble.words and other.ranks == trouble.ranks and other.own == trouble.own
        is_before = other.attempt != trouble.attempt and other.opened < trouble.opened
        was_called_for = other.is_open and other.severity == Severity.PAGE.value and not other.lowered
        if is_same and is_before and was_called_for and not other.held_until and not other.repeats:
            return other
    return None


def repeat_row(known: Trouble) -> EvidenceRow:
    """The row of evidence that names the incident for which people were called."""
    return EvidenceRow(
        signal="history.same_end",
        source=f"job {known.job}, attempt {known.attempt}",
        time_s=known.onset,
        value=known.id,
        shows=f"attempt {known.attempt} ended in the same way, and the job has not got past that: incident {known.id} "
        "is open, and people were called for that one",
    )
