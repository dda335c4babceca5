"""What was said of a run, as facts in one line of JSON, and what of it is wrong.

Facts can be committed (``record/loops-SEED.jsonl``): figures outlive the machine that they were measured on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.outside.outcomes import Outcome, Planned

#: Kinds of faults, and the kinds of incidents that are right.
RIGHT: Mapping[str, tuple[str, ...]] = {
    "hang": ("rank_not_entered",),
    "killed": ("rank_not_entered",),
    "all": ("rank_not_entered",),
    "kill": ("rank_died",),
    "stop": ("rank_stopped",),
    "raise": ("rank_raised",),
    "exit": ("rank_died", "desync"),
    "nan": ("numeric_first_rank",),
    "slow": ("rank_slow",),
    "desync": ("desync",),
}
#: Of these nobody has to be called; and where the suspect stands is known by its own line.
TICKETS = ("nan", "slow", "killed")
WITH_LINE = ("hang", "killed", "raise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One run. key: of its plan. incidents: (severity, kind, ranks) of each that asked for a person. Seconds are from
    the fault on, asked_s to the first word that asks for a person; formula_s as the job itself told it. line: whether
    the suspect's line is the script's own one at the fault; None where none is told. version: of the measured code."""

    seed: int
    name: str
    key: str
    kind: str
    fault: str
    place: str
    manner: str
    rank: int
    known: bool
    incidents: tuple[tuple[str, str, tuple[int, ...]], ...]
    formula_s: float | None
    noticed_s: float | None
    asked_s: float | None
    paged_s: float | None
    line: bool | None
    where: str
    exit_code: int | None
    problem: str
    version: str
    came: tuple[int, ...] = ()

    @property
    def stands(self) -> bool:
        """A rank, or all, in which nothing moves."""
        return self.fault in ("hang", "killed", "all") and self.manner != "spin"


def key_of(planned: Planned) -> str:
    """Twelve hexadecimal digits of all that was drawn."""
    values = {**asdict(planned), "script": Path(planned.script).name}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def facts_of(outcome: Outcome, seed: int) -> Facts:
    planned, found = outcome.planned, outcome.incidents()
    where = _where(found[0]) if found else ""
    return Facts(
        seed=seed,
        name=planned.name,
        key=key_of(planned),
        kind=planned.kind,
        fault=planned.fault,
        place=planned.place,
        manner=planned.manner,
        rank=planned.rank,
        known=planned.known,
        incidents=tuple((str(d["severity"]), str(d["kind"]), tuple(ranks_of(d))) for d in found),
        formula_s=outcome.formula_s(),
        noticed_s=_rounded(outcome.said_after_s("info")),
        asked_s=_rounded(outcome.said_after_s("ticket")),
        paged_s=_rounded(outcome.said_after_s("page")),
        line=where == outcome.where[0] if where and outcome.where else None,
        where=":".join(Path(where).name.split(":")) if where else "",
        exit_code=outcome.exit_code,
        problem=outcome.problem,
        version=outcome.version,
        came=tuple(outcome.came),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _where(document: Mapping[str, Any]) -> str:
    told = next((item["where"] for item in document["suspects"] if item.get("where")), None)
    return f"{told['file']}:{told['line']}" if told and told.get("file") else ""


def ranks_of(document: Mapping[str, Any]) -> list[int]:
    return [int(item["rank"]) for item in document["suspects"] if item.get("rank") is not None]


def problems_of(facts: Facts) -> list[str]:
    """What is wrong with what was said; [] nothing."""
    if facts.problem:
        return [facts.problem]
    if not facts.fault:
        return [f"{severity} {kind} {list(ranks)} in a sound job" for severity, kind, ranks in facts.incidents]
    if not facts.incidents:
        return ["nothing was said"]
    problems = []
    if facts.asked_s is not None and facts.asked_s < 0.0:
        problems.append("somebody was called before the fault")
    if len(facts.incidents) > 1:
        problems.append(f"{len(facts.incidents)} incidents: {', '.join(kind for _, kind, _ in facts.incidents)}")
    _, kind, ranks = facts.incidents[0]
    if kind not in RIGHT[facts.fault]:
        problems.append(f"kind {kind}")
    wanted = facts.came if facts.fault == "all" else (facts.rank,)
    if ranks != wanted:
        problems.append(f"names {list(ranks)}, not {list(wanted)}")
    if facts.fault not in TICKETS and facts.paged_s is None:
        problems.append("no page")
    if facts.fault == "desync" and kind == "desync" and not facts.where:
        problems.append("no line")  # which one is right depends on the manner: the call too many, or the one after
    if facts.fault in WITH_LINE and facts.line is not True and kind in RIGHT[facts.fault]:
        problems.append(f"line {facts.where or 'not told'}")
    return problems


def facts_from(values: Mapping[str, Any]) -> Facts:
    """Of a line of a record. Raises TypeError for fields of another harness."""
    incidents = tuple((severity, kind, tuple(ranks)) for severity, kind, ranks in values["incidents"])
    return Facts(**{**values, "incidents": incidents, "came": tuple(values.get("came", ()))})
