"""A job that ends after a restart as it did before it: people have been called for it, and know. Pure over Memory."""

from __future__ import annotations

from ....telemetry.incident_document import EvidenceRow
from ....telemetry.vocabulary import Severity
from .memory import Memory
from .troubles import Trouble

SIGNAL = "history.same_end"


def known_before(memory: Memory, trouble: Trouble) -> Trouble | None:
    """The open page of an earlier attempt of its run in which the same ranks ended there with the same error.

    An incident is open until the job has passed the step of it: so the job has not got any further since then. None:
    there is none, nobody has been called for it, somebody called it wrong, or it has a cause in common with others,
    which this one may join. (On another node it tells more: ``history.same_place_again``.)
    """
    if not trouble.error or not trouble.ranks:
        return None
    for other in memory.of_run(trouble):
        is_there = not set(other.nodes).isdisjoint(trouble.nodes) and other.ranks == trouble.ranks
        is_same = is_there and other.words == trouble.words and other.own == trouble.own
        is_before = other.attempt != trouble.attempt and other.opened < trouble.opened
        was_called_for = other.is_open and other.severity == Severity.PAGE.value and not other.lowered
        is_denied = other.id in memory.told and memory.told[other.id].wrong
        is_first = not other.held_until and not other.repeats and not other.leader
        if is_same and is_before and was_called_for and is_first and not is_denied:
            return other
    return None


def repeat_row(known: Trouble) -> EvidenceRow:
    """The row of evidence that names the incident for which people were called."""
    return EvidenceRow(
        signal=SIGNAL,
        source=f"job {known.job}, attempt {known.attempt}",
        time_s=known.onset,
        value=known.id,
        shows=f"attempt {known.attempt} ended in the same way, and the job has not got past that: incident {known.id} "
        "is open, and people were called for that one",
        condition=SIGNAL,  # it lies over what the job says, and is made anew each time
    )
