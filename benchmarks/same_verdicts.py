"""Does this tree conclude of the same faults what an older one concludes? Agents, operators and all, simulated.

    python -m benchmarks.same_verdicts --before REVISION [--ranks 64 --ranks 1024] [--runs 300] [--only SCENARIO]
                                       [--jobs 2] [--kept DIR]

``tests.same_incidents`` judges what was recorded; here the agents may send something else, so that each tree simulates
the same fault itself. Compared are the last revisions of incidents that a person is told of: id, kind, severity, state,
suspects, first bad place, and when it was detected. Each difference is listed, to be read: it is a mend or a defect.
Scenarios take turns until there are so many runs; those that do not fit so few ranks are passed over.
Needs git's history, and a C compiler for the older tree's parts in C.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from benchmarks.same_speed import ROOT, checked_out

RANKS, RUNS = (64, 1024), 300
#: A flush of a large job, and the look after it.
MOST_LATER_S = 1.3
LIMIT_S = 1800
#: (scenario, ranks, seed).
Run = tuple[str, int, int]
#: Of the incidents of one run, each as the facts that are compared and when it was detected.
Verdicts = list[tuple[str, float]]
#: Run inside each tree, by names that both have.
JUDGE = """
import json, sys
from whichrank.evaluation.simulate.judge import Judge
from whichrank.simulator.scenarios.scenarios import SCENARIOS
name, ranks, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
scenario = SCENARIOS[name]
try:
    world = scenario.build(ranks, seed)
except ValueError as error:
    print(json.dumps({"does_not_fit": str(error)}))
    raise SystemExit(0)
judge = Judge(start_unix_ns=world.start_unix_ns)
for until_s, sent in world.run(60.0 * scenario.minutes):
    judge.take(until_s, sent)
found = [dict(each.document) for each in judge.revisions]
judge.close()
print(json.dumps({"revisions": found}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_verdicts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--before", required=True, metavar="REVISION")
    parser.add_argument("--ranks", type=int, action="append", help=f"again for more (default {RANKS})")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"over all of --ranks (default {RUNS})")
    parser.add_argument("--only", action="append", metavar="SCENARIO", default=[], help="again for more")
    parser.add_argument("--jobs", type=int, default=2, help="so many runs at a time (default 2)")
    parser.add_argument("--kept", type=Path, metavar="DIR", help="what the older tree says is kept, and not run again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same-verdicts-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        try:
            older = checked_out(asked.before, place / "before")
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            print(f"same_verdicts: --before {asked.before}: {said[-1] if said else error}", file=sys.stderr)
            return 2
        (place / "now").mkdir()
        (place / "now" / "whichrank").symlink_to(ROOT)
        runs = list(drawn(asked.ranks or RANKS, asked.runs, asked.only))
        try:
            return compare(runs, older, place / "now", asked.jobs, asked.kept)
        finally:
            tree = place / "before" / "whichrank"
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=False)


def drawn(sizes: Sequence[int], runs: int, only: Sequence[str]) -> Iterator[Run]:
    """Scenario after scenario at each size, then all again with the next seed."""
    from whichrank.simulator.scenarios.scenarios import SCENARIOS

    names = only or list(SCENARIOS)
    turns = ((name, ranks, 1 + turn) for turn in range(runs) for name in names for ranks in sizes)
    for _, run in zip(range(runs), turns, strict=False):
        yield run


def compare(runs: Sequence[Run], older: Path, now: Path, jobs: int, kept: Path | None) -> int:
    report = Report("the same verdicts as the older tree's")
    alike: dict[int, list[bool]] = {}
    shifts: list[float] = []
    passed_over = 0
    with ThreadPoolExecutor(jobs) as pool:
        pairs = pool.map(lambda run: (run, judged(older, run, kept), judged(now, run, None)), runs)
        for (name, ranks, seed), before, after in pairs:
            if before is None or after is None:
                passed_over += 1
                continue
            said = list(differences(before, after))
            alike.setdefault(ranks, []).append(not said)
            shifts += [late for (one, at), (_, late_at) in zip(before, after, strict=False) if (late := late_at - at)]
            for words in said:
                print(f"{name} {ranks} seed {seed}: {words}", flush=True)
    for ranks, held in sorted(alike.items()):
        report.all_of(f"runs at {ranks:,} ranks with the same incidents", sum(held), len(held))
    later = max(shifts, default=0.0)
    report.shown("detected later, at most", f"{later:.2f} s; earlier, at most {-min(shifts, default=0.0):.2f} s")
    report.shown("do not fit so few ranks", f"{passed_over} of {len(runs)} runs")
    return report.finish()


def judged(tree: Path, run: Run, kept: Path | None) -> Verdicts | None:
    """What a tree concludes; None: the scenario does not fit so few ranks. Raises RuntimeError where it fails."""
    place = kept / "-".join(map(str, run)) if kept is not None else None
    if place is not None and place.exists():
        said = place.read_text()
    else:
        environ = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        words = [sys.executable, "-c", JUDGE, *map(str, run)]
        done = subprocess.run(
            words, cwd=tree, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{run}: {done.stderr[-500:]}")
        said = done.stdout.splitlines()[-1]
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(said)
    found = json.loads(said)
    return None if "does_not_fit" in found else verdicts(found["revisions"])


def verdicts(revisions: Sequence[dict[str, Any]]) -> Verdicts:
    """Incidents that a person is told of, in the order of their detection."""
    last = {each["id"]: each for each in revisions}
    loudest = {each["id"] for each in revisions if each["severity"] != "info"}
    told = [each for each in last.values() if each["id"] in loudest]
    found = [(json.dumps(facts(each), sort_keys=True), float(each["times"]["detected"])) for each in told]
    return sorted(found, key=lambda each: (each[0], each[1]))


def facts(document: dict[str, Any]) -> dict[str, Any]:
    """What must not change."""
    suspects = [[each.get("scope"), each.get("id")] for each in document.get("suspects", ())]
    plain = {name: document.get(name) for name in ("id", "kind", "bucket", "scope", "severity", "state", "first_bad")}
    return {**plain, "suspects": suspects}


def differences(before: Verdicts, after: Verdicts) -> Iterator[str]:
    """In words; nothing where both say the same."""
    ours, theirs = dict(after), dict(before)
    for said in theirs.keys() - ours.keys():
        yield f"before: {said}"
    for said in ours.keys() - theirs.keys():
        yield f"now:    {said}"
    for said in ours.keys() & theirs.keys():
        if abs(ours[said] - theirs[said]) > MOST_LATER_S:
            yield f"{ours[said] - theirs[said]:+.2f} s: {said}"


if __name__ == "__main__":
    raise SystemExit(main())
