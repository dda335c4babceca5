"""One run of somebody's script under ``whichrank run``, with or without a fault, and what was said of it.

The script knows nothing of it: ``inject/sitecustomize.py`` puts the fault in. Real torchrun jobs, three ranks on gloo.
Nothing is repeated: a run that ends otherwise than expected, or says nothing in time, counts as wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
RANKS = 3
#: From the start of the command until the fault has to have happened: torch alone takes ten seconds on two busy cores.
START_S = 90.0
#: What is said within this time after the page is waited for: stacks, better causes.
AFTER_PAGE_S = 3.0
#: Kinds of faults after which a page has to come, and the kinds of incidents that are right.
RIGHT: Mapping[str, tuple[str, ...]] = {
    "hang": ("rank_not_entered",),
    "blocked": ("rank_not_entered",),
    "spin": ("rank_not_entered",),
    "all": ("rank_not_entered",),
    "killed": ("rank_not_entered",),
    "kill": ("rank_died",),
    "stop": ("rank_stopped",),
    "raise": ("rank_raised",),
    "exit": ("rank_died", "desync"),
    "extra": ("desync",),
}
#: What docs/verdicts.md asks of a page after a standstill: where the place is known to the job; and where it is not, or
#: the process stands in I/O, or nobody waits.
KNOWN_S, UNKNOWN_S = 7.0, 60.0
UNKNOWN_ANYWAY = ("blocked", "all")
#: How long after the formula's time a page is awaited at all: a loop at one place is one after 30 s.
AWAITED_S = 35.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """fault: of ``inject``, "" none. known: the job has been at the place often. turns: of the script, 0: no end."""

    name: str
    script: str
    fault: str = ""
    place: str = "call"
    rank: int = 1
    after_s: float = 8.0
    after_count: int = 100
    share: float = 0.3
    known: bool = True
    turns: int = 0
    lasts_s: float = 25.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def formula_s(self) -> float:
        """When a rank that stands still is to be a page."""
        return KNOWN_S if self.known and self.fault not in UNKNOWN_ANYWAY else UNKNOWN_S


@dataclass(slots=True, kw_only=True)
class Outcome:
    """severities: of each incident in their order, with the seconds after the fault. fired: Unix seconds, 0 never."""

    planned: Planned
    fired: float = 0.0
    exit_code: int | None = None
    revisions: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""

    def incidents(self) -> list[dict[str, Any]]:
        """The last revision of each that asked for a person at any time."""
        last = {str(document["id"]): document for document in self.revisions}
        loud = {str(d["id"]) for d in self.revisions if d["severity"] != "info" and d["bucket"] != "planned"}
        return [document for id_, document in last.items() if id_ in loud]

    def said_severity(self, severity: str, *, within_s: float = float("inf")) -> bool:
        """Whether this severity or more was ever asked for, by an incident no older than that when it was."""
        order = ("info", "ticket", "page")
        wanted = order[order.index(severity) :]
        loud = [d for d in self.revisions if d["severity"] in wanted and d["bucket"] != "planned"]
        return any(float(d["seen"]) - float(d["times"]["onset"]) <= within_s for d in loud)

    def said_after_s(self, severity: str, *, at: str = "seen") -> float | None:
        """From the fault to the first word of this severity or more."""
        order = ("info", "ticket", "page")
        wanted = order[order.index(severity) :]
        times = [float(d[at]) for d in self.revisions if d["severity"] in wanted and d["bucket"] != "planned"]
        return min(times) - self.fired if times and self.fired else None


def run(planned: Planned, folder: Path, whichrank: Path, torchrun: Path) -> Outcome:
    """folder: an empty one, for all that comes of it."""
    folder.mkdir(parents=True, exist_ok=True)
    truth, out = folder / "truth.jsonl", folder / "run"
    fault = {
        "kind": planned.fault,
        "place": planned.place,
        "rank": planned.rank,
        "after_s": planned.after_s,
        "after_count": planned.after_count,
        "share": planned.share,
    }
    environment = {
        **os.environ,
        **planned.environment,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE / "inject"),
        "OUTSIDE_TRUTH": str(truth),
        "OUTSIDE_FAULT": json.dumps(fault if planned.fault else None),
        "TURNS": str(planned.turns or 10_000_000),
    }
    command = [
        *(str(whichrank), "run", "--out", str(out), "--", str(torchrun), "--standalone"),
        *(f"--nproc-per-node={RANKS}", planned.script),
    ]
    outcome = Outcome(planned=planned)
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True, cwd=folder,
        )  # fmt: skip
        try:
            _follow(planned, outcome, process, truth, out / "incidents.jsonl")
        finally:
            _end(process)
    outcome.exit_code = process.returncode
    _read(out / "incidents.jsonl", outcome)
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome), indent=1))
    return outcome


def _follow(planned: Planned, outcome: Outcome, process: subprocess.Popen[bytes], truth: Path, incidents: Path) -> None:
    began = time.monotonic()
    page_s: float | None = None
    killed = False
    while process.poll() is None:
        time.sleep(0.1)
        now = time.monotonic()
        if not planned.fault:
            if not planned.turns and incidents.parent.exists() and now - began > planned.lasts_s + 15:
                return
            if now - began > START_S + planned.lasts_s:
                outcome.problem = "it did not end in time"
                return
            _read(incidents, outcome)
            continue
        if not outcome.fired:
            outcome.fired = _fired(truth)
            if not outcome.fired and now - began > START_S:
                outcome.problem = "the fault never came"
                return
            continue
        _read(incidents, outcome)
        since_s = time.time() - outcome.fired
        if planned.fault == "killed":
            if since_s > planned.lasts_s and not killed:
                killed = True
                os.killpg(process.pid, signal.SIGINT)
            continue
        if planned.fault in ("pause", "slow"):
            if since_s > planned.lasts_s:
                return
            continue
        if page_s is None and outcome.said_after_s("page") is not None:
            page_s = now
        if page_s is not None and now - page_s > AFTER_PAGE_S:
            return
        if since_s > planned.formula_s + AWAITED_S:
            return


def _fired(truth: Path) -> float:
    try:
        lines = truth.read_text().splitlines()
    except OSError:
        return 0.0
    return max((float(json.loads(line)["time"]) for line in lines), default=0.0)


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


def problems_of(outcome: Outcome) -> list[str]:
    """What is wrong with what was said; [] nothing."""
    planned, found = outcome.planned, outcome.incidents()
    if outcome.problem:
        return [outcome.problem]
    if planned.fault in ("", "pause"):
        return [f"{d['severity']} {d['kind']} {_ranks(d)} in a sound job" for d in found]
    if not found:
        return ["nothing was said"]
    problems = []
    if len(found) > 1:
        problems.append(f"{len(found)} incidents: {', '.join(str(d['kind']) for d in found)}")
    first = found[0]
    if first["kind"] not in RIGHT[planned.fault]:
        problems.append(f"kind {first['kind']}")
    wanted = [] if planned.fault == "all" else [planned.rank]
    if _ranks(first) != wanted:
        problems.append(f"names {_ranks(first)}, not {wanted}")
    if planned.fault != "killed" and outcome.said_after_s("page") is None:
        problems.append("no page")
    return problems


def _ranks(document: Mapping[str, Any]) -> list[int]:
    return [int(item["rank"]) for item in document["suspects"] if item.get("rank") is not None]


def programs(python: Path = Path(sys.executable)) -> Sequence[Path]:
    """whichrank and torchrun beside this interpreter."""
    return [python.parent / name for name in ("whichrank", "torchrun")]
