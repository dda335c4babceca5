"""Nothing of whichrank can hurt the job: the same losses bit by bit and the same exit code, whatever is done to us.

    python -m benchmarks.harmless [--quick] [--only NAME]... [--steps N] [--json]

Each line runs one real two-rank job twice: without whichrank, and watched while something of whichrank is abused,
before it starts or in mid-run. The abuse counts for itself how often it struck; one that did not strike is SHORT,
for it proved nothing. Full and read-only folders are small private tmpfs mounts, and jobs run as users made up for it:
both need root.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harmless_agent as agent
from benchmarks import harmless_ring as ring
from benchmarks.harmless_code import sabotaged
from benchmarks.harmless_run import RANKS, Run
from benchmarks.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Abuse:
    """One way to treat us badly. ``prepare`` runs before the job and yields while it runs."""

    name: str
    prepare: Callable[[Run], Iterator[None]]
    model: str = "ddp"
    exit_code: int = 0
    #: How many jobs; of more than one, whole jobs are counted, and each must also keep its log free of CRASH_WORDS.
    jobs: int = 1
    #: Steps of a job at most.
    most_steps: int = sys.maxsize
    #: What is asked where the job itself is beyond help.
    instead: Callable[[Run], list[bool]] | None = None


#: What Python and C++ say of a process that does not end well, and what torch says of one of its own that did not.
CRASH_WORDS = ("most recent call", "Fatal Python error", "terminate called", "Segmentation fault", "SIGABRT", "SIGSEGV")

ABUSES = (
    Abuse(name="ring only, DDP", prepare=ring.nothing),
    Abuse(name="ring only, FSDP2", prepare=ring.nothing, model="fsdp2"),
    Abuse(name="ring only, compiled", prepare=ring.nothing, model="compiled"),
    Abuse(
        name="ring only, gradients by hand, groups left to the exit",
        prepare=ring.nothing,
        model="leaving",
        jobs=8,
        most_steps=20,
    ),
    Abuse(name="whichrank run, DDP, exit code 7", prepare=agent.whole_run, exit_code=7),
    Abuse(name="ring folder full before", prepare=ring.full_before),
    Abuse(name="ring folder too small before", prepare=ring.too_small_before),
    Abuse(name="ring folder full in mid-run", prepare=ring.full_mid_run),
    Abuse(name="ring folder read-only before", prepare=ring.read_only_before),
    Abuse(name="ring folder read-only in mid-run", prepare=ring.read_only_mid_run),
    Abuse(name="ring folder missing before", prepare=ring.removed_before),
    Abuse(name="ring folder removed in mid-run", prepare=ring.removed_mid_run),
    Abuse(name="ring folder of root, job of another user", prepare=ring.of_root_while_the_job_is_somebodys),
    Abuse(name="ring folder of a third user, open to all", prepare=ring.of_a_third_user_and_open_to_all),
    Abuse(name="level file switched in mid-run", prepare=ring.level_file_mid_run),
    Abuse(name="every hook raises, Python writer", prepare=sabotaged(after_step=0, native="0")),
    Abuse(name="every hook raises, C recorder", prepare=sabotaged(after_step=0, native="1")),
    Abuse(name="every hook raises mid-run, FSDP2", prepare=sabotaged(after_step=40, native="0"), model="fsdp2"),
    Abuse(
        name="every hook raises in mid-run, compiled", prepare=sabotaged(after_step=40, native="1"), model="compiled"
    ),
    Abuse(name="agent killed in mid-run", prepare=agent.agent_killed_mid_run),
    Abuse(name="state disk full before", prepare=agent.state_disk_full_before),
    Abuse(name="state disk full in mid-run", prepare=agent.state_disk_full_mid_run),
    Abuse(name="whichrank run by root, job of another user", prepare=agent.job_of_another_user),
    Abuse(name="rings of another user planted in mid-run", prepare=agent.foreign_rings, exit_code=7),
    Abuse(
        name="a rank's ring cut to nothing in mid-run: the agent",
        prepare=agent.ring_cut_short(keep=lambda size: 0),
        instead=agent.agent_lived_on,
    ),
    Abuse(
        name="a rank's ring cut by its last page in mid-run: the agent",
        prepare=agent.ring_cut_short(keep=lambda size: size - 4096),
        instead=agent.agent_lived_on,
    ),
)
QUICK = ("ring only, DDP", "every hook raises, Python writer", "ring folder removed in mid-run")


def execute(run: Run, prepare: Callable[[Run], Iterator[None]]) -> None:
    run.directory.mkdir(parents=True)
    with contextmanager(prepare)(run):
        run.execute()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="run lines whose name contains NAME")
    parser.add_argument("--quick", action="store_true", help="three representative lines")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder to keep logs in")
    options = parser.parse_args()
    # Mounts and jobs are cleaned up on the way out, also when somebody's patience ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = [
        abuse
        for abuse in ABUSES
        if (not options.quick or abuse.name in QUICK)
        and (not options.only or any(name in abuse.name for name in options.only))
    ]
    report = Report(f"Harmless: {RANKS} ranks, {options.steps} steps, dropout, 2 loader workers", as_json=options.json)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="whichrank-harmless-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # other users' jobs work below it
    try:
        references: dict[tuple[str, int], Run] = {}
        for number, abuse in enumerate(chosen):
            judge(report, abuse, references, folder / f"{number:02d}", options.steps)
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return report.finish()


def judge(report: Report, abuse: Abuse, references: dict[tuple[str, int], Run], folder: Path, steps: int) -> None:
    """Run the job without us (once per kind) and with us; add one line."""
    key = (abuse.model, abuse.exit_code)
    steps = min(steps, abuse.most_steps)

    def job(name: str) -> Run:
        return Run(directory=folder / name, model=abuse.model, steps=steps, asked_exit_code=abuse.exit_code)

    print(f"... {abuse.name}", file=sys.stderr, flush=True)
    try:
        runs = [job("abused" if number == 0 else f"abused-{number}") for number in range(abuse.jobs)]
        if abuse.instead is not None:
            (run,) = runs
            execute(run, abuse.prepare)
            answers = abuse.instead(run)
            add_line(report, abuse, run.struck, sum(answers), len(answers))
            return
        if key not in references:
            references[key] = reference = job("reference")
            reference.watched = ""
            reference.directory.mkdir(parents=True)
            reference.execute()
        reference = references[key]
        for run in runs:
            execute(run, abuse.prepare)
    except (TimeoutError, subprocess.CalledProcessError, OSError) as error:
        report.failed(abuse.name, str(error))
        return
    expected = RANKS * (steps + 2)
    if len(reference.losses) != expected:
        report.failed(
            abuse.name, f"the job without us ended with {reference.exit_code}, {len(reference.losses)} losses"
        )
    elif abuse.jobs > 1:
        as_ever = [run for run in runs if ended_as(run, reference)]
        add_line(report, abuse, min(run.struck for run in runs), len(as_ever), len(runs), "jobs")
    elif runs[0].exit_code != reference.exit_code:
        report.failed(abuse.name, f"exit code {runs[0].exit_code} instead of {reference.exit_code}")
    else:
        same = sum(one == other for one, other in zip(runs[0].losses, reference.losses, strict=False))
        add_line(report, abuse, runs[0].struck, same if len(runs[0].losses) == expected else 0, expected)


def ended_as(run: Run, reference: Run) -> bool:
    """Whether exit code and all losses are the same, and the log tells of no crash; what differs goes to stderr."""
    log = (run.directory / "log").read_text(errors="replace")
    crashes = [line for line in log.splitlines() if any(words in line for words in CRASH_WORDS)]
    if run.exit_code != reference.exit_code or crashes or run.losses != reference.losses:
        print(
            f"... {run.directory}: exit code {run.exit_code} instead of {reference.exit_code},"
            f" losses {'as ever' if run.losses == reference.losses else 'DIFFER'}, {crashes[:1]}",
            file=sys.stderr,
        )
        return False
    return True


def add_line(report: Report, abuse: Abuse, struck: int, k: int, n: int, unit: str = "") -> None:
    if struck < 1:
        report.failed(abuse.name, "the abuse did not strike")
    else:
        report.all_of(f"{abuse.name} (struck {struck})" + (f", {unit}" if unit else ""), k, n)


if __name__ == "__main__":
    sys.exit(main())
