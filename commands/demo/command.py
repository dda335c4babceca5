"""``whichrank demo``: a real job with a real fault, watched by ``whichrank run``, and the verdict checked.

Fault, rank and step are drawn here and handed to the training script alone; ``whichrank run`` is started as a user
would start it and learns nothing. The checker reads the truth, as the guilty rank stamped it, after the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ...telemetry.incident_document import CodePlace, IncidentDocument, word_of
from ...telemetry.incident_writing import write_incident
from ...telemetry.missing_packages import how_to_install
from ...telemetry.vocabulary import Kind
from ..run_folder.run_directory import INCIDENTS_FILE
from ..support.end_of_run import end_run
from ..support.verdict_check import (
    BLOCKING_BUCKETS,
    differences,
    incidents_of_faults,
    last_revisions,
    seconds_until_seen,
)

SCHEMA = 1
TRAINING = Path(__file__).with_name("demo_training.py")
RANKS = 4
STEPS = range(30, 120)
#: What each scenario is called in an incident.
SCENARIOS: dict[str, Kind] = {
    "sleep_in_forward": Kind.RANK_NOT_ENTERED,
    "loader_blocked": Kind.RANK_NOT_ENTERED,
    "busy_loop": Kind.RANK_NOT_ENTERED,
    "gil_held": Kind.RANK_NOT_ENTERED,
    "sigstop": Kind.RANK_STOPPED,
    "sigkill": Kind.RANK_DIED,
    "exception": Kind.RANK_RAISED,
    "wrong_op": Kind.DESYNC,
    "wrong_size": Kind.DESYNC,
    "skipped_collective": Kind.DESYNC,
}
#: A killed process leaves no stack.
WITHOUT_LINE = frozenset({"sigkill"})
#: A busy machine takes minutes to import torch four times; the fault itself must be seen within LIMIT_S.
START_LIMIT_S = 300.0
LIMIT_S = 90.0
#: torchrun looks after its ranks this often. By default it ends the guilty rank 0.1 s after an innocent one aborted
#: (wrong size, skipped collective), before anybody could ask it where it stands.
MONITOR_S = 5
#: After the rank is named: how long its line may still take before the demo ends the job.
LINE_PATIENCE_S = 6.0
JOB_LOG = "job.log"
EXIT_WRONG = 1
EXIT_USAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTruth:
    """As the guilty rank wrote it right before the fault. time: Unix seconds. None: it did not get that far."""

    rank: int | None = None
    step: int | None = None
    kind: str | None = None
    time: float | None = None


@dataclass(slots=True)
class DemoOutcome:
    """Truth, verdict and what is missing between them."""

    scenario: str
    truth: DemoTruth
    verdict: IncidentDocument | None
    seconds: float
    wrong: list[str] = field(default_factory=list)


def demo(scenario: str | None, *, as_json: bool, seed: int | None, out: Path | None) -> int:
    """Runs ``whichrank demo``, and prints what was done and concluded.

    The exit status: 0 only if the incident is right.

    scenario: the kind of fault, None drawn at random by ``seed`` (None: another each time). out: folder of the run.
    """
    if scenario is not None and scenario not in SCENARIOS:
        print(f"whichrank: no scenario {scenario!r}; there are {', '.join(SCENARIOS)}", file=sys.stderr)
        return EXIT_USAGE
    if find_spec("torch") is None:
        print(f"whichrank: the demo trains: {how_to_install('torch', 'torch')}", file=sys.stderr)
        return EXIT_USAGE
    seed = secrets.randbits(32) if seed is None else seed
    draw = random.Random(seed)
    plan = {"rank": draw.randrange(RANKS), "step": draw.choice(STEPS), "kind": draw.choice(list(SCENARIOS))}
    if scenario is not None:
        plan["kind"] = scenario
    run = out or Path("whichrank-out") / f"{time.strftime('%Y%m%d-%H%M%S')}-demo-{secrets.token_hex(2)}"
    with tempfile.TemporaryDirectory(prefix="demo-") as private:
        truth = Path(private) / "truth.json"
        plan_file = Path(private) / "plan.json"
        plan_file.write_text(json.dumps({**plan, "truth": str(truth)}))
        run.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        _run_job(run, plan_file, truth, quiet=as_json)
        outcome = judge(str(plan["kind"]), truth, run / INCIDENTS_FILE, time.monotonic() - began)
    if as_json:
        print(_as_json(outcome, seed, run))
    else:
        _print(outcome, seed, run)
    return EXIT_WRONG if outcome.wrong else 0


def judge(scenario: str, truth_file: Path, incidents: Path, seconds: float = 0.0) -> DemoOutcome:
    """Compares the fault that was done with the incidents that were concluded; ``wrong`` has what does not fit.

    truth_file: written by the guilty rank; incidents: incidents.jsonl of the run.
    """
    try:
        found = json.loads(truth_file.read_text())
        truth = DemoTruth(rank=found["rank"], step=found["step"], kind=found["kind"], time=found.get("time"))
    except (OSError, ValueError, KeyError):
        why = "the fault was never injected: the job did not get that far"
        return DemoOutcome(scenario, DemoTruth(), None, seconds, [why])
    named = incidents_of_faults(last_revisions(incidents).values())
    outcome = DemoOutcome(scenario, truth, named[0] if named else None, seconds)
    outcome.wrong += differences(named, [SCENARIOS[scenario]], truth.rank)
    if outcome.verdict is None:
        return outcome
    if scenario not in WITHOUT_LINE:
        where = _place(outcome.verdict)
        lines = fault_lines(scenario)
        if Path(str(where.file)).name != TRAINING.name or where.line not in lines:
            place = f"{where.file}:{where.line}"
            outcome.wrong.append(f"place {place} instead of {TRAINING.name}:{' or '.join(map(str, lines))}")
    return outcome


def fault_lines(scenario: str) -> list[int]:
    """The lines of the training script at which a rank with this fault is stuck or raises."""
    mark = re.compile(rf"# fault: {scenario}$")
    return [n for n, line in enumerate(TRAINING.read_text().splitlines(), start=1) if mark.search(line)]


def _place(verdict: IncidentDocument) -> CodePlace:
    """Where the first suspect is."""
    return next((suspect.where for suspect in verdict.suspects[:1] if suspect.where is not None), CodePlace())


def copy_training(run: Path) -> Path:
    """The script as a user's own file: where whichrank is installed, ours lies in site-packages, like any library."""
    return Path(shutil.copyfile(TRAINING, run / TRAINING.name))


