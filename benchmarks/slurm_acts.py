"""Does what ``whichrank respond`` does to Slurm hold, and can it be undone? Each act many times, on a real scheduler.

Debian's slurmctld, and a slurmd for each of four nodes of this machine; hook, executor and settings are the
product's. Run: ``python -m benchmarks.slurm_acts [--runs 5] [--only TRIAL]``; about seven minutes. Exit status 1 on
SHORT.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.stack.parts.slurm_room import SlurmRoom, what_is_missing
from tests.stack.slurm_node_trials import room_with_pack
from tests.stack.slurm_trials import TRIALS
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine

_WITH_PACK = ("prolog", "epilog")
#: Where Slurm and munge of a distribution would write; in folders that all use, what is called after them.
_PLACES = ("/etc/slurm", "/etc/munge", "/var/log", "/var/lib/slurm", "/var/lib/munge", "/var/spool", "/run", "/dev/shm")
_NAMES = ("slurm", "munge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the trials and prints the lines. The exit status is 1 where a line is SHORT, 2 where there is no Slurm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slurm_acts", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each trial")
    parser.add_argument("--only", action="append", choices=list(TRIALS), help="this trial, again for more")
    options = parser.parse_args(arguments)
    if why := what_is_missing():
        print(f"there can be no Slurm here: {why}")
        return 2
    chosen, before, lines, folders = options.only or list(TRIALS), _outside(), [], []
    for names, make in (
        ([name for name in chosen if name not in _WITH_PACK], SlurmRoom),
        ([name for name in chosen if name in _WITH_PACK], room_with_pack),
    ):
        if names:
            with make() as room:
                lines += [_tried(name, room, options.runs) for name in names]
                folders.append(room.folder)
    after, left = _outside(), sum(map(_left_of, folders))
    changed = sorted(before ^ after)
    print("".join(f"CHANGED: {path}\n" for path in changed[:10]), end="")
    lines.append(
        ScoreLine(
            name="outside of the room's folder",
            asked="nothing changes, nothing stays",
            measured=f"{len(changed)} files changed, {left} processes left",
            share="",
            ok=not changed and not left and not any(folder.exists() for folder in folders),
        )
    )
    print_lines(lines, "Slurm " + _version())
    print(in_short(lines))
    return exit_code(lines)


def _tried(name: str, room: SlurmRoom, runs: int) -> ScoreLine:
    held, slowest_s = 0, 0.0
    for _ in range(runs):
        began_s = time.monotonic()
        try:
            why = TRIALS[name].hold(room)
        except (OSError, TimeoutError, subprocess.SubprocessError) as error:
            why = f"{type(error).__name__}: {error}"
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        held += not why
        if why:
            print(f"WRONG: {name}: {why}", flush=True)
    return ScoreLine(
        name=f"{name}: {TRIALS[name].asked}",
        asked="every time",
        measured=f"{slowest_s:.1f} s at most",
        share=f"{held} of {runs}",
        ok=held == runs,
    )


def _outside() -> set[tuple[str, int, int]]:
    found = set()
    for place in _PLACES:
        for path in Path(place).rglob("*"):
            try:
                state = path.lstat()
            except OSError:
                continue
            if any(name in str(path) for name in _NAMES) and path.is_file():
                found.add((str(path), state.st_mtime_ns, state.st_size))
    return found


def _left_of(folder: Path) -> int:
    """Processes that have this room around them."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += str(folder).encode() in entry.read_bytes()
        except OSError:
            continue
    return count


def _version() -> str:
    return subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=False).stdout.split()[-1]


if __name__ == "__main__":
    sys.exit(main())
