"""A single job's incident in the few words that tell whether other jobs share its cause. Pure; a row of state each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ....telemetry.evidence_facts import EvidenceFact, How, signal_word
from ....telemetry.incident_document import IncidentCause, IncidentDocument, SuspectEntry, word_of
from ....telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity
from ...older_sentences import fact_of_evidence, hows_of_trouble, key_of_trouble
from ...told_finding import ToldFinding

MAX_NODES, MAX_RANKS, MAX_TEXT, MAX_STALLS = 64, 64, 400, 16
#: By elimination: no cause of the node's own, and so none that rules a shared one out.
_BY_ELIMINATION = "no_node_fault"
_HARDWARE = frozenset({Scope.NODE.value, Scope.GPU.value, Scope.LINK.value})
_RAISED = "rank.exception"
_ENDS = frozenset({_RAISED, "rank.exit"})
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
#: Between the errors of several rows.
_AND = " | "

#: Kinds that are noticed before they are a page.
_WAITS = frozenset({Kind.RANK_NOT_ENTERED.value, Kind.COLLECTIVE_STALLED.value, Kind.DEADLOCK.value})
_TELEMETRY, _PLANNED = Bucket.TELEMETRY.value, Bucket.PLANNED.value


@dataclass(slots=True, kw_only=True)
class Trouble:
    """A single job's incident in few words. Times are Unix seconds; ``opened`` is the bus's.

    step: of the training, as far as checkpoints tell, -1 unknown. phase: of the suspects; of a job that is slow as a
    whole what grew: "exchange", "data", "own" (work). error: how the suspect ended, without its numbers: errors are
    compared by it. said: what was raised, in its own words, without its numbers; hows: how it ended. own: the condition
    that explains it by itself, {} none. leader: the incident that it has joined, "" none; its own id where it leads.
    """

    id: str
    job: str
    attempt: str
    run: str
    kind: str
    bucket: str
    severity: str
    onset: float
    opened: float
    resolved: float | None
    step: int
    ranks: list[int]
    nodes: list[str]
    gpus: list[str]
    phase: str
    place: str
    error: str
    own: dict[str, str]
    confidence: float
    victims: int
    #: Whether its own job's document names hardware as guilty: a node, a device, a link.
    blames: bool = False
    said: str = ""
    hows: list[str] = field(default_factory=list)
    leader: str = ""
    held_until: float = 0.0
    #: The plan that lowers it; whether the clock of its node was told to be doubtful.
    lowered: str = ""
    is_noted: bool = False
    #: What is counted against nodes for it. Whether it has changed since incidents were last looked at together.
    blamed: dict[str, float] = field(default_factory=dict)
    is_fresh: bool = True
    #: Joint cause that it was given last: rule and value.
    cause: list[str] = field(default_factory=list)
    #: The open page of an earlier attempt that it repeats; "": it is the first.
    repeats: str = ""
    #: Whether the incident that it leads outlasts its jobs (``standing``).
    stands: bool = False
    #: Of one that comes and goes: when it began and ended each time so far.
    stalls: list[list[float]] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether its incident is still open."""
        return self.resolved is None

    @property
    def is_urgent(self) -> bool:
        """Whether it is a page, or a wait that was noticed and becomes one if it lasts."""
        if self.severity == Severity.PAGE.value:
            return True
        return self.kind in _WAITS and self.bucket == Bucket.COMMUNICATION_HANG.value

    @property
    def is_telemetry(self) -> bool:
        """Whether whichrank cannot see; nothing is wrong with the job then."""
        return self.bucket == _TELEMETRY

    @property
    def is_planned(self) -> bool:
        """Whether the stop was wanted by somebody, or lies in an announced maintenance."""
        return self.bucket == _PLANNED

    @property
    def words(self) -> tuple[str, str]:
        """Kind, and error of the first that ended: how many said the same differs from time to time."""
        return self.kind, self.error.partition(_AND)[0]

    def pack(self) -> bytes:
        """The trouble as a row of the table, for ``unpack``."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, row: bytes) -> Trouble:
        """A trouble from a row that ``pack`` of this release or an earlier one made."""
        known = json.loads(row)
        if "hows" not in known:
            error = known["error"]
            known |= {"error": key_of_trouble(error), "said": error, "hows": hows_of_trouble(error)}
        return cls(**{name: value for name, value in known.items() if name in cls.__slots__})


def lost_nodes(trouble: Trouble) -> int:
    """How many nodes its job has lost at once; 0 where the trouble is of another kind."""
    return len(trouble.nodes) if trouble.kind == Kind.NODE_LOST.value else 0


def trouble_of(single: IncidentDocument, primary: ToldFinding, opened: float, resolved: float | None) -> Trouble:
    """An incident as a trouble, to be compared with other jobs'. opened, resolved: Unix seconds; resolved None: it is
    open.

    single: the incident as its own job tells it; primary: the finding that names its cause.
    """
    suspects, step, job, ends = single.suspects, single.first_bad.step, single.job, _ends(single)
    return Trouble(
        id=single.id,
        job=job.id or "",
        attempt=job.attempt or "",
        run=job.run or "",
        kind=word_of(single.kind),
        bucket=word_of(single.bucket),
        severity=word_of(single.severity),
        onset=float(single.times.onset_s),
        opened=opened,
        resolved=resolved,
        step=-1 if step is None else step + primary.steps_before,
        ranks=sorted({s.rank for s in suspects if s.rank is not None})[:MAX_RANKS],
        nodes=_nodes(single)[:MAX_NODES],
        gpus=sorted({s.gpu for s in suspects if s.gpu})[:MAX_RANKS],
        phase=_phase(suspects) or primary.grew,
        place=_place(suspects),
        error=_error(single, primary, ends),
        said=fingerprint(_AND.join(fact.said for fact in ends)),
        hows=sorted({each.how.value for fact in ends for each in (fact, *fact.endings) if each.how is not None}),
        own=_own(single.cause),
        confidence=float(single.confidence or 0.5),
        victims=single.victims.count or 0,
        stalls=[[begin, end] for begin, end in primary.stalls][-MAX_STALLS:],
        blames=_blames(single),
    )


def fingerprint(text: str) -> str:
    """The text in lower case without its numbers, cut short: the same for the same error, whoever made it."""
    return _NUMBERS.sub("#", text.strip().lower())[:MAX_TEXT]


def _nodes(single: IncidentDocument) -> list[str]:
    """The suspects'; of a telemetry incident, which suspects nobody, those that are not seen."""
    nodes = {suspect.node for suspect in single.suspects if suspect.node}
    if single.bucket == Bucket.TELEMETRY:
        nodes |= {fact.node for fact in map(fact_of_evidence, single.evidence) if fact is not None and fact.node}
    return sorted(nodes)