def _run_job(run: Path, plan: Path, truth: Path, *, quiet: bool) -> None:
    """Start ``whichrank run`` and, when a job that cannot end by itself has been judged, end it."""
    program = [sys.executable, "-m", "whichrank.commands.main"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    torchrun.append(f"--monitor-interval={MONITOR_S}")
    script = copy_training(run)
    # The job's own output goes to a file, so that the demo's reader sees what whichrank has to say.
    to_log = ["sh", "-c", 'exec "$@" >"$0" 2>&1', str(run / JOB_LOG)]
    child = subprocess.Popen(
        [*program, "run", "--out", str(run), "--", *to_log, *torchrun, str(script), "--plan", str(plan)],
        env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        stdout=sys.stderr if quiet else None,
    )
    deadline = time.monotonic() + START_LIMIT_S
    struck = False
    named_at: float | None = None
    # Ended from outside, the demo must not leave a job behind that sleeps for an hour.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
            if not truth.exists():
                continue
            if not struck:
                struck, deadline = True, time.monotonic() + LIMIT_S
            last = last_revisions(run / INCIDENTS_FILE).values()
            suspects = [each for incident in last if incident.bucket in BLOCKING_BUCKETS for each in incident.suspects]
            if suspects and named_at is None:
                named_at = time.monotonic()
            has_line = any(suspect.line is not None for suspect in suspects)
            if named_at is not None and (has_line or time.monotonic() - named_at > LINE_PATIENCE_S):
                break
    except KeyboardInterrupt:
        pass
    finally:
        end_run(child, lambda: _kill_guilty(truth))


def _kill_guilty(truth: Path) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        guilty = int(json.loads(truth.read_text())["pid"])
        if TRAINING.name.encode() in Path(f"/proc/{guilty}/cmdline").read_bytes():
            os.kill(guilty, signal.SIGKILL)


def _print(outcome: DemoOutcome, seed: int, run: Path) -> None:
    verdict = outcome.verdict or IncidentDocument()
    where = _place(verdict)
    table = Table(title=f"demo: {outcome.scenario}, seed {seed}", title_justify="left")
    for name in ("", "truth", "verdict"):
        table.add_column(name)
    lines = " or ".join(map(str, fault_lines(outcome.scenario)))
    table.add_row("rank", str(outcome.truth.rank), ", ".join(str(each.rank) for each in verdict.suspects) or "-")
    table.add_row("kind", SCENARIOS[outcome.scenario].value, word_of(verdict.kind) or "-")
    table.add_row(
        "line", f"{TRAINING.name}:{lines}", f"{where.file or '-'}:{'-' if where.line is None else where.line}"
    )
    step = verdict.first_bad.step
    table.add_row("step", str(outcome.truth.step), "-" if step is None else str(step))
    delay = seconds_until_seen(outcome.verdict, outcome.truth.time)
    table.add_row("seen after", "", f"{delay:.2f} s" if delay is not None else "-")
    console = Console()
    console.print(table)
    for problem in outcome.wrong:
        console.print(f"WRONG: {problem}", style="bold red")
    console.print("SHORT" if outcome.wrong else "ok", f"in {outcome.seconds:.0f} s; the run is in {run}")


def _as_json(outcome: DemoOutcome, seed: int, run: Path) -> str:
    told = {
        "schema": SCHEMA,
        "ok": not outcome.wrong,
        "scenario": outcome.scenario,
        "seed": seed,
        "run": str(run),
        "seconds": round(outcome.seconds, 1),
        "seen_after_s": seconds_until_seen(outcome.verdict, outcome.truth.time),
        "truth": asdict(outcome.truth),
        "expected": {"kind": SCENARIOS[outcome.scenario].value, "lines": fault_lines(outcome.scenario)},
        "verdict": None if outcome.verdict is None else write_incident(outcome.verdict),
        "wrong": outcome.wrong,
    }
    return json.dumps(told)
