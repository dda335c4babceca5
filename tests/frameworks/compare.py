"""What whichrank saw of a framework's job against what the job itself counted: k of n for each kind of thing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .seen import SeenRank, read_capture

#: In the order of the table's columns. A step must show each phase in which the script spent time in it.
PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "eval")
COLUMNS = ("steps", *PHASES, "collectives", "loss", "gradient norm", "skipped")
#: Of the time that the script knows to have spent in a phase, at least this much must be seen there.
LEAST_SHARE = 0.9
#: Losses pass through bf16 and through divisions on their way.
CLOSE = 1e-2


@dataclass(slots=True)
class Count:
    """``seen`` of ``asked``; more seen than there was is as wrong as less."""

    seen: int = 0
    asked: int = 0

    @property
    def ok(self) -> bool:
        return self.seen == self.asked

    def __str__(self) -> str:
        return "-" if not self.asked and not self.seen else f"{self.seen} of {self.asked}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One job, its ranks together."""

    framework: str
    versions: str
    counts: dict[str, Count]
    notes: tuple[str, ...]
    #: Collectives in groups of one rank, where nobody waits: whichrank leaves them out on purpose.
    alone: int = 0

    @property
    def ok(self) -> bool:
        return not self.notes and all(count.ok for count in self.counts.values())


def compare(run_folder: Path, truth_folder: Path, ranks: int) -> Comparison:
    """Everything that the ranks wrote against everything that the capture holds."""
    seen = read_capture(run_folder)
    counts = {column: Count() for column in COLUMNS}
    notes: list[str] = []
    framework = versions = ""
    alone = 0
    for rank in range(ranks):
        path = truth_folder / f"truth-{rank}.json"
        if not path.exists():
            notes.append(f"rank {rank} did not come to its end")
            continue
        truth = json.loads(path.read_text())
        framework, versions = truth["framework"], truth["versions"]
        _compare_rank(truth, seen.get(rank, SeenRank()), counts)
        alone += (truth["collectives"] or {}).get("1", 0)
    if (run_folder / "incidents.jsonl").exists() and (run_folder / "incidents.jsonl").read_text().strip():
        notes.append("an incident was opened in a healthy job")
    return Comparison(framework=framework, versions=versions, counts=counts, notes=tuple(notes), alone=alone)


def _compare_rank(truth: dict[str, Any], seen: SeenRank, counts: dict[str, Count]) -> None:
    steps = truth["steps"]
    counts["steps"].asked += len(steps)
    counts["steps"].seen += len(seen.steps)
    scale = truth.get("loss_divided_by", 1)
    # Steps are in their order on both sides; a step more or less shows in the first column, and in all that follows.
    for true, found in zip(steps, [seen.steps[number] for number in sorted(seen.steps)], strict=False):
        for phase in PHASES:
            spent = true["seconds"].get(phase, 0.0)
            if phase == "optimizer" or spent:
                counts[phase].asked += 1
                counts[phase].seen += found.seconds[phase] > LEAST_SHARE * spent
        for column, number, value, divided_by in (
            ("loss", true["loss"], found.loss, scale),
            ("gradient norm", true["grad_norm"], found.grad_norm, 1),
        ):
            if number is not None:
                counts[column].asked += 1
                counts[column].seen += value is not None and _equal(value * divided_by, number)
        if true.get("skipped"):
            counts["skipped"].asked += 1
        counts["skipped"].seen += found.skipped
    if truth["collectives"] is not None:
        counts["collectives"].asked += sum(calls for size, calls in truth["collectives"].items() if int(size) > 1)
        counts["collectives"].seen += sum(time <= truth["monotonic_ns"] for time in seen.collectives.values())


def _equal(value: float, number: float) -> bool:
    if not math.isfinite(number):
        return not math.isfinite(value)
    return math.isclose(value, number, rel_tol=CLOSE, abs_tol=1e-6)
