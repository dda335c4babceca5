"""The command: draws every plan from the seed, runs what has no result yet, judges all, prints the table.

Results lie in ``build/scenarios/seed-N/SCENARIO/REPEAT`` (result.json, out/, truth/, logs/, console.txt); a run that
was cut off is done again, one that has ended never, unless the code has changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from . import outputs, report
from .catalogue import REPRESENTATIVE, SCENARIOS
from .draw import draw_plan, estimate_s, goes_alone
from .judge import Verdict, describe, judge_folder, latest_by_id
from .parent import describe_plan, finished_runs, killed_parent_plans, killed_parent_problems, replay_problems
from .plan import Plan, Scenario
from .runner import Onset, Outcome, end_all_and_exit, run_plan
from .soak import SOAK, load_samples, soak_lines

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("__init__.py", "agents", "commands", "instrumentation", "processors", "telemetry", "transport")


def code_fingerprint() -> str:
    """Of all that a result depends on: the product and the scenarios themselves."""
    digest = hashlib.sha256()
    for name in (*SOURCES, "tests/scenarios"):
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) + sorted(path.rglob("*.c")) if path.is_dir() else [path]:
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def folder_of(scenario: Scenario, plan: Plan, results: Path) -> Path:
    return results / f"seed-{plan.seed}" / re.sub(r"[^a-zA-Z0-9]+", "-", scenario.name) / str(plan.repeat)


def run_or_resume(scenario: Scenario, plan: Plan, results: Path, fingerprint: str | None) -> tuple[Outcome, bool]:
    """The outcome, and whether it was run just now. fingerprint None: what is stored counts, whatever the code was."""
    folder = folder_of(scenario, plan, results)
    stored = folder / "result.json"
    if stored.exists():
        document = json.loads(stored.read_text())
        if document.pop("fingerprint") == fingerprint or fingerprint is None:
            return load_outcome(document, plan, folder), False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = run_plan(scenario, plan, folder)
    part = folder / "result.json.part"
    part.write_text(json.dumps({**outcome.to_json(), "fingerprint": fingerprint}, indent=1))
    part.rename(stored)
    return outcome, True


def load_outcome(document: dict[str, Any], plan: Plan, folder: Path) -> Outcome:
    document["plan"], document["folder"] = plan, folder
    document["onsets"] = tuple(Onset(**{**item, "lines": tuple(item["lines"])}) for item in document["onsets"])
    document["revisions"], document["notes"] = tuple(document["revisions"]), tuple(document["notes"])
    for name in ("pids", "steps_captured", "steps_done", "waits"):
        document.setdefault(name, {})  # of an older command, judged anew
        document[name] = {int(rank): number for rank, number in document[name].items()}
    return Outcome(**document)


class Batch:
    """Runs plans and prints a line for each that ends. Thread-safe: clean runs go two at a time."""

    def __init__(
        self, results: Path, fingerprint: str | None, total: int, console: Console, limit_s: float = math.inf
    ) -> None:
        self.limit_s = limit_s
        self.left_out = 0
        self.results = results
        self.fingerprint = fingerprint
        self.total = total
        self.console = console
        self.judged: list[tuple[Scenario, Verdict]] = []
        self.told: list[outputs.Told] = []
        self.skipped: list[str] = []
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def run(self, scenario: Scenario, plan: Plan) -> None:
        """Nothing new is begun when the time is up; what is left out is counted and told."""
        if reason := scenario.skip():
            with self._lock:
                self.skipped.append(f"{scenario.name}: {reason}")
            return
        if self.time_is_up() and not self.stored(scenario, plan):
            with self._lock:
                self.left_out += 1
            return
        outcome, fresh = run_or_resume(scenario, plan, self.results, self.fingerprint)
        verdict = judge_folder(scenario, outcome)
        with self._lock:
            self.judged.append((scenario, verdict))
            self.told += outputs.told(scenario, outcome)
            self._print(scenario, plan, outcome, verdict, fresh)

    def time_is_up(self) -> bool:
        return time.monotonic() - self._began > self.limit_s

    def stored(self, scenario: Scenario, plan: Plan) -> bool:
        path = folder_of(scenario, plan, self.results) / "result.json"
        return path.exists() and self.fingerprint in (None, json.loads(path.read_text())["fingerprint"])

    def _print(self, scenario: Scenario, plan: Plan, outcome: Outcome, verdict: Verdict, fresh: bool) -> None:
        drawn = (
            f"{plan.workload} ranks={plan.world_size} guilty={list(plan.guilty)} step={plan.onset_step} of {plan.steps}"
        )
        said = ", ".join(describe(document) for document in latest_by_id(outcome.revisions)) or "nothing"
        delay = "" if verdict.delay_s is None else f" after {verdict.delay_s:.2f} s"
        delay += "" if verdict.steps is None else f" and {verdict.steps} steps"
        minutes = (time.monotonic() - self._began) / 60.0
        self.console.print(
            f"[{len(self.judged)}/{self.total} {minutes:.1f} min] {'right' if verdict.right else 'WRONG'}"
            f"{'' if fresh else ' (stored)'}: {scenario.name} #{plan.repeat} ({drawn} of {plan.step_s} s"
            f"{', ' + plan.point if plan.fault else ''}): said {said}{delay}; "
            f"took {outcome.ended - outcome.began:.0f} s",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
        for problem in verdict.problems:
            self.console.print(f"      {problem}", soft_wrap=True, markup=False, highlight=False)
        if verdict.problems:
            self.console.print(f"      kept in {outcome.folder}", soft_wrap=True, markup=False, highlight=False)


def parent_lines(
    options: argparse.Namespace, seed: int, fingerprint: str, console: Console, batch: Batch
) -> list[report.Line]:
    """The killed parent and the replays, a line of progress each."""
    killed: list[list[str]] = []
    plans = list(killed_parent_plans(seed, options.killed))
    for scenario, plan, drawn in plans[slice(*part_of(options))]:
        name = re.sub(r"[^a-zA-Z0-9]+", "-", scenario.name)
        folder = options.results / f"seed-{seed}" / "killed-parent" / f"{name}-{plan.repeat}"
        stored = folder / "problems.json"
        document = json.loads(stored.read_text()) if stored.exists() else {}
        if document.get("fingerprint") != fingerprint:
            if batch.time_is_up():
                batch.left_out += 1
                continue
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            problems, how = killed_parent_problems(scenario, plan, drawn, folder)
            document = {"problems": problems, "how": how, "fingerprint": fingerprint}
            stored.write_text(json.dumps(document))
        killed.append(document["problems"])
        what = f"killed parent, {scenario.name} #{plan.repeat} ({describe_plan(plan)}; {document['how']})"
        _say(console, what, killed[-1], folder)
    equal: list[list[str]] = []
    for out in finished_runs(options.results, seed):
        with tempfile.TemporaryDirectory() as scratch:
            equal.append(replay_problems(out, Path(scratch)))
        _say(console, f"replay twice, {out.parents[1].name}", equal[-1], out)
    return [
        report.all_right("kill -9 of whichrank run in mid-fault, then replay: the same incident", killed),
        report.all_right("replayed twice: byte-equal, and equal to the live run", equal),
    ]


def _say(console: Console, what: str, problems: Sequence[str], folder: Path) -> None:
    text = "right" if not problems else f"WRONG: {'; '.join(problems)}; kept in {folder}"
    console.print(f"{what}: {text}", soft_wrap=True, markup=False, highlight=False)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/scenarios/run.py", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="draws all plans (default: a random one, printed)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each fault (clean runs once)")
    parser.add_argument("--only", action="append", help="scenarios whose name contains this; may be repeated")
    parser.add_argument("--part", help="I/N: the I-th of N equal parts, to spread over machines or sittings")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin nothing new after that; the same call goes on from there"
    )
    parser.add_argument("--quick", action="store_true", help="the representative part, one repeat: what make test runs")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "scenarios")
    parser.add_argument("--parent", action="store_true", help="also the killed-parent and replay checks, whatever else")
    parser.add_argument("--killed", type=int, default=20, help="runs whose watcher is killed")
    parser.add_argument("--no-parent", action="store_true", help="leave out the killed-parent and replay checks")
    parser.add_argument("--no-clean", action="store_true", help="leave out the long clean runs")
    parser.add_argument(
        "--judge-only", action="store_true", help="judge stored results again, whatever the code is now"
    )
    parser.add_argument(
        "--soak",
        type=float,
        nargs="?",
        const=SOAK.clean_s,
        metavar="SECONDS",
        help="only the soak: one healthy job with mixed habits, an hour long",
    )
    parser.add_argument("--list", action="store_true", help="print the plans and stop")
    options = parser.parse_args(arguments)
    if options.part and not _is_part(options.part):
        parser.error(f"--part {options.part}: I/N with I from 1 to N is asked for")
    return options


def _is_part(text: str) -> bool:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    return found is not None and 1 <= int(found[1]) <= int(found[2])


def select(options: argparse.Namespace, seed: int) -> list[tuple[Scenario, Plan]]:
    if options.soak:
        soak = replace(SOAK, clean_s=options.soak)
        return [(soak, draw_plan(soak, seed, 0))]
    chosen = []
    for scenario in SCENARIOS:
        if options.quick and scenario.name not in REPRESENTATIVE:
            continue
        if options.only and not any(word.lower() in scenario.name.lower() for word in options.only):
            continue
        if options.no_clean and scenario.clean_s >= 90.0:
            continue
        usual = 1 if scenario.clean_s >= report.CLEAN_S else options.repeats
        repeats = 1 if options.quick else scenario.repeats or usual
        chosen += [(scenario, draw_plan(scenario, seed, repeat)) for repeat in range(repeats)]
    if not (options.only or options.quick or options.no_clean):
        chosen.append((SOAK, draw_plan(SOAK, seed, 0)))
    if not options.part:
        return chosen
    # Longest first, in turns, so that the parts take about as long as one another.
    chosen.sort(key=lambda item: (-estimate_s(*item), item[0].name, item[1].repeat))
    return chosen[slice(*part_of(options))]


def part_of(options: argparse.Namespace) -> tuple[int, None, int]:
    """Which of a list belong to this part, as a slice."""
    index, count = (int(word) for word in options.part.split("/")) if options.part else (1, 1)
    return index - 1, None, count


def say_plan(console: Console, chosen: Sequence[tuple[Scenario, Plan]], batch: Batch) -> None:
    """How many runs, and about how long: alone one after the other, the rest two at a time beside the soak."""
    todo = [(s, p) for s, p in chosen if not batch.stored(s, p) and not s.skip()]
    alone_s = sum(estimate_s(s, p) for s, p in todo if goes_alone(s, p))
    together = [estimate_s(s, p) for s, p in todo if not goes_alone(s, p)]
    together_s = max([sum(together) / 2.0, *together])
    console.print(
        f"{len(todo)} runs to do, {len(chosen) - len(todo)} stored or left out: "
        f"about {(alone_s + together_s) / 60.0:.0f} min",
        soft_wrap=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_all_and_exit)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    console = Console(width=None if sys.stdout.isatty() else 150)
    chosen = select(options, seed)
    if not chosen:
        console.print(f"nothing to run: no scenario's name contains {' or '.join(options.only or ['anything'])}")
        return 2
    fingerprint = code_fingerprint()
    console.print(f"seed {seed}, {len(chosen)} runs, results in {options.results / f'seed-{seed}'}", soft_wrap=True)
    if options.list:
        for scenario, plan in chosen:
            console.print(f"{scenario.name} #{plan.repeat}: {plan}", soft_wrap=True, markup=False)
        return 0
    if options.judge_only:
        chosen = [(s, p) for s, p in chosen if (folder_of(s, p, options.results) / "result.json").exists()]
    stored_as = None if options.judge_only else fingerprint
    batch = Batch(options.results, stored_as, len(chosen), console, options.minutes * 60.0)
    say_plan(console, chosen, batch)
    for scenario, plan in chosen:
        if goes_alone(scenario, plan):
            batch.run(scenario, plan)
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        # list(): a failure of the harness in a thread must end the command, not vanish
        beside = sorted((item for item in chosen if not goes_alone(*item)), key=lambda item: -estimate_s(*item))
        list(pool.map(lambda item: batch.run(*item), beside))
    lines = [*report.must_show(batch.judged), report.skipped(batch.skipped)]
    for scenario, plan in chosen:
        if scenario.name == SOAK.name and any(s is scenario for s, _ in batch.judged):
            lines += soak_lines(load_samples(folder_of(scenario, plan, options.results)), scenario.clean_s)
    if options.parent or not (
        options.no_parent or options.only or options.quick or options.judge_only or options.soak or batch.left_out
    ):
        lines += parent_lines(options, seed, fingerprint, console, batch)
    if code_fingerprint() != fingerprint:
        console.print("the code changed during these runs: another call does them again")
    if batch.left_out:
        console.print(f"{batch.left_out} of {len(chosen)} runs are not done yet: the same call goes on with them")
    folder = options.results / f"seed-{seed}"
    title = f"scenarios, seed {seed}"
    good = outputs.write_all(folder, title, batch.judged, batch.told, lines, console, quick=options.quick)
    return 0 if good and not batch.left_out else 1
