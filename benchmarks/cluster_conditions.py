"""What servers, switches, power and services tell, as causes: ``python -m benchmarks.cluster_conditions``.

Each case (``cluster_cases``) is pages of exporters over time, through the crosswalk and the entity operator, and jobs
beside, to the cluster operator; and four controls of it. Prints asked, measured, k of n, ok or SHORT; exit status 1 for
SHORT. ``--said`` prints of each story which incidents stand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.processors.cluster.shared.fleet import Fleet
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.processors.cluster.shared.rules import load_shared_rules
from whichrank.simulator.scoring.summary import ScoreLine

from .cluster_cases import CASES, SCRAPED_EVERY_S, Case, Spell, Variant
from .exporter_pages import Pages

LEAST_CASES = 25
#: Before the fault exporters are asked for so long; after it the story goes on for so long.
QUIET_S, END_S = 400.0, 200.0
_SPELLS = {
    Variant.FAULT: Spell(begin=5.0),
    Variant.ELSEWHERE: Spell(begin=5.0),
    Variant.EARLIER: Spell(begin=-1800.0, end=-900.0),
    Variant.TOLERATED: Spell(begin=5.0, is_mild=True),
    Variant.LASTING: Spell(begin=-3000.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: Case
    variant: Variant
    ok: bool
    said: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the stories and prints the lines. The exit status is 1 where a line is SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_conditions", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has these words")
    parser.add_argument("--said", action="store_true", help="what stands at the end of each story")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.only in case.name]
    outcomes = [outcome_of(case, variant) for case in cases for variant in Variant]
    unseen = [outcome_of(case, Variant.FAULT, is_seen=False) for case in cases]
    for outcome in outcomes:
        if options.said or not outcome.ok:
            verdict = "" if outcome.ok else "WRONG: "
            print(f"{verdict}{outcome.case.name} ({outcome.variant.value}): {outcome.said}")
    lines = lines_of(outcomes, asked_cases=1 if options.only else LEAST_CASES)
    lines.append(_line("the right cause where nobody scrapes, for comparison", "", unseen, 0.0))
    print_lines(lines, "servers, switches, power, services")
    print(in_short(lines))
    return exit_code(lines, whole=True)


def lines_of(outcomes: Sequence[Outcome], *, asked_cases: int = LEAST_CASES) -> list[ScoreLine]:
    """What is asked of the stories, and what came of them."""
    faults = [outcome for outcome in outcomes if outcome.variant is Variant.FAULT]
    lines = [
        ScoreLine(
            name="cases", asked=f">= {asked_cases}", measured=str(len(faults)), share="", ok=len(faults) >= asked_cases
        ),
        _line("the right cause, or none", ">= 97 %", faults, 0.97),
    ]
    named = [outcome for outcome in faults if outcome.case.culprit]
    if named:
        lines.append(_line("the noisy job, and who counted it", "100 %", named, 1.0))
    for variant in Variant:
        if variant is not Variant.FAULT:
            controls = [outcome for outcome in outcomes if outcome.variant is variant]
            lines.append(_line(f"controls that are clean: {variant.value}", "100 %", controls, 1.0))
    return lines


def _line(name: str, asked: str, outcomes: Sequence[Outcome], least: float) -> ScoreLine:
    right = sum(outcome.ok for outcome in outcomes)
    share = right / len(outcomes) if outcomes else 0.0
    return ScoreLine(
        name=name, asked=asked, measured=f"{share:.1%}", share=f"{right} of {len(outcomes)}", ok=share >= least
    )


def outcome_of(case: Case, variant: Variant, *, is_seen: bool = True) -> Outcome:
    """Tells one story, and says whether what stands at its end is right. is_seen: the exporters are scraped."""
    documents = told(case, variant, is_seen=is_seen)
    causes = [_cause(document) for document in documents]
    joint = [cause for cause in causes if cause[0] in load_shared_rules()]
    said = "; ".join(" ".join(map(str, cause)) for cause in causes) or "nothing"
    if variant is not Variant.FAULT:
        return Outcome(case=case, variant=variant, ok=not joint, said=said)
    right = (*case.right, case.culprit, case.counted_by)
    return Outcome(case=case, variant=variant, ok=joint == [right], said=f"{said} (right: {right})")


def told(case: Case, variant: Variant, *, is_seen: bool = True) -> list[Mapping[str, Any]]:
    """Incidents that stand at the end of the story."""
    fleet = fleet_of(case)
    spell = _SPELLS[variant]
    case.jobs_of(variant)(fleet)
    scraped = case.elsewhere if variant is Variant.ELSEWHERE else case.scraped
    pages, at = Pages(), min(0.0, spell.begin) - QUIET_S
    while is_seen and at <= END_S:
        for instance in dict.fromkeys(instance for instance, _ in scraped):
            places = [place for other, place in scraped if other == instance]
            page = "\n".join(line for place in places for line in case.page(spell, at, place))
            for finding in pages.take(instance, page, at):
                fleet.findings.append((at, len(fleet.findings) + 1_000_000, finding))
        at += SCRAPED_EVERY_S
    court = fleet.run(END_S + 60.0)
    return [document for document in court.pages if document["bucket"] != "planned"]


def fleet_of(case: Case) -> Fleet:
    """Eight leaves; leaf n has NVLink domain n, two leaves one cooling loop, ports of number k are on rail k."""
    fleet = Fleet(leaves=8, nodes_per_leaf=8, labels=False)
    for node in fleet.nodes:
        leaf = int(node[1 : node.index("-")])
        labels = {
            **fleet.labels[node],
            "nvlink_domain": f"nvl{leaf}",
            "cooling": f"loop{leaf // 2}",
            "storage": "lustre2" if leaf in (6, 7) else "lustre1",
            **{f"rail.mlx5_{port}": f"rail{port}" for port in range(8)},
            **case.labels,
        }
        fleet.topology(node, {name: value for name, value in labels.items() if value is not None})
    return fleet


def _cause(document: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Condition or rule, entity, culprit, and who counted it."""
    cause = document.get("cause") or {}
    culprit = next((job["id"] for job in document.get("jobs") or () if job["role"] == "culprit"), "")
    name = cause.get("condition") or str(document["kind"])
    return name, cause.get("entity") or "", culprit or "", cause.get("counted_by") or ""


if __name__ == "__main__":
    sys.exit(main())
