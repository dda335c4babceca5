"""What EntityOperator tells of a condition, as fields, and its JSON. Pure.

``entity/conditions.Condition`` is what an entity remembers of it; a ``ConditionReport`` is what others need to know to
say whether it explains an incident. Fields that an earlier release did not tell stay at what they are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..telemetry.trust import Trust
from .older_sentences import event_of_condition


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedRank:
    """A rank that a condition concerns. pid: 0 not known. device: of ranks that use another device of the same kind."""

    job: str
    rank: int
    attempt: str = ""
    world: str = ""
    pid: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionReport:
    """Times are Unix seconds by the entity's clock. until: None while it lasts. text: the line or words that show it.

    ranks: whom it concerns; others: who uses devices of the same kind, to whom it is nothing. explains: kinds of
    incidents. event: the kernel's or driver's word, "" none. before_s, lag_s: it may be told so long before or after
    what it does. lasts_s: 0: it ends by what is measured. ends_with: how a rank that met it ends, by name. trust: who
    could have written its signals; None: it was not said.
    """

    name: str
    entity: str
    since: float
    entity_kind: str = "node"
    device_kind: str = ""
    device: str = ""
    severity: str = "info"
    domain: str = ""
    scope: str = ""
    action: str | None = None
    explains: tuple[str, ...] = ()
    last: float = 0.0
    text: str = ""
    source: str = ""
    trust: Trust | None = None
    until: float | None = None
    count: int = 1
    value: str = ""
    event: str = ""
    pid: int = 0
    of_process: bool = False
    of_job: str = ""
    before_s: float = 60.0
    lag_s: float = 2.0
    lasts_s: float = 0.0
    tolerated_s: float = 0.0
    tolerated_times: int = 0
    ends_with: str = ""
    at_once: bool = False
    planned: bool = False
    known: float = 0.0
    symptom: bool = False
    tolerated: bool = False
    is_state: bool = False
    ranks: tuple[AffectedRank, ...] = ()
    others: tuple[AffectedRank, ...] = ()

    def ranks_of(self, job: str) -> list[AffectedRank]:
        """Ranks of this job that the condition concerns."""
        return [rank for rank in self.ranks if rank.job == job]

    @property
    def gpu(self) -> str:
        """The device without what follows its first slash: of a link of a GPU (ID/NUMBER) the GPU's id."""
        return self.device.partition("/")[0]


_JOB_LOG = "job_log"
_NAMES = tuple(each.name for each in fields(ConditionReport))
_OF_RANKS = tuple(each.name for each in fields(AffectedRank))


def write_condition(condition: ConditionReport) -> dict[str, Any]:
    """A condition as JSON values, for ``read_condition``."""
    written = {name: getattr(condition, name) for name in _NAMES}
    written["explains"] = list(condition.explains)
    written["trust"] = None if condition.trust is None else condition.trust.value
    for name in ("ranks", "others"):
        written[name] = list(map(_write_rank, written[name]))
    return written


def _write_rank(rank: AffectedRank) -> dict[str, Any]:
    written = {name: getattr(rank, name) for name in _OF_RANKS}
    return written if rank.device else {name: value for name, value in written.items() if name != "device"}


def read_condition(document: Mapping[str, Any]) -> ConditionReport:
    """A condition that this release or an earlier one wrote.

    Raises KeyError, TypeError or ValueError for what is none.
    """
    values = {name: document[name] for name in _NAMES if document.get(name) is not None}
    for name in ("since", "last", "until", "known", "before_s", "lag_s", "lasts_s", "tolerated_s"):
        if name in values:
            values[name] = float(values[name])
    values["event"] = event_of_condition(document)
    values["trust"] = _read_trust(values.get("trust"), str(values.get("source", "")))
    values["explains"] = tuple(document.get("explains") or ())
    for name in ("ranks", "others"):
        values[name] = tuple(map(_read_rank, document.get(name) or ()))
    return ConditionReport(**values)


def _read_trust(told: Any, source: str) -> Trust | None:
    """An earlier release did not tell it: of a rank's log it follows from the source."""
    try:
        return Trust(told)
    except ValueError:
        return Trust.USER if source == _JOB_LOG else None


def _read_rank(written: Mapping[str, Any]) -> AffectedRank:
    known = {name: written[name] for name in _OF_RANKS if written.get(name) is not None}
    return AffectedRank(**{**known, "job": str(written["job"]), "rank": int(written["rank"])})