def _ends(single: IncidentDocument) -> list[EvidenceFact]:
    """What was raised, by the first two that did; the exit that follows adds nothing to it, and is told later."""
    rows = [row for row in single.evidence if row.signal in _ENDS]
    rows = [row for row in rows if row.signal == _RAISED] or rows
    facts = [fact for row in rows if (fact := fact_of_evidence(row)) is not None]
    # The row that counts who raised the same has the same time as the first of them, and says less.
    return sorted(facts, key=lambda fact: fact.is_repeat)[:2]


def _error(single: IncidentDocument, primary: ToldFinding, ends: Sequence[EvidenceFact]) -> str:
    texts = list(map(_key, ends))
    if not texts and single.kind in (Kind.NUMERIC_FIRST_RANK, Kind.NUMERIC_ALL):
        texts = [row.signal for row in primary.evidence[:1]]
    return _AND.join(map(fingerprint, texts))[:MAX_TEXT]


def _key(fact: EvidenceFact) -> str:
    """Of an exception what it says, wherever it came; of another end where it came as well."""
    match fact.how:
        case How.RAISED:
            return fact.said or How.RAISED.value
        case How.TOGETHER | How.VICTIMS if fact.endings:
            return "; ".join(map(_key, fact.endings))
        case How.SIGNAL | How.ABORTED:
            name = signal_word(fact.signal)
        case How.EXIT:
            name = f"exit code {fact.exit_code}"
        case _:
            name = fact.how.value if fact.how is not None else ""
    sender = f" by {fact.sender.value}" if fact.sender is not None else ""
    return name + sender + (f" in {fact.phase}" if fact.phase else "")


def _phase(suspects: Sequence[SuspectEntry]) -> str:
    phases = Counter(suspect.phase or "" for suspect in suspects)
    phases.pop("", None)
    return min(phases, key=lambda phase: (-phases[phase], phase)) if phases else ""


def _blames(single: IncidentDocument) -> bool:
    action = single.advice.action if single.advice is not None else None
    return single.scope in _HARDWARE or action == Action.RESTART_WITHOUT_NODE


def _place(suspects: Sequence[SuspectEntry]) -> str:
    where = suspects[0].where if suspects else None
    return f"{where.file}:{where.line}" if where is not None and where.file and where.line is not None else ""


def _own(cause: IncidentCause | None) -> dict[str, str]:
    if cause is None or cause.condition == _BY_ELIMINATION:
        return {}
    return {
        "condition": cause.condition or "",
        "device_kind": cause.device_kind or "",
        "domain": cause.domain or "",
        "entity": cause.entity or "",
        "device": cause.device or "",
    }
