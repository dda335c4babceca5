"""An incident document as fields (docs/incident.md): what programs work with, between JSON and JSON.

``incident_reading`` makes it of what lies on a topic or in a file, ``incident_writing`` its JSON. Words of closed sets
are their members, and plain text where this release does not know them (``word_of``). ``extra``: fields of an object
that only a later release knows, as JSON text, so that they are written again; "" none. Findings are made of the same
rows (``processors/finding_document.py``). Pure data, standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .evidence_facts import EvidenceFact
from .incident import SCHEMA_VERSION
from .trust import IdBy, Trust
from .vocabulary import Action, Bucket, Change, IncidentState, Kind, Scope, Severity

#: Measured, or a word: what a row of evidence is about.
Value = float | int | str


class CountedBy(str, Enum):
    """Who counted what a job asks of a service: the server, by job, or the nodes of the job, each for itself."""

    SERVER = "server"
    CLIENTS = "clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlace:
    """Where a rank's program is, as far as that is known."""

    file: str | None = None
    line: int | None = None
    phase: str | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectEntry:
    """Who is blamed: a rank, or a node with its ranks (as ranges), or what a condition or several jobs name."""

    scope: Scope | str | None = None
    id: str = ""
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    pid: int | None = None
    where: CodePlace | None = None
    probability: float | None = None
    ranks: str | None = None
    extra: str = ""

    @property
    def phase(self) -> str | None:
        """Phase in which the suspect's program is; None where nobody knows."""
        return self.where.phase if self.where is not None else None

    @property
    def line(self) -> int | None:
        """Line of the user's code where the suspect's program is; None where nobody knows."""
        return self.where.line if self.where is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRow:
    """signal: what was measured. source: who says it. time_s: Unix seconds. shows: the sentence, read by people alone.

    fact: what it was made of. condition: of a row that a condition or a shared cause has added, its name; such rows are
    made anew for each revision. trust: who could have written it; None of an earlier release, or of what the judge
    itself has compared.
    """

    signal: str = ""
    source: str = ""
    time_s: float | None = None
    value: Value | None = None
    shows: str = ""
    fact: EvidenceFact | None = None
    condition: str = ""
    trust: Trust | str | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOutEntry:
    """Who only looks guilty. who: in words. ranks: as ranges. fact: with the rank or node, where a finding's suspect is
    explained by another one. condition: of a row that a condition or a shared cause has added."""

    who: str = ""
    looks_guilty: str = ""
    because: str = ""
    ranks: str | None = None
    fact: EvidenceFact | None = None
    condition: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBadPlace:
    """Where in the training it began. sequence: of the collective in its group."""

    step: int | None = None
    group: str | None = None
    sequence: int | None = None
    operation: str | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReference:
    """Which job it is about, and how that is now: running, stopped, restarting.

    owner_id: whose it is by the kernel, a uid or "namespace/NAME". id_by: who says that it has this id; None unknown.
    """

    run: str | None = None
    id: str | None = None
    name: str | None = None
    attempt: str | None = None
    owner: str | None = None
    now: str | None = None
    owner_id: str | None = None
    id_by: IdBy | str | None = None
    extra: str = ""

    @property
    def is_claimed(self) -> bool:
        """Whether nobody but the job itself says that it is the scheduler's job of this id."""
        return self.id_by == IdBy.CLAIMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """Who waits or fell with it. ranks: as ranges; None of several jobs."""

    count: int | None = None
    ranks: str | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentCost:
    """gpu_seconds: None while nothing is known. charged_to: the id of the incident that counts it, "" this one."""

    gpu_seconds: float | None = None
    charged_to: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShare:
    """A job that is concerned. role: culprit, victim. victims, cost: None of those of which nothing is known."""

    id: str | None = None
    attempt: str | None = None
    role: str | None = None
    victims: Victims | None = None
    cost: IncidentCost | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of the job the verdict rests on, in ranks."""

    ranks_seen: int | None = None
    ranks_expected: int | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentTimes:
    """Unix seconds. resolved_s: None while it lasts; the others None where nobody has told."""

    onset_s: float = 0.0
    detected_s: float | None = None
    attributed_s: float | None = None
    resolved_s: float | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentHistory:
    """suspect_incidents: earlier ones of the same suspect in this job."""

    suspect_incidents: int | None = None
    last_change: str | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The ``number``-th try of ``of``, after which a person is asked."""

    number: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalmAdvice:
    """What would be advised if the run had not failed so often lately. by: automatic, human."""

    action: Action | str | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentAdvice:
    """by: automatic, human. retry: None of what is not tried again. if_seldom: only where how often it failed lately
    changes the advice.
    """

    action: Action | str | None = None
    by: str | None = None
    text: str | None = None
    retry: Retry | None = None
    if_seldom: CalmAdvice | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentCause:
    """The condition that explains it, or what several jobs share. since_s: Unix seconds.

    trust: told where only what a user could have written says so. counted_by: of a job that burdens a service, who
    counted what it asks for.
    """

    condition: str | None = None
    entity: str | None = None
    device_kind: str | None = None
    device: str | None = None
    since_s: float | None = None
    domain: str | None = None
    trust: Trust | str | None = None
    counted_by: CountedBy | str | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentHold:
    """The page waits for a cause that several jobs share, until_s (Unix seconds) at the latest."""

    until_s: float | None = None
    because: str | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingWord:
    """Who has acknowledged or closed it, and when (Unix seconds)."""

    by: str | None = None
    time_s: float | None = None
    because: str | None = None
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentLabel:
    """What a person has said. wrong: what it says is not so. time_s: Unix seconds of the newest word.

    keys: of the JSON that it was read from, in their order, since it is repeated as it was said.
    """

    cause: str | None = None
    wrong: bool | None = None
    by: str | None = None
    time_s: float | None = None
    acknowledged: HandlingWord | None = None
    closed: HandlingWord | None = None
    keys: tuple[str, ...] = ("cause", "wrong", "by", "time")
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentDocument:
    """One revision. revision, change: 0 and "" until it is published.

    advice, cost, cause, hold, label: None where there is none.
    """

    schema: int = SCHEMA_VERSION
    id: str = ""
    revision: int = 0
    change: Change | str = ""
    state: IncidentState | str = ""
    merged_into: str | None = None
    severity: Severity | str = ""
    cluster: str | None = None
    job: JobReference = field(default_factory=JobReference)
    jobs: tuple[JobShare, ...] = ()
    bucket: Bucket | str = ""
    kind: Kind | str = ""
    scope: Scope | str | None = None
    suspects: tuple[SuspectEntry, ...] = ()
    victims: Victims = field(default_factory=Victims)
    coverage: Coverage = field(default_factory=Coverage)
    first_bad: FirstBadPlace = field(default_factory=FirstBadPlace)
    times: IncidentTimes = field(default_factory=IncidentTimes)
    evidence: tuple[EvidenceRow, ...] = ()
    ruled_out: tuple[RuledOutEntry, ...] = ()
    history: IncidentHistory = field(default_factory=IncidentHistory)
    confidence: float | None = None
    advice: IncidentAdvice | None = None
    cost: IncidentCost | None = None
    cause: IncidentCause | None = None
    hold: IncidentHold | None = None
    label: IncidentLabel | None = None
    extra: str = ""


def word_of(value: Enum | str | None) -> str:
    """The word as it stands in the document, for a member of an enum or a text; "" for None."""
    return str(value.value) if isinstance(value, Enum) else value or ""
