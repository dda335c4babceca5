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
    #: What is asked where the job itself is beyond help.
    instead: Callable[[Run], list[bool]] | None = None


ABUSES = (
    Abuse(name="ring only, DDP", prepare=ring.nothing),
    Abuse(name="ring only, FSDP2", prepare=ring.nothing, model="fsdp2"),
    Abuse(name="ring only, compiled", prepare=ring.nothing, model="compiled"),
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
    print(f"... {abuse.name}", file=sys.stderr, flush=True)
    try:
        run = Run(directory=folder / "abused", model=abuse.model, steps=steps, asked_exit_code=abuse.exit_code)
        if abuse.instead is not None:
            execute(run, abuse.prepare)
            answers = abuse.instead(run)
            add_line(report, abuse, run, sum(answers), len(answers))
            return
        if key not in references:
            reference = Run(
                directory=folder / "reference",
                model=abuse.model,
                steps=steps,
                asked_exit_code=abuse.exit_code,
                watched="",
            )
            reference.directory.mkdir(parents=True)
            reference.execute()
            references[key] = reference
        reference = references[key]
        execute(run, abuse.prepare)
    except (TimeoutError, subprocess.CalledProcessError, OSError) as error:
        report.failed(abuse.name, str(error))
        return
    expected = RANKS * (steps + 2)
    same = sum(one == other for one, other in zip(run.losses, reference.losses, strict=False))
    if len(reference.losses) != expected:
        report.failed(
            abuse.name, f"the job without us ended with {reference.exit_code}, {len(reference.losses)} losses"
        )
    elif run.exit_code != reference.exit_code:
        report.failed(abuse.name, f"exit code {run.exit_code} instead of {reference.exit_code}")
    else:
        add_line(report, abuse, run, same if len(run.losses) == expected else 0, expected)


def add_line(report: Report, abuse: Abuse, run: Run, k: int, n: int) -> None:
    if run.struck < 1:
        report.failed(abuse.name, "the abuse did not strike")
    else:
        report.all_of(f"{abuse.name} (struck {run.struck})", k, n)


if __name__ == "__main__":
    sys.exit(main())
