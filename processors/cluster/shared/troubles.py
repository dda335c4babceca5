"""A single job's incident in the few words that tell whether other jobs share its cause. Pure; a row of state each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity

MAX_NODES, MAX_RANKS, MAX_TEXT, MAX_STALLS = 64, 64, 400, 16
#: By elimination: no cause of the node's own, and so none that rules a shared one out.
_BY_ELIMINATION = "no_node_fault"
_HARDWARE = frozenset({Scope.NODE.value, Scope.GPU.value, Scope.LINK.value})
_RAISED = "rank.exception"
_ENDS = frozenset({_RAISED, "rank.exit"})
#: In the row of those that raised what another one had (processors/job/crash_story.py).
_REPEATED = " as well: one cause, "
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_WORDS_OF_RANK = re.compile(r"^(a thread of )?rank \d+ (on \S+ )?")


#: Kinds that are noticed before they are a page.
_WAITS = frozenset({Kind.RANK_NOT_ENTERED.value, Kind.COLLECTIVE_STALLED.value, Kind.DEADLOCK.value})
_TELEMETRY, _PLANNED = Bucket.TELEMETRY.value, Bucket.PLANNED.value


@dataclass(slots=True, kw_only=True)
class Trouble:
    """Times are Unix seconds; ``opened`` is the bus's. step: of the training, as far as checkpoints tell, -1 unknown.

    phase: of the suspects; of a job that is slow as a whole what grew: "exchange", "data", "own" (work).
    error: how the suspect ended, without its numbers. own: the condition that explains it by itself, {} none.
    leader: the incident that it has joined, "" none; its own id where it leads.
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
    #: Of one that comes and goes: when it began and ended each time so far.
    stalls: list[list[float]] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.resolved is None

    @property
    def lost_nodes(self) -> int:
        """How many nodes are gone, as one job tells it."""
        return len(self.nodes) if self.kind == Kind.NODE_LOST.value else 0

    @property
    def is_urgent(self) -> bool:
        """A page, or a wait that was noticed and becomes one if it lasts."""
        if self.severity == Severity.PAGE.value:
            return True
        return self.kind in _WAITS and self.bucket == Bucket.COMMUNICATION_HANG.value

    @property
    def is_telemetry(self) -> bool:
        return self.bucket == _TELEMETRY

    @property
    def is_planned(self) -> bool:
        return self.bucket == _PLANNED

    @property
    def words(self) -> tuple[str, str]:
        """What it is, in the words of the first that ended: how many said the same differs from time to time."""
        return self.kind, self.error.partition(" | ")[0]

    def pack(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, row: bytes) -> Trouble:
        known = json.loads(row)
        return cls(**{name: value for name, value in known.items() if name in cls.__slots__})


def trouble_of(single: Mapping[str, Any], primary: Mapping[str, Any], opened: float, resolved: float | None) -> Trouble:
    """single: the fields of the incident as its own job tells it; primary: the body that names its cause."""
    suspects: Sequence[Mapping[str, Any]] = single["suspects"]
    step = (single.get("first_bad") or {}).get("step")
    job = single["job"]
    return Trouble(
        id=single["id"],
        job=job["id"] or "",
        attempt=job["attempt"] or "",
        run=job["run"] or "",
        kind=single["kind"],
        bucket=single["bucket"],
        severity=single["severity"],
        onset=float(single["times"]["onset"]),
        opened=opened,
        resolved=resolved,
        step=-1 if step is None else int(step) + int(primary.get("steps_before") or 0),
        ranks=sorted({int(s["rank"]) for s in suspects if s.get("rank") is not None})[:MAX_RANKS],
        nodes=_nodes(single)[:MAX_NODES],
        gpus=sorted({str(s["gpu"]) for s in suspects if s.get("gpu")})[:MAX_RANKS],
        phase=_phase(suspects) or str(primary.get("grew") or ""),
        place=_place(suspects),
        error=_error(single, primary),
        own=_own(single.get("cause")),
        confidence=float(single.get("confidence") or 0.5),
        victims=int((single.get("victims") or {}).get("count") or 0),
        stalls=[[float(begin), float(end)] for begin, end in (primary.get("stalls") or ())][-MAX_STALLS:],
        blames=_blames(single),
    )


def fingerprint(text: str) -> str:
    """The same for the same error, whoever made it and with whatever numbers."""
    return _NUMBERS.sub("#", _WORDS_OF_RANK.sub("", text.strip().lower()))[:MAX_TEXT]


def _nodes(single: Mapping[str, Any]) -> list[str]:
    """The suspects'; of a telemetry incident, which suspects nobody, those that are not seen."""
    nodes = {str(suspect["node"]) for suspect in single["suspects"] if suspect.get("node")}
    if single["bucket"] == Bucket.TELEMETRY.value:
        sources = [str(row.get("source") or "") for row in single["evidence"]]
        nodes |= {source.removeprefix("node ") for source in sources if source.startswith("node ")}
    return sorted(nodes)


def _error(single: Mapping[str, Any], primary: Mapping[str, Any]) -> str:
    """What was raised; the exit that follows adds nothing to it, and is told later."""
    ends = [row for row in single["evidence"] if row.get("signal") in _ENDS]
    rows = [row for row in ends if row["signal"] == _RAISED] or ends
    # The row that counts who raised the same has the same time as the first of them, and says less.
    rows = sorted(rows, key=lambda row: _REPEATED in str(row.get("shows") or ""))
    texts = [str(row.get("shows") or "").rpartition(" at ")[0] or str(row.get("shows") or "") for row in rows[:2]]
    if not texts and single["kind"] in (Kind.NUMERIC_FIRST_RANK.value, Kind.NUMERIC_ALL.value):
        texts = [str(row.get("signal") or "") for row in (primary.get("evidence") or ())[:1]]
    return " | ".join(map(fingerprint, texts))[:MAX_TEXT]


def _phase(suspects: Sequence[Mapping[str, Any]]) -> str:
    phases = Counter(str((s.get("where") or {}).get("phase") or "") for s in suspects)
    phases.pop("", None)
    return min(phases, key=lambda phase: (-phases[phase], phase)) if phases else ""


def _blames(single: Mapping[str, Any]) -> bool:
    action = (single.get("advice") or {}).get("action")
    return single["scope"] in _HARDWARE or action == Action.RESTART_WITHOUT_NODE.value


def _place(suspects: Sequence[Mapping[str, Any]]) -> str:
    where = (suspects[0].get("where") or {}) if suspects else {}
    return f"{where['file']}:{where['line']}" if where.get("file") and where.get("line") is not None else ""


def _own(cause: Mapping[str, Any] | None) -> dict[str, str]:
    if not cause or cause.get("condition") == _BY_ELIMINATION:
        return {}
    return {name: str(cause.get(name) or "") for name in ("condition", "device_kind", "domain", "entity")}
