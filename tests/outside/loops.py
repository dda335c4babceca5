"""Loops of other people, with faults that are drawn: is the right rank named, with the right kind, in time?

    python -m tests.outside.loops --seed 7 --results DIR [--public FOLDER --python PATH] [--minutes 30] [--jobs 4]

Each kind of loop runs clean and with every kind of fault; rank, place and moment are drawn by seed. What was run stays
in DIR, with its capture, and is not run again; ``--record`` also writes its facts beside this file, where they count
like runs. Public scripts need a folder with their snapshots and a Python with what they import; without, their lines
are not run. Exit status 1 where a line falls short.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.outside.judging import Facts, facts_from, facts_of, key_of, problems_of
from tests.outside.kinds import HERE, Kind
from tests.outside.loop_lines import lines
from tests.outside.outcomes import Planned, kept
from tests.outside.plan import KINDS, plan
from tests.outside.record import RECORD, read_record, write_record
from tests.outside.runs import Launch, programs, run
from tests.outside.table import print_table

BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """results: where runs stay. public: folder of snapshots; python: what runs their scripts. jobs: at a time, of which
    ``working`` do something; the others stand still, and are only waited for."""

    results: Path
    public: Path | None = None
    python: Path | None = None
    jobs: int = 1
    working: int = 1
    record: bool = False

    def has(self, kind: Kind) -> bool:
        """Whether a public kind's script is there, and what it imports."""
        if not kind.repository:
            return True
        if self.public is None or self.python is None:
            return False
        return (self.public / kind.repository / kind.script).is_file() and not missing(self.python, kind.packages)


class Turns:
    """So many jobs work at a time; one that stands still makes room for the next."""

    def __init__(self, working: int) -> None:
        self._room = threading.Semaphore(working)

    @contextmanager
    def one(self) -> Iterator[threading.Event]:
        """Set the event when the job stands still."""
        self._room.acquire()
        quiet = threading.Event()

        def make_room() -> None:
            quiet.wait()
            self._room.release()

        threading.Thread(target=make_room, daemon=True).start()
        try:
            yield quiet
        finally:
            quiet.set()


@cache
def missing(python: Path, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Of these, what this interpreter cannot import."""
    ask = "import importlib.util, sys; print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))"
    said = subprocess.run([str(python), "-c", ask, *packages], check=True, capture_output=True, text=True).stdout
    return tuple(said.split())


def launch_of(kind: Kind, setup: Setup) -> Launch:
    """How a kind is started; its data is made where it is not there yet."""
    whichrank, torchrun = programs()
    environment = dict(kind.environment)
    if kind.on_device:
        environment["OUTSIDE_DEVICE"] = str(HERE.parents[1])
    if not kind.repository:
        return Launch(script=HERE / "scripts" / kind.script, whichrank=whichrank, torchrun=torchrun,
                      environment=environment)  # fmt: skip
    assert setup.public is not None
    assert setup.python is not None
    repository = setup.public / kind.repository
    script = repository / kind.script
    data = setup.results / "data" / kind.name
    _make_data(kind, data, setup.python)
    environment = {name: value.format(repository=repository) for name, value in environment.items()}
    links = {each.name: each for each in sorted(data.iterdir())}
    links |= {name: script.parent / name for name in kind.links}
    return Launch(
        script=script,
        whichrank=whichrank,
        torchrun=programs(setup.python)[1],
        arguments=kind.arguments,
        environment={**environment, "HF_HOME": str(data / "hf")},
        links=links,
    )


_making = threading.Lock()


def _make_data(kind: Kind, folder: Path, python: Path) -> None:
    with _making:
        if folder.is_dir():
            return
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        words = [str(python), str(HERE / "public_data.py"), str(unfinished), *kind.data]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL, env=environment)
        unfinished.rename(folder)


@contextmanager
def alone(results: Path) -> Iterator[None]:
    """Two commands would empty each other's folders. Raises SystemExit where another one works in these results."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another command runs loops in {results}; wait for its end") from None
        yield


def gather(setup: Setup, seed: int, minutes: float, *, only: str = "") -> list[Facts]:
    """What is kept or recorded of this seed's plan, and what can be begun within so many minutes."""
    recorded = read_record(RECORD / f"loops-{seed}.jsonl", facts_from)
    until = time.monotonic() + 60 * minutes
    turns = Turns(setup.working)
    stopped = threading.Event()

    def one(each: Planned) -> Facts | None:
        folder = setup.results.resolve() / f"{seed}-{each.name}"
        if (outcome := kept(folder, each)) is not None:
            return facts_of(outcome, seed)
        if (before := recorded.get((each.name, key_of(each)))) is not None:
            return before
        kind = BY_NAME[each.kind]
        if not re.search(only, each.name) or not setup.has(kind) or time.monotonic() > until:
            return None
        with turns.one() as quiet:
            if stopped.is_set() or time.monotonic() > until:
                return None
            launch = launch_of(kind, setup)
            facts = facts_of(run(each, folder, launch, quiet.set), seed)
        _print_run(facts)
        return facts

    with alone(setup.results), ThreadPoolExecutor(setup.jobs) as pool:
        try:
            found = [facts for facts in pool.map(one, plan(seed)) if facts is not None]
        finally:  # asked to end: what is under way is brought to its end, and nothing new begun
            stopped.set()
    if setup.record and found:
        write_record(RECORD / f"loops-{seed}.jsonl", found)
    return found


def _print_run(facts: Facts) -> None:
    said = "; ".join(problems_of(facts)) or "ok"
    times = [
        f"{word} {value:.1f} s"
        for word, value in (("formula", facts.formula_s), ("noticed", facts.noticed_s), ("paged", facts.paged_s))
        if value is not None
    ]
    drawn = f"{facts.manner} at {facts.place}, rank {facts.rank}" if facts.fault else ""
    print(f"{facts.name} ({drawn}): {said} ({', '.join(times)})", flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--public", type=Path, help="folder with a snapshot of each public repository")
    parser.add_argument("--python", type=Path, help="interpreter that has what the public scripts import")
    parser.add_argument("--jobs", type=int, default=4, help="at a time; those that stand still are only waited for")
    parser.add_argument("--working", type=int, default=1, help="of which so many work")
    parser.add_argument("--record", action="store_true", help=f"write the facts to {RECORD.name}/")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after that")
    parser.add_argument("--only", default="", help="of runs whose name fits this regular expression")
    add_options(parser)
    chosen = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    setup = setup_of(chosen, chosen.results)
    until = time.monotonic() + 60 * chosen.minutes
    facts = []
    for seed in chosen.seed:
        facts += gather(setup, seed, (until - time.monotonic()) / 60, only=chosen.only)
    whole = sum(len(plan(seed)) for seed in chosen.seed)
    return print_table(lines(facts), f"loops, seeds {chosen.seed}: {len(facts)} of {whole} runs")


def setup_of(chosen: argparse.Namespace, results: Path) -> Setup:
    return Setup(
        results=results.resolve(),
        public=chosen.public.resolve() if chosen.public else None,
        python=chosen.python.absolute() if chosen.python else None,
        jobs=chosen.jobs,
        working=chosen.working,
        record=chosen.record,
    )


if __name__ == "__main__":
    sys.exit(main())
