"""What became of one long training: read from what its ranks wrote down, what was done from outside, and the audit.

Pure but for reading files. A fault is survived where the truth came about: it trained on by itself after one against
which a restart helps, nobody acted on one that needs nothing, it was stopped and told where no restart helps.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.long_training_faults import Fault, FaultKind, Plan, Truth

#: Two losses of the same step: ranks add in another order where there are fewer of them.
TOLERANCE = 1e-3

Line = Mapping[str, Any]


class TruthFile:
    """Lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._rest = path, 0, b""

    def new_lines(self) -> Iterator[Line]:
        """What has come since the last call, whole lines only."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            text = self._rest + file.read()
            self._at = file.tell()
            *lines, self._rest = text.split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


@dataclass(slots=True, kw_only=True)
class FaultOutcome:
    """again_s: from the fault to the first step of a later start. why: what is wrong, or ""."""

    number: int
    kind: str
    truth: str
    place: str
    happened: bool = False
    at: float = 0.0
    step: int = 0
    again_s: float | None = None
    survived: bool = False
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One training. useful_s: of the steps that count. start_s: from the command to its first step."""

    reached: bool = False
    told: bool = False
    wall_s: float = 0.0
    useful_s: float = 0.0
    start_s: float = 0.0
    starts: int = 0
    restarts: int = 0
    false_acts: int = 0
    losses: int = 0
    losses_right: int = 0
    faults: list[FaultOutcome] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    wrong_losses: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def ettr(self) -> float:
        """The share of the wall time that was useful training."""
        return self.useful_s / self.wall_s if self.wall_s else 0.0


def read_outcome(
    plan: Plan, folder: Path, codes: Sequence[int | None], began: float, ended: float, losses: Mapping[int, float]
) -> Outcome:
    """losses: by step, of the run that nothing has interrupted; empty: nothing to compare with."""
    lines = sorted(_all_lines(folder), key=lambda line: float(line["time"]))
    steps = [line for line in lines if "done" in line]
    outcome = Outcome(wall_s=ended - began, starts=sum("resumed" in line and line["rank"] == 0 for line in lines))
    outcome.start_s = float(steps[0]["time"]) - began if steps else 0.0
    outcome.useful_s = useful_s(lines)
    outcome.reached = codes[0] == 0 and any("end" in line for line in lines)
    audit = list(_json_lines(folder / "out-0" / "respond-audit.jsonl"))
    outcome.restarts = sum(one["outcome"] == "done" and one["operation"] == "restart_job" for one in audit)
    outcome.refusals = [f"{one['why']}: {one['text']}" for one in audit if one["outcome"] == "refused"]
    outcome.told = codes[0] not in (0, -1) and bool(outcome.refusals)
    incidents = list(_json_lines(folder / "out-0" / "incidents.jsonl"))
    outcome.incidents = sorted({f"{one['kind']} {one['severity']}" for one in incidents})
    outcome.faults = [_fault(fault, plan, lines, audit, incidents, outcome) for fault in plan.faults]
    outcome.false_acts = false_acts(audit, outcome.faults, lines)
    _compare(outcome, steps, losses)
    return outcome


def useful_s(lines: Iterable[Line]) -> float:
    """Seconds of the steps that count, each as long as it took the last time it was made.

    lines: of the truth, by time. A start's first step counts from the resume on.
    """
    took: dict[int, float] = {}
    before: float | None = None
    for line in lines:
        if line.get("rank", 0):
            continue
        if "resumed" in line:
            before = float(line["time"])
            took = {step: length for step, length in took.items() if step <= int(line["resumed"])}
        elif "done" in line and before is not None:
            took[int(line["done"])] = float(line["time"]) - before
            before = float(line["time"])
    return sum(took.values())


