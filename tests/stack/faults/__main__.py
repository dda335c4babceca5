"""``python -m tests.stack.faults``: faults of the road over Kafka, each at random moments, against an oracle.

Every message carries a number: received + counted drops = sent, per priority. The incidents are those of an unfaulted
twin, and no revision is published twice. Results lie in ``build/stack-faults/seed-N``; the same call goes on there.
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
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.stack.faults.strikes import FAULTS, FIRST_S, LAST_S, Fault, unmount
from tests.stack.faults.world import World
from tests.stack.parts.kafka import Kafka

ROOT = Path(__file__).resolve().parents[3]


def run_one(fault: Fault, repeat: int, seed: int, folder: Path, shared: Kafka, name: str) -> dict[str, object]:
    drawn = random.Random(f"{seed}/{fault.name}/{repeat}")
    scratch = Path(tempfile.mkdtemp(prefix="stack-fault-"))
    kafka = Kafka(scratch / "kafka") if fault.own_broker else shared
    if fault.own_broker and not fault.broker_late:
        kafka.start()
    world = World(kafka, f"{name}.", scratch / "run", drawn)
    outcome = world.outcome
    try:
        fault.prepare(world)
        moment_s = drawn.uniform(FIRST_S, LAST_S)
        world.run([(moment_s, fault.strike)])
    except Exception as failure:  # the harness's own; counts as a wrong run
        outcome.problems.append(f"harness: {type(failure).__name__}: {failure}")
    finally:
        world.close()
        unmount(world.folder)
        if fault.own_broker:
            kafka.kill()
    result = {"problems": outcome.problems, "did": outcome.did, "sent": outcome.sent}
    folder.mkdir(parents=True, exist_ok=True)
    if outcome.problems:
        for log in world.folder.glob("*.log"):
            shutil.copy(log, folder / f"{name}-{log.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", action="append", help="faults whose name contains this; may be repeated")
    parser.add_argument("--repeats", type=int, help="of each fault; default: 5, and 20 of a killed processor")
    parser.add_argument("--beside", type=int, default=2, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after that")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    results = ROOT / "build" / "stack-faults" / f"seed-{options.seed}"
    chosen = [
        (fault, repeat)
        for fault in FAULTS
        if not options.only or any(word in fault.name for word in options.only)
        for repeat in range(options.repeats or fault.repeats)
    ]
    if not chosen:
        console.print("no fault's name contains that")
        return 2
    console.print(f"seed {options.seed}, {len(chosen)} runs, results in {results}", soft_wrap=True)
    scratch = Path(tempfile.mkdtemp(prefix="stack-faults-"))
    shared = Kafka(scratch / "kafka")
    shared.start()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began, lock, left_out = time.monotonic(), threading.Lock(), []

    def go(item: tuple[Fault, int]) -> None:
        fault, repeat = item
        name = f"{fault.name}-{repeat}".replace(" ", "-").replace("'", "")
        stored = results / f"{name}.json"
        if not stored.exists():
            if time.monotonic() - began > options.minutes * 60.0:
                left_out.append(name)
                return
            result = run_one(fault, repeat, options.seed, results, shared, name)
            stored.parent.mkdir(parents=True, exist_ok=True)
            stored.write_text(json.dumps(result, indent=1))
        result = json.loads(stored.read_text())
        with lock:
            verdict = "right" if not result["problems"] else "WRONG"
            console.print(
                f"{verdict}: {fault.name} #{repeat}: {'; '.join(result['did'])}", soft_wrap=True, markup=False
            )
            for problem in result["problems"]:
                console.print(f"      {problem}", soft_wrap=True, markup=False)

    pool = ThreadPoolExecutor(max_workers=options.beside)
    try:
        list(pool.map(go, chosen))
    finally:
        pool.shutdown(cancel_futures=True)
        shared.kill()
        shutil.rmtree(scratch, ignore_errors=True)
    return report(console, results, options.repeats, [fault for fault, repeat in chosen if repeat == 0], left_out)


def report(console: Console, results: Path, repeats: int | None, faults: list[Fault], left_out: list[str]) -> int:
    table = Table(
        title="faults on the road over Kafka: everything received or counted, the twin's incidents, each once"
    )
    for heading in ("asked", "measured", "k of n", ""):
        table.add_column(heading, justify="right" if heading == "k of n" else "left")
    good = 0
    for fault in faults:
        outcomes = []
        for repeat in range(repeats or fault.repeats):
            stored = results / (f"{fault.name}-{repeat}".replace(" ", "-").replace("'", "") + ".json")
            outcomes.append(json.loads(stored.read_text())["problems"] if stored.exists() else ["not run"])
        right = sum(not problems for problems in outcomes)
        first = next((problems[0] for problems in outcomes if problems), "all as in the twin")
        ok = right == len(outcomes)
        good += ok
        table.add_row(fault.name, first, f"{right} of {len(outcomes)}", "ok" if ok else "SHORT")
    console.print(table)
    console.print(
        f"{good} of {len(faults)} demands ok" + (f"; {len(left_out)} runs are not done yet" if left_out else "")
    )
    return 0 if good == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
