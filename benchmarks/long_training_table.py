"""The table of all long trainings whose results are in a folder. Reads files, runs nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.long_training_faults import FaultKind, Place, Truth
from benchmarks.long_training_jobs import (
    BACKOFF_S,
    GRACE_S,
    RESTARTS,
    RESTARTS_PER_HOUR,
    SUPERVISED,
    TORCHRUN,
)
from benchmarks.report import Report

#: The issue's bounds: a hang, its grace and the job's own start, and where the place has no past.
AGAIN_S, NO_PAST_S = 20.0, 90.0
#: What a run costs that nobody restarts: a person comes so long after each fault, and starts it.
PERSON_S = 1800.0
CLEAN_RUNS = 24
#: Begins the names of results of trainings in which nothing but hangs comes.
HANGS = "hangs-"

Result = dict[str, Any]


def print_table(results: Path) -> int:
    """Prints the table; its exit status is 1 where a row is SHORT, or nothing is there."""
    report = Report("long trainings")
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    broken = [name for name, one in found.items() if "state" in one and one["state"] != "ended"]
    # One that torchrun's own restarts have not brought back is what it is compared with, and nothing of ours.
    broken = [name for name in broken if not (name.startswith(HANGS + TORCHRUN) and "outcome" in found[name])]
    for name in broken:
        report.failed(name, str(found[name]["state"]))
    of = {
        # One that timed out counts among the others, as wrong.
        how: [
            one
            for name, one in found.items()
            if name.startswith(f"{how}-") and (name not in broken or "outcome" in one)
        ]
        for how in (SUPERVISED, HANGS + TORCHRUN, HANGS + SUPERVISED, "clean")
    }
    if supervised := of[SUPERVISED]:
        report.shown(
            "set for a fault a minute",
            f"--restarts {RESTARTS} --restart-grace {GRACE_S:.0f}, restarts_per_hour {RESTARTS_PER_HOUR}, "
            f"restart_backoff_s {BACKOFF_S:.0f}",
        )
        _by_kind_and_layout(report, supervised)
        _faults(report, supervised)
        _acts_and_losses(report, supervised)
        _hangs(report, supervised)
    for one in of[SUPERVISED]:
        _ettr(report, one)
    for one in of[HANGS + SUPERVISED]:
        _hang_beside(report, one, of[HANGS + TORCHRUN])
    clean_names = [name for name in found if name.startswith("clean-")]
    if clean_names:
        right = sum(one["acts"] == 0 and one["reached"] for one in of["clean"])
        report.all_of("clean runs, pauses of 60 to 300 s and first steps of 90 s: not touched", right, len(clean_names))
        report.at_least("clean runs", CLEAN_RUNS, len(clean_names))
        for one in of["clean"]:
            if one["acts"] or not one["reached"]:
                report.shown(f"clean {one['plan']['number']}", json.dumps(one)[:300])
    return report.finish()


def is_for_a_person(result: Result) -> bool:
    """Whether no restart helps against its last fault."""
    return any(fault["truth"] == Truth.PERSON.value for fault in result["outcome"]["faults"])


def _name(result: Result) -> str:
    return f"{result['plan']['kind']}, {result['plan']['layout']}"


def _by_kind_and_layout(report: Report, results: Sequence[Result]) -> None:
    for name in sorted({_name(one) for one in results}):
        mine = [one for one in results if _name(one) == name]
        helped = [one for one in mine if not is_for_a_person(one)]
        hopeless = [one for one in mine if is_for_a_person(one)]
        if helped:
            report.all_of(
                f"{name}: reaches its last step without a person", sum(one["outcome"]["reached"] for one in helped),
                len(helped),
            )  # fmt: skip
        if hopeless:
            report.all_of(
                f"{name}: exception at a fixed step: stopped and told",
                sum(one["outcome"]["faults"][-1]["survived"] for one in hopeless),
                len(hopeless),
            )  # fmt: skip
        faults = [fault for one in mine for fault in one["outcome"]["faults"] if fault["truth"] != Truth.PERSON.value]
        report.all_of(f"{name}: faults survived", sum(fault["survived"] for fault in faults), len(faults))


def _faults(report: Report, results: Sequence[Result]) -> None:
    for kind in FaultKind:
        mine = [(one, fault) for one in results for fault in one["outcome"]["faults"] if fault["kind"] == kind.value]
        if mine:
            report.all_of(f"{kind.value}, in all", sum(fault["survived"] for _, fault in mine), len(mine))
    for one in results:
        for fault in one["outcome"]["faults"]:
            if not fault["survived"]:
                report.shown(f"{_name(one)}, step {fault['step']}", f"{fault['kind']}: {fault['why']}")


def _acts_and_losses(report: Report, results: Sequence[Result]) -> None:
    report.at_most("healthy ones that were ended", 0, sum(one["outcome"]["false_acts"] for one in results))
    for kind in sorted({one["plan"]["kind"] for one in results}):
        mine = [one["outcome"] for one in results if one["plan"]["kind"] == kind]
        right, compared = (sum(one[what] for one in mine) for what in ("losses_right", "losses"))
        report.all_of(f"{kind}: losses as of the unbroken run, steps", right, compared)


def _hangs(report: Report, results: Sequence[Result]) -> None:
    """Each beside its bound: the first of a place in a start has no past there."""
    seconds, beyond = [], 0
    for one in results:
        start_s = one["outcome"]["start_s"]
        for fault in one["outcome"]["faults"]:
            if fault["kind"] != FaultKind.HANG.value or not fault["happened"]:
                continue
            has_past = fault["place"] == Place.STEP.value
            bound_s = AGAIN_S + GRACE_S + start_s + (0.0 if has_past else NO_PAST_S)
            again_s = float("inf") if fault["again_s"] is None else fault["again_s"]
            seconds.append((again_s, bound_s))
            beyond += again_s > bound_s
            report.shown(
                f"{_name(one)}: hang in {fault['place']}, s", f"{again_s:.1f} of {bound_s:.1f} (start {start_s:.1f})"
            )
    if seconds:
        shares = sorted(again_s / bound_s for again_s, bound_s in seconds)
        p95 = shares[min(len(shares) - 1, int(0.95 * len(shares)))]
        report.at_most(
            "hang to training again, share of its bound, p95", 1.0, p95, k=len(seconds) - beyond, n=len(seconds)
        )


def _ettr(report: Report, one: Result) -> None:
    goodput = one["goodput_ettr"]
    report.shown(
        f"{_name(one)}: ETTR, {len(one['outcome']['faults'])} faults",
        f"{one['ettr']:.3f} supervised (goodput says {'nothing' if goodput is None else f'{goodput:.3f}'}), "
        f"{without_anybody(one):.3f} with neither, a person {PERSON_S / 60:.0f} min after each fault that ends it",
    )


def _hang_beside(report: Report, ours: Result, peers: Sequence[Result]) -> None:
    """The same training with our restarts and with torchrun's: side by side."""
    for peer in peers:
        if peer["plan"] != ours["plan"]:
            continue
        hangs, timeout_s = len(ours["outcome"]["faults"]), ours["plan"]["timeout_s"]
        report.shown(
            f"{_name(ours)}: ETTR, the same {hangs} hangs",
            f"{ours['ettr']:.3f} supervised, {peer['ettr']:.3f} by torchrun --max-restarts with a time-out of "
            f"{timeout_s:.0f} s{_stands(peer)}, {without_anybody(ours):.3f} with neither",
        )
        for one, who in ((ours, "supervised"), (peer, "by torchrun")):
            again = [fault["again_s"] for fault in one["outcome"]["faults"]]
            seconds = ", ".join("never" if each is None else f"{each:.0f}" for each in again)
            report.shown(f"{_name(one)}: hang to training again {who}, s", seconds)
        report.at_least(f"{_name(ours)}: ETTR supervised, at least torchrun's", peer["ettr"], ours["ettr"])


def _stands(peer: Result) -> str:
    if peer["state"] == "ended":
        return ""
    return f" (it stood, and was ended after {peer['outcome']['wall_s']:.0f} s)"


def without_anybody(result: Result) -> float:
    """ETTR of the same training if nothing restarts it: each fault that ends it waits for a person, and a start."""
    outcome = result["outcome"]
    wall_s = outcome["wall_s"]
    for fault in outcome["faults"]:
        if fault["truth"] == Truth.RESTART.value and fault["again_s"] is not None:
            wall_s += PERSON_S + outcome["start_s"] - fault["again_s"]
    return float(outcome["useful_s"] / wall_s) if wall_s else 0.0
