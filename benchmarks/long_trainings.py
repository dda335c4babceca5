"""Do long trainings reach their last step by themselves? Faults drawn by a seed over a quarter of an hour of each.

Five kinds of torchrun job (gloo) under ``whichrank run --restarts``, on one node and on three (namespaces: root):
hangs, deadlocks, SIGKILL, SIGSTOP, exceptions, a node destroyed, a slow node, a full disk, an upload that
fails. Each training leaves a file in ``--results``; one that has a file is not made again; the table is of all of them.
Run: ``python -m benchmarks.long_trainings [--kind ddp] [--layout one-node] [--side-by-side 2] [--quick]``;
``--peer torchrun`` makes runs of nothing but hangs with torchrun's own restarts and with ours, ``--clean`` those in
which nothing may be done, and ``--table`` makes none. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.long_clean_runs import clean_plans, one_clean_run
from benchmarks.long_training_faults import KINDS, LAYOUTS, ONE_NODE, Plan, hangs_of, plan_of, steps_in
from benchmarks.long_training_jobs import (
    PROGRAM,
    STOP,
    SUPERVISED,
    TORCHRUN,
    UNBROKEN,
    missing,
    ranks_of,
    run_training,
)
from benchmarks.long_training_table import HANGS, print_table
from benchmarks.long_training_truth import losses_of, read_outcome

#: With torchrun's own restarts: these kinds, so many hangs each, and the time-out of the process groups.
PEER_KINDS, PEER_HANGS, PEER_TIMEOUT_S = ("ddp", "fsdp2"), 3, 120.0
#: A training that takes so many times its minutes, and this, is ended, and counts as wrong.
PATIENCE, PATIENCE_S = 2.5, 600.0
_LOCK = Lock()


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the trainings that are asked for and prints the table. The exit status is 1 where a row is SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_trainings", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", action="append", choices=KINDS, help="again for more")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="again for more")
    parser.add_argument("--minutes", type=float, default=15.0, help="about so long each takes, with its faults")
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--side-by-side", type=int, default=1, help="trainings at a time")
    parser.add_argument("--results", type=Path, default=Path("build/long-trainings"))
    parser.add_argument("--peer", choices=(TORCHRUN,), help="nothing but hangs: with its restarts, and with ours")
    parser.add_argument("--clean", action="store_true", help="runs with long pauses and first steps, without a fault")
    parser.add_argument("--runs", type=int, default=24, help="of --clean")
    parser.add_argument("--quick", action="store_true", help="one kind on one node, 2 minutes, 3 faults: a look")
    parser.add_argument("--table", action="store_true", help="make none, print what is there")
    options = parser.parse_args(arguments)
    if options.quick:
        options.kind, options.layout, options.minutes, options.faults = KINDS[:1], LAYOUTS[:1], 2.0, 3
    options.results.mkdir(parents=True, exist_ok=True)
    works: list[Callable[[], None]] = []
    if options.clean and not options.table:
        works = [
            partial(_kept, options.results / f"clean-{plan.seed}-{plan.number}.json", partial(one_clean_run, plan))
            for plan in clean_plans(options.runs, options.seed)
        ]
    elif not options.table:
        works = _trainings(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: STOP.set())
    with ThreadPoolExecutor(options.side_by_side) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()
    return print_table(options.results)


def _trainings(options: argparse.Namespace) -> list[Callable[[], None]]:
    works: list[Callable[[], None]] = []
    for kind in options.kind or (PEER_KINDS if options.peer else KINDS):
        for layout in options.layout or ((ONE_NODE,) if options.peer else LAYOUTS):
            if why := _cannot(kind, layout):
                print(f"  {kind} {layout}: not run: {why}", file=sys.stderr)
                continue
            drawn: dict[str, Any] = {"minutes": options.minutes, "seed": options.seed, "ranks": ranks_of(kind, layout)}
            if options.peer:
                plan = hangs_of(kind, layout, faults=PEER_HANGS, timeout_s=PEER_TIMEOUT_S, **drawn)
            else:
                plan = plan_of(kind, layout, faults=options.faults, **drawn)
            for how in (options.peer, SUPERVISED) if options.peer else (SUPERVISED,):
                name = f"{HANGS if options.peer else ''}{how}-{kind}-{layout}-{options.seed}.json"
                place = options.results / name
                works.append(partial(_kept, place, partial(one_training, plan, how, options.minutes, place)))
    return works


def _cannot(kind: str, layout: str) -> str:
    if layout != ONE_NODE or os.geteuid() != 0:  # a full disk is one of its own
        from tests.scenarios.nodes import missing as no_nodes

        return missing(kind) or no_nodes()
    return missing(kind)


def _kept(place: Path, make: Callable[[], dict[str, object]]) -> None:
    """Makes one, unless its file is there. What was begun and has not ended stays so: it is wrong, and not repeated."""
    if STOP.is_set():
        return
    if place.exists():
        print(f"  {place.name}: is there", file=sys.stderr, flush=True)
        return
    place.write_text(json.dumps({"state": "begun"}))
    try:
        result = make()
    except Exception:  # edge: one that cannot be made is told, and the others are
        result = {"state": "failed", "why": traceback.format_exc()[-2000:]}
        print(f"  {place.name}: {result['why']}", file=sys.stderr, flush=True)
    place.write_text(json.dumps(result, indent=1))
    print(f"  {place.name}: {result['state']}", file=sys.stderr, flush=True)


def one_training(plan: Plan, how: str, minutes: float, place: Path) -> dict[str, object]:
    """One training with its faults, as the file of results ``place`` has it; if it went wrong, evidence lies beside."""
    with _LOCK:
        losses = _unbroken(plan, minutes, place.parent)
    with tempfile.TemporaryDirectory(prefix="whichrank-long-") as name:
        folder = Path(name)
        limit_s = 60.0 * minutes * PATIENCE + PATIENCE_S
        codes, began, ended = run_training(plan, folder, how, limit_s)
        outcome = read_outcome(plan, folder, codes, began, ended, losses)
        is_wrong = not (outcome.told if plan.is_for_a_person else outcome.reached)
        if is_wrong or any(not fault.survived for fault in outcome.faults) or outcome.false_acts:
            _keep_evidence(folder, place.with_suffix(".evidence"))
        return {
            "state": "timed out" if -1 in codes else "ended",
            "how": how,
            "minutes": minutes,
            "codes": codes,
            "plan": asdict(plan),
            "outcome": asdict(outcome),
            "ettr": outcome.ettr,
            "goodput_ettr": _goodput_ettr(folder) if how == SUPERVISED else None,
        }


def _unbroken(plan: Plan, minutes: float, results: Path) -> dict[int, float]:
    """Losses of a run of the same script without a fault: made once for each kind and length."""
    place = results / f"unbroken-{plan.kind}-{steps_in(minutes)}.json"
    if not place.exists():
        with tempfile.TemporaryDirectory(prefix="whichrank-long-") as name:
            folder = Path(name)
            whole = replace(plan, layout=ONE_NODE, faults=(), step_s=0.0, timeout_s=0.0)
            codes, _, _ = run_training(whole, folder, UNBROKEN, 60.0 * minutes + PATIENCE_S)
            if codes != [0]:
                raise RuntimeError(f"the unbroken run of {plan.kind} ended with {codes}: {_tail(folder / 'log-0')}")
            place.write_text(json.dumps(losses_of(folder)))
    return {int(step): loss for step, loss in json.loads(place.read_text()).items()}


def _goodput_ettr(folder: Path) -> float | None:
    """What ``whichrank goodput`` says of it."""
    done = subprocess.run(
        [*PROGRAM, "goodput", str(folder / "out-0"), "--json"], capture_output=True, text=True, timeout=300, check=False
    )
    try:
        found = json.loads(done.stdout)["runs"][0]["ettr"]
    except (ValueError, LookupError):
        return None
    return None if found is None else float(found)


def _keep_evidence(folder: Path, place: Path) -> None:
    """What is wanted to see why, without captures and checkpoints."""
    place.mkdir(exist_ok=True)
    names = [*folder.glob("log-*"), *folder.glob("truth-*.jsonl"), folder / "plan.json"]
    for path in [*names, *folder.glob("out-*/*.jsonl"), *folder.glob("out-*/*/*.jsonl")]:
        if path.is_file():
            copy = place / "-".join(path.relative_to(folder).parts)
            copy.write_bytes(path.read_bytes()[-8_000_000:])


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-1500:]


if __name__ == "__main__":
    sys.exit(main())
