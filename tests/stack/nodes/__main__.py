"""``python -m tests.stack.nodes``: three nodes over a real Kafka, an agent each, and what comes of a fault.

One job, one incident, right rank, node and attempt, judged by what lies on Kafka; and the same incident as a log event,
a span and a gauge. Delays are compared with those of ``whichrank run`` (its own runs, of the same plans). Results lie
in ``build/stack-nodes/seed-N``; the same call goes on there.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.scenarios.draw import draw_plan
from tests.scenarios.judge import judge_folder, latest_by_id
from tests.scenarios.plan import Plan, Scenario
from tests.scenarios.runner import LIVE, run_plan
from tests.stack.nodes.jobs import NodesJob, Room
from tests.stack.nodes.kinds import KINDS, Kind
from tests.stack.nodes.lan import HOST, clock_library, enter_own_network, what_is_missing
from tests.stack.nodes.road import find_gaps
from tests.stack.nodes.table import report, stored_name
from tests.stack.parts.go_programs import JAEGER, PROMETHEUS, VICTORIALOGS, built, built_collector
from tests.stack.parts.kafka import Kafka, kafka_home
from tests.stack.parts.own_service import OwnService
from tests.stack.parts.whole_stack import Stack, assemble

ROOT = Path(__file__).resolve().parents[3]
Result = dict[str, Any]


def run_one(kind: Kind, repeat: int, seed: int, room: Room, stack: Stack, kept: Path) -> Result:
    """kept: where what a wrong run left is put."""
    scratch = Path(tempfile.mkdtemp(prefix="stack-nodes-run-"))
    made: list[NodesJob] = []

    def make(scenario: Scenario, plan: Plan, folder: Path) -> NodesJob:
        made.append(kind.job(scenario, plan, folder, room=room))
        return made[0]

    scenario = replace(kind.scenario, job=make)
    plan = draw_plan(kind.scenario, seed, repeat)
    result: Result = {"problems": [], "said": "nothing", "delay_s": None, "limit_s": None, "gaps": None}
    began = time.monotonic()
    try:
        outcome = run_plan(scenario, plan, scratch / "run")
        verdict = judge_folder(scenario, outcome)
        result |= {"said": verdict.said, "delay_s": verdict.delay_s, "limit_s": verdict.limit_s}
        result["problems"] = [*verdict.problems, *made[0].find_problems(outcome)]
        if verdict.delay_s is not None and verdict.limit_s is not None and verdict.delay_s > verdict.limit_s:
            result["late_s"] = verdict.delay_s - verdict.limit_s
        documents = latest_by_id(outcome.revisions)
        if not room.embedded and documents:
            result["gaps"] = find_gaps(stack, made[0].job_id, documents[0])
    except Exception as failure:  # the harness's own; counts as a wrong run
        result["problems"] = [f"harness: {type(failure).__name__}: {failure}"]
    for job in made:
        job.close()
    result |= {"plan": f"world {plan.world_size}, guilty {list(plan.guilty)}", "took_s": time.monotonic() - began}
    if result["problems"] or result["gaps"]:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(scratch, kept, ignore=shutil.ignore_patterns("*.ring"), dirs_exist_ok=True)
    shutil.rmtree(scratch, ignore_errors=True)
    return result


def start_stack(folder: Path, parts: ExitStack) -> tuple[Kafka, Stack]:
    """Broker, topics, processors and the road to people, all from the files of compose."""
    kafka = Kafka(folder / "kafka", host=HOST)
    parts.callback(kafka.kill)
    kafka.start()
    stack = assemble(kafka, folder)
    parts.callback(stack.kill)
    topics = OwnService("topic-init", folder / "topics", kafka)
    topics.service.start(wait=False)
    if topics.service.wait():
        raise RuntimeError(f"whichrank topics: {topics.service.output()}")
    stack.start()
    processor = OwnService("processor", folder / "processor", kafka, stack.processor_port)
    parts.callback(processor.service.kill)
    processor.service.start()
    return kafka, stack


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack.nodes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", action="append", help="kinds whose name contains this; may be repeated")
    parser.add_argument("--repeats", type=int, help="of each kind; default: 20 of those with a delay, 5 of the others")
    parser.add_argument("--no-twins", action="store_true", help="without the runs of whichrank run beside them")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after that")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    if why := what_is_missing():
        console.print(f"three nodes cannot be made here: {why}", markup=False)
        return 2
    chosen = [kind for kind in KINDS if not options.only or any(word in kind.name for word in options.only)]
    if not chosen:
        console.print("no kind's name contains that")
        return 2
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
        sys.argv += ["--seed", str(options.seed)]
    for part in (clock_library, kafka_home, built_collector):
        part()  # fetched and built while there is a way out
    for program in (PROMETHEUS, VICTORIALOGS, JAEGER):
        built(program)
    enter_own_network("tests.stack.nodes")
    results = ROOT / "build" / "stack-nodes" / f"seed-{options.seed}"
    repeats = {kind.name: options.repeats or kind.repeats for kind in chosen}
    console.print(f"seed {options.seed}, {sum(repeats.values())} runs, results in {results}", soft_wrap=True)
    until_s = time.monotonic() + options.minutes * 60.0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with ExitStack() as parts:
        scratch = Path(tempfile.mkdtemp(prefix="stack-nodes-"))
        parts.callback(shutil.rmtree, scratch, ignore_errors=True)
        kafka, stack = start_stack(scratch, parts)
        parts.callback(_end_jobs)
        for repeat in range(max(repeats.values())):
            for kind in (each for each in chosen if repeat < repeats[each.name]):
                for embedded in (False, True) if kind.timed and not options.no_twins else (False,):
                    name = stored_name(kind.name, repeat, embedded=embedded)
                    room = Room(kafka=kafka, embedded=embedded)
                    _go(
                        console,
                        results,
                        name,
                        until_s,
                        lambda kept, k=kind, r=repeat, o=room: run_one(k, r, options.seed, o, stack, kept),  # type: ignore[misc]
                    )
    return report(console, results, chosen, repeats, twins=not options.no_twins)


def _end_jobs() -> None:
    """Where we are told to end while one is in flight."""
    for job in list(LIVE):
        job.kill_what_is_left()


def _go(console: Console, results: Path, name: str, until_s: float, run: Callable[[Path], Result]) -> None:
    stored = results / f"{name}.json"
    if not stored.exists():
        if time.monotonic() > until_s:
            return
        result = run(results / name)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(result, indent=1))
    result = json.loads(stored.read_text())
    words = "WRONG" if result["problems"] else "right"
    delay = "" if result["delay_s"] is None else f", {result['delay_s']:.2f} s after the onset"
    line = f"{words}: {name}: {result['said']}{delay} ({result['plan']}, took {result['took_s']:.0f} s)"
    console.print(line, soft_wrap=True, markup=False)
    for problem in [*result["problems"], *(result["gaps"] or ())]:
        console.print(f"      {problem}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
