"""One incident and what belongs to it: found by its id, or the beginning of it, among all revisions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...telemetry.incident_document import IncidentDocument, SuspectEntry, word_of
from ..run_folder.people_codec import PeopleLabel
from ..run_folder.run_description import RunDescription
from ..run_folder.run_directory import Unusable

#: Evidence of one node is 20 MB; of one incident so much is taken at most.
MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A piece of evidence under the name that an agent gives it: INCIDENT-LAUNCH-rank-00002-PID-WHAT."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """One incident: its revisions, oldest first, and the last one of each incident that was merged into it."""

    revisions: tuple[IncidentDocument, ...]
    merged: tuple[IncidentDocument, ...] = ()

    @property
    def last(self) -> IncidentDocument:
        """The incident's last revision."""
        return self.revisions[-1]

    @property
    def ids(self) -> tuple[str, ...]:
        """The incident's own id, then those of what was merged into it: evidence was asked for under each."""
        return tuple(incident.id for incident in (self.last, *self.merged))

    def suspects(self) -> list[SuspectEntry]:
        """Suspects of the incident and of those that were merged into it, each once."""
        found: dict[tuple[str, str, int | None], SuspectEntry] = {}
        for incident in (self.last, *self.merged):
            for suspect in incident.suspects:
                found.setdefault((word_of(suspect.scope), suspect.id, suspect.pid), suspect)
        return list(found.values())


class IncidentSource(Protocol):
    """``where`` says what is read; ``problems`` what could not be, one line each."""

    where: str
    problems: list[str]

    def revisions(self) -> list[IncidentDocument]:
        """All revisions there are, in the order in which they were concluded. Raises Unusable, KafkaTrouble."""
        ...

    def follow(self) -> Iterator[list[IncidentDocument]]:
        """Revisions as they come, maybe some that ``revisions`` gave before; an empty list now and then. It ends where
        nothing more can come. Raises Unusable, KafkaTrouble.
        """
        ...

    def evidence(self, chosen: Chosen) -> list[KeptFile]:
        """What agents have kept or sent for this incident. Raises Unusable, KafkaTrouble."""
        ...

    def run(self) -> RunDescription | None:
        """What run.json says of the run; None where there is none."""
        ...

    def label(self, incident: IncidentDocument, label: PeopleLabel) -> None:
        """Keeps what a person says of this incident. Raises Unusable, KafkaTrouble."""
        ...


def choose(revisions: Sequence[IncidentDocument], wanted: str) -> Chosen:
    """The incident with this id or beginning of one; of one that was merged, the one that took it over.

    Raises Unusable where there is none or several.
    """
    by_id: dict[str, list[IncidentDocument]] = {}
    for incident in revisions:
        by_id.setdefault(incident.id, []).append(incident)
    found = [id_ for id_ in by_id if id_ == wanted] or [id_ for id_ in by_id if wanted and id_.startswith(wanted)]
    if not found:
        raise Unusable(f"no incident {wanted}; whichrank incidents list names the {len(by_id)} there are")
    if len(found) > 1:
        raise Unusable(f"{wanted} is the beginning of {len(found)} incidents: {', '.join(sorted(found)[:4])}")
    seen = {found[0]}
    last = by_id[found[0]][-1]
    while (into := last.merged_into) is not None and into in by_id and into not in seen:
        seen.add(into)
        last = by_id[into][-1]
    return Chosen(revisions=tuple(by_id[last.id]), merged=tuple(_merged_into(last.id, by_id)))


def _merged_into(id_: str, by_id: dict[str, list[IncidentDocument]]) -> list[IncidentDocument]:
    """Last revisions of all that went into it, directly or by way of others."""
    family, grew = {id_}, True
    while grew:
        more = {other for other, of in by_id.items() if of[-1].merged_into in family} - family
        grew, family = bool(more), family | more
    return [by_id[other][-1] for other in by_id if other in family and other != id_]


def belongs(name: str, chosen: Chosen) -> bool:
    """Whether a kept file (its name) is of this incident.

    Asked for by it, or of a suspect, or a stack of one who waited meanwhile.
    """
    if name.startswith(tuple(f"{id_}-" for id_ in chosen.ids)):
        return True
    attempts = {str(incident.job.attempt) for incident in (chosen.last, *chosen.merged)}
    launch, separator, rest = name.partition("-rank-")
    if not separator or "-" in launch:  # another incident has asked for it
        return False
    if launch in attempts and rest.endswith(".stack.txt"):
        return True
    rank, _, rest = rest.partition("-")
    pid = rest.partition("-")[0].partition(".")[0]
    for suspect in chosen.suspects():
        same_rank = suspect.rank is not None and rank == f"{suspect.rank:05d}"
        if same_rank and (launch in attempts or pid == str(suspect.pid)):
            return True
    return False
