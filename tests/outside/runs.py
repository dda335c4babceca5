"""One run of somebody's script under ``whichrank run``, with or without a fault, and what was said of it.

The script knows nothing of it: ``inject/sitecustomize.py`` puts the fault in. Real torchrun jobs, three ranks on gloo.
Nothing is repeated: a run that ends otherwise than expected, or says nothing in time, counts as wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.outside.kinds import HERE, RANKS
from tests.outside.outcomes import SOFT, Outcome, Planned

#: From the start of the command until the loop has to turn: imports alone take half a minute on two busy cores. And
#: from there until the fault has to have happened.
START_S, COME_S = 240.0, 120.0
#: What is said within this time after the page is waited for: stacks, better causes.
AFTER_PAGE_S = 3.0
#: How long after the formula's time a page is awaited at all: a loop at one place is one after 30 s.
AWAITED_S = 35.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """links: names in the working folder, and where they lead."""

    script: Path
    whichrank: Path
    torchrun: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, Path] = field(default_factory=dict)


#: A shell that puts the harness into the background has it ignore Ctrl-C, and so would the job and whichrank.
HEEDS_INTERRUPTS = ("env", "--default-signal=INT")


def run(planned: Planned, folder: Path, launch: Launch, quiet: Callable[[], None] = lambda: None) -> Outcome:
    """folder: for all that comes of it; what another run left there goes. quiet: called once the job stands still."""
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    for name, target in launch.links.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).symlink_to(target)
    truth, out = folder / "truth.jsonl", folder / "run"
    fault = {
        "kind": planned.fault,
        "place": planned.place,
        "manner": planned.manner,
        "rank": planned.rank,
        "after_s": planned.after_s,
        "after_count": planned.after_count,
        "share": planned.share,
    }
    paths = [str(HERE / "inject"), launch.environment.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        **launch.environment,
        **planned.environment,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OUTSIDE_TRUTH": str(truth),
        "OUTSIDE_FAULT": json.dumps(None if planned.turns else fault),
        "TURNS": str(planned.turns or 10_000_000),
    }
    command = [
        *(str(launch.whichrank), "run", "--out", str(out), "--", str(launch.torchrun), "--standalone"),
        *(f"--nproc-per-node={RANKS}", str(launch.script), *launch.arguments),
    ]
    outcome = Outcome(planned=planned, version=version())
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*HEEDS_INTERRUPTS, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=environment, start_new_session=True, cwd=work,
        )  # fmt: skip
        try:
            _follow(outcome, process, truth, out / "incidents.jsonl", quiet)
        finally:
            _end(process)
    outcome.exit_code = process.returncode
    _look(outcome, truth)
    _read(out / "incidents.jsonl", outcome)
    if not outcome.problem and (planned.fault and not outcome.fired):
        outcome.problem = f"the job ended before the fault, with {outcome.exit_code}"
    shutil.rmtree(work, ignore_errors=True)
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome), indent=1))
    return outcome


def _follow(
    outcome: Outcome, process: subprocess.Popen[bytes], truth: Path, incidents: Path, quiet: Callable[[], None]
) -> None:
    """Returns when nothing more is to be waited for."""
    planned, began = outcome.planned, time.monotonic()
    said_at: float | None = None
    asked_to_end = was_quiet = False
    while process.poll() is None:
        time.sleep(0.1)
        _look(outcome, truth)
        _read(incidents, outcome)
        now = time.time()
        if planned.turns:
            if time.monotonic() - began > START_S + planned.lasts_s:
                outcome.problem = "it did not end in time"
                return
            continue
        if not outcome.began and time.monotonic() - began > START_S:
            outcome.problem = "the loop never turned"
            return
        if not planned.fault:
            if outcome.began and now - outcome.began > planned.lasts_s:
                return
            continue
        if not outcome.fired:
            if outcome.began and now - outcome.began > COME_S + planned.after_s:
                outcome.problem = "the fault never came"
                return
            continue
        since_s = now - outcome.fired
        if planned.is_motionless and not was_quiet:
            was_quiet = True
            quiet()
        if planned.fault == "killed":
            if since_s > planned.lasts_s and not asked_to_end:
                asked_to_end = True
                os.killpg(process.pid, signal.SIGINT)
            continue
        soft = planned.fault in SOFT
        if said_at is None and outcome.said_after_s("ticket" if soft else "page") is not None:
            said_at = time.monotonic()
        if said_at is not None and time.monotonic() - said_at > AFTER_PAGE_S:
            return
        if since_s > (planned.lasts_s if soft else max(outcome.formula_s() or 0.0, planned.expected_s) + AWAITED_S):
            return


def _look(outcome: Outcome, truth: Path) -> None:
    """What the ranks have told of the first turn and of the fault: of several ranks the last one's."""
    if outcome.fired and outcome.planned.fault != "all":
        return
    try:
        lines = truth.read_text().splitlines()
    except OSError:
        return
    begun, came = set(), set()
    for line in lines:
        with contextlib.suppress(ValueError):  # it is still being written
            told = json.loads(line)
            outcome.began = outcome.began or float(told.get("began", 0.0))
            begun.add(int(told["rank"]))
            if "time" in told:
                came.add(int(told["rank"]))
                outcome.fired = max(outcome.fired, float(told["time"]))
                outcome.where = list(told["where"])
    outcome.came = sorted(came) if 0 < len(came) < len(begun) else []


def _read(incidents: Path, outcome: Outcome) -> None:
    """What has been said since the last look, with when it was seen here."""
    try:
        lines = incidents.read_text().splitlines()
    except OSError:
        return
    for line in lines[len(outcome.revisions) :]:
        try:
            outcome.revisions.append({**json.loads(line), "seen": time.time()})
        except ValueError:
            return  # it is still being written


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its ranks, which torchrun starts in sessions of their own: one that is stopped hears no other signal."""
    try:
        ranks = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        ranks = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    for each in ranks:
        with contextlib.suppress(psutil.Error):
            each.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def version() -> str:
    """Of the code that is measured: commit, and a plus where the working tree differs from it."""
    root = HERE.parents[1]
    words = ["git", "-C", str(root), "describe", "--always", "--dirty=+"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def programs(python: Path = Path(sys.executable)) -> tuple[Path, Path]:
    """whichrank and torchrun beside this interpreter."""
    return python.parent / "whichrank", python.parent / "torchrun"
