"""Runs the attacks and prints *attack | asked | measured | held or FAILS*.

    python -m tests.attacks [--long] [--only A1,C4] [--group a] [--jobs 2] [--fuzz-s 20]

Without ``--long`` those are left out, and counted, that take more than some seconds. Random input goes on for
``--fuzz-s`` of CPU for each sort: 20, with ``--long`` 600. Needs root (users, namespaces,
control groups). Exit status 1 where one did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import tests.attacks
from tests.attacks.register import (
    ATTACKS,
    FUZZ_S_VARIABLE,
    LONG_FUZZ_S,
    SHORT_FUZZ_S,
    Attack,
    Outcome,
    fuzz_s,
)
from tests.attacks.users import MemoryLimit

_RESULT = "outcome of the attack: "
#: Seconds that pass for a second of CPU, at most, beside whatever else runs.
_WALL_PER_CPU = 6.0


def load_attacks() -> None:
    """Modules called attacks_* register what they hold."""
    for module in pkgutil.iter_modules(tests.attacks.__path__):
        if module.name.startswith("attacks_"):
            importlib.import_module(f"tests.attacks.{module.name}")


def _in_order(found: Attack) -> tuple[str, int, str]:
    letter, digits, rest = re.fullmatch(r"([A-Z]+)(\d*)(.*)", found.number).groups()  # type: ignore[union-attr]
    return letter, int(digits or 0), rest


def run_alone(chosen: Attack) -> Outcome:
    """In a child of its own session: whatever it leaves behind is killed."""
    limit_s = chosen.limit_s + (_WALL_PER_CPU * fuzz_s() if chosen.fuzz else 0.0)
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks", "--act", chosen.number, "--of", chosen.act.__module__,
             "--folder", folder, "--memory-mb", str(chosen.memory_mb)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            said, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return Outcome(held=False, measured=f"not over after {limit_s:.0f} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    for line in said.splitlines():
        if line.startswith(_RESULT):
            return Outcome(**json.loads(line.removeprefix(_RESULT)))
    last = errors.strip().splitlines()[-1:] or ["no outcome"]
    return Outcome(held=False, measured=f"the attack itself ended with {child.returncode}: {last[0]}"[:200])


def _timed(chosen: Attack) -> tuple[Outcome, float]:
    began = time.monotonic()
    return run_alone(chosen), time.monotonic() - began


def _act(number: str, module: str, folder: Path, memory_mb: int) -> int:
    limit = MemoryLimit(memory_mb) if memory_mb else None
    try:
        if limit is not None:
            limit.put_in(os.getpid())
        importlib.import_module(module)  # alone, and under the limit: what memory an attack takes is measured
        outcome = ATTACKS[number].act(folder)
        if limit is not None:
            outcome = replace(outcome, measured=f"{outcome.measured}; {limit.describe()}")
    finally:
        if limit is not None:
            limit.close()
    print(_RESULT + json.dumps({"held": outcome.held, "measured": outcome.measured}), flush=True)
    return 0


def print_outcomes(done: Sequence[tuple[Attack, Outcome]], left_out: int) -> int:
    """Returns the exit status."""
    for chosen, outcome in done:
        cells = (
            f"{chosen.number:4} {chosen.text}",
            chosen.asked,
            outcome.measured,
            "held" if outcome.held else "FAILS",
        )
        print(" | ".join(cells))
    held = sum(outcome.held for _, outcome in done)
    rest = f"; {left_out} take longer: make attacks-long" if left_out else ""
    print(f"{held} of {len(done)} held{rest}")
    return int(held < len(done) or not done)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--long", action="store_true", help="those that take longer, too")
    parser.add_argument("--only", default="", help="numbers, with commas")
    parser.add_argument("--group", default="", help="numbers that begin so")
    parser.add_argument("--jobs", type=int, default=1, help="so many beside each other (1)")
    parser.add_argument("--fuzz-s", type=float, help="seconds of random input for each sort (20; with --long 600)")
    parser.add_argument("--act", help=argparse.SUPPRESS)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory-mb", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.act:
        return _act(asked.act, asked.of, asked.folder, asked.memory_mb)
    fuzz = asked.fuzz_s or (LONG_FUZZ_S if asked.long else SHORT_FUZZ_S)
    os.environ[FUZZ_S_VARIABLE] = str(fuzz)  # their processes have it from there
    load_attacks()
    if os.geteuid() != 0:
        print("make attacks needs root: other users, namespaces, control groups", file=sys.stderr)
        return 2
    only = set(filter(None, asked.only.split(",")))
    if unknown := only - ATTACKS.keys():
        parser.error(f"no attack is called {', '.join(sorted(unknown))}")
    chosen = [a for a in sorted(ATTACKS.values(), key=_in_order) if (not only or a.number in only)]
    chosen = [a for a in chosen if a.number.startswith(asked.group)]
    now = [a for a in chosen if asked.long or only or not a.long]
    began = time.monotonic()
    with ThreadPoolExecutor(max(1, asked.jobs)) as pool:
        timed = list(pool.map(_timed, now))
    status = print_outcomes(
        [(each, outcome) for each, (outcome, _) in zip(now, timed, strict=True)], len(chosen) - len(now)
    )
    longest = sorted(((seconds, each.number) for each, (_, seconds) in zip(now, timed, strict=True)), reverse=True)[:8]
    said = ", ".join(f"{number} {seconds:.0f} s" for seconds, number in longest)
    print(f"in {time.monotonic() - began:.0f} s; the longest: {said}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
