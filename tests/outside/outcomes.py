"""What a run was to be, and what came of it, as it is kept beside its capture."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

#: What docs/verdicts.md asks of a page after a standstill: where the place is known to the job; and where it is not, or
#: the process stands in I/O, or nobody waits.
KNOWN_S, UNKNOWN_S = 7.0, 60.0
#: Faults that end with what is said of them, however quiet, and those in which nothing moves any more.
SOFT = ("slow", "nan", "pause")
MOTIONLESS = ("hang", "killed", "all", "stop")
THRESHOLD = re.compile(r"is a page from ([\d.]+) s on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """fault: of ``inject``, "" none. known: the job has been at the place often. turns: of the script, 0: no end.
    lasts_s: of a clean run, from its first turn; of a slow one, or one that a person ends, from the fault."""

    name: str
    script: str
    kind: str = ""
    fault: str = ""
    place: str = "call"
    manner: str = "sleep"
    rank: int = 1
    after_s: float = 8.0
    after_count: int = 100
    share: float = 0.3
    known: bool = True
    turns: int = 0
    lasts_s: float = 25.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def expected_s(self) -> float:
        """When a rank that stands still is to be a page, as far as the plan can know."""
        return KNOWN_S if self.known else UNKNOWN_S

    @property
    def is_motionless(self) -> bool:
        return self.fault in MOTIONLESS and self.manner != "spin"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """fired: Unix seconds, 0 never. where: FILE:LINE of the script at the fault, innermost first.

    came: of a fault of all ranks, those that stood at it, where the others wait for them before they come to it.
    """

    planned: Planned
    began: float = 0.0
    fired: float = 0.0
    where: list[str] = field(default_factory=list)
    came: list[int] = field(default_factory=list)
    exit_code: int | None = None
    revisions: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    version: str = ""

    def incidents(self) -> list[dict[str, Any]]:
        """The last revision of each that asked for a person at any time."""
        last = {str(document["id"]): document for document in self.revisions}
        loud = {str(d["id"]) for d in self.revisions if d["severity"] != "info" and d["bucket"] != "planned"}
        return [document for id_, document in last.items() if id_ in loud]

    def said_severity(self, severity: str, *, within_s: float = float("inf")) -> bool:
        """Whether this severity or more was ever asked for, by an incident no older than that when it was."""
        return any(float(d["seen"]) - float(d["times"]["onset"]) <= within_s for d in self._as_loud_as(severity))

    def said_after_s(self, severity: str) -> float | None:
        """From the fault to the first word of this severity or more."""
        times = [float(d["seen"]) for d in self._as_loud_as(severity)]
        return min(times) - self.fired if times and self.fired else None

    def _as_loud_as(self, severity: str) -> list[dict[str, Any]]:
        order = ("info", "ticket", "page")
        wanted = order[order.index(severity) :]
        return [d for d in self.revisions if d["severity"] in wanted and d["bucket"] != "planned"]

    def formula_s(self) -> float | None:
        """From when on a wait at this place is a page, as the job itself told it last before the page or ever."""
        told = None
        for document in self.revisions:
            for shown in document["evidence"]:
                if (found := THRESHOLD.search(str(shown["shows"]))) is not None:
                    told = float(found.group(1))
            if document["severity"] == "page" and told is not None:
                return told
        return told


def kept(folder: Path, planned: Planned) -> Outcome | None:
    """What was measured before of this very plan; of another one, that an older harness drew, it says nothing."""
    try:
        values = json.loads((folder / "outcome.json").read_text())
        before = Planned(**values["planned"])
        outcome = Outcome(**{**values, "planned": planned})
    except OSError:
        return None
    except TypeError:  # of a harness that knew other fields
        return None
    if replace(before, script=Path(before.script).name) != replace(planned, script=Path(planned.script).name):
        return None
    return outcome