def _fault(
    fault: Fault,
    plan: Plan,
    lines: Sequence[Line],
    audit: Sequence[Line],
    incidents: Sequence[Line],
    outcome: Outcome,
) -> FaultOutcome:
    found = FaultOutcome(number=fault.number, kind=fault.kind.value, truth=fault.truth.value, place=fault.place.value)
    first = next((line for line in lines if line.get("fault") == fault.number), None)
    if first is None:
        found.why = "it never came"
        return found
    found.happened, found.at, found.step = True, float(first["time"]), int(first["step"])
    later = [line for line in lines if float(line["time"]) > found.at]
    if fault.truth is Truth.RESTART:
        resumed = next((float(line["time"]) for line in later if "resumed" in line and line["rank"] == 0), None)
        again = next(
            (float(line["time"]) for line in later if "done" in line and resumed and line["time"] > resumed), None
        )
        found.again_s = None if again is None else again - found.at
        found.survived = again is not None
        found.why = "" if found.survived else "it did not train again"
    elif fault.truth is Truth.PERSON:
        found.survived = outcome.told
        found.why = "" if outcome.told else "it was not stopped and told"
    else:
        found.survived, found.why = _went_on(fault, found, later, audit, incidents)
    return found


def _went_on(
    fault: Fault, found: FaultOutcome, later: Sequence[Line], audit: Sequence[Line], incidents: Sequence[Line]
) -> tuple[bool, str]:
    """Of a fault that needs nothing: whether the same start trains on, nobody acts, and a failed save is told."""
    next_fault = min((float(line["time"]) for line in later if "fault" in line), default=float("inf"))
    between = [line for line in later if float(line["time"]) < next_fault]
    if any("resumed" in line for line in between):
        return False, "it was started again"
    if not any("done" in line for line in between):
        return False, "it did not train on"
    if any(one["outcome"] == "begun" and found.at < float(one["time"]) < next_fault for one in audit):
        return False, "somebody acted"
    if fault.kind in (FaultKind.DISK, FaultKind.UPLOAD):
        if not any("save_failed" in line or "upload_failed" in line for line in between):
            return False, "it had no effect: no save has failed"
        saves = [one for one in incidents if one["kind"] in ("checkpoint_failed", "storage_full")]
        if not any(found.at <= float(one["times"]["detected"]) <= next_fault for one in saves):
            return False, "no incident tells of the save that failed"
    return True, ""


def false_acts(audit: Iterable[Line], faults: Sequence[FaultOutcome], lines: Sequence[Line]) -> int:
    """Acts that began while no fault was open against which one helps."""
    count = 0
    for act in audit:
        if act["outcome"] != "begun":
            continue
        at = float(act["time"])
        before = [one for one in faults if one.happened and one.at <= at and one.truth != Truth.NOTHING.value]
        is_open = any(one.again_s is None or at <= one.at + one.again_s for one in before)
        is_open |= any(line.get("kind") == FaultKind.ALWAYS.value and line["time"] <= at for line in lines)
        count += not is_open
    return count


def _compare(outcome: Outcome, steps: Iterable[Line], losses: Mapping[int, float]) -> None:
    for line in steps:
        step, loss = int(line["done"]), float(line["loss"])
        if step in losses:
            outcome.losses += 1
            if abs(loss - losses[step]) <= TOLERANCE * max(abs(losses[step]), 1e-3):
                outcome.losses_right += 1
            elif len(outcome.wrong_losses) < 20:
                outcome.wrong_losses.append((step, losses[step], loss))


def losses_of(folder: Path) -> dict[int, float]:
    """By step, of a run of one start."""
    lines = _json_lines(folder / "truth-0.jsonl")
    return {int(line["done"]): float(line["loss"]) for line in lines if "done" in line}


def _all_lines(folder: Path) -> Iterator[Line]:
    for path in folder.glob("truth-*.jsonl"):
        rank = path.stem.partition("-")[2]
        for line in _json_lines(path):
            yield {"rank": int(rank) if rank.isdigit() else -1, **line}


def _json_lines(path: Path) -> Iterator[Line]:
    yield from TruthFile(path).new_lines()
