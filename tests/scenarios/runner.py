"""Puts one plan through a real ``whichrank run -- torchrun …`` and writes down what happened, in bounded time.

Runs beside the job, in the test process. It alone ends a job that stands still, after the verdict or at the deadline;
it signals only processes that it started, or that wrote their pid into this run's truth folder. It reads
``incidents.jsonl`` as any person would, never anything else of whichrank's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from .plan import Ending, Plan, Scenario
from .witness import steps_captured, steps_done

WORKLOADS = Path(__file__).parent / "workloads"
POLL_S = 0.01
#: From the command to the first step: interpreter, torch and rendezvous of up to six ranks on a busy machine.
START_S = 240.0
#: After the verdict: time for a second, wrong incident to show itself, and for the stack to come in as a revision.
SETTLE_S = 4.0
STACK_S = 8.0
#: What explains a stop may be read late: a probe of a mount goes every ten seconds.
CAUSE_S = 25.0
#: After this long past the time asked for, a verdict no longer counts.
GIVE_UP_S = 15.0
#: From SIGTERM until the whole tree is gone; torchrun alone gives its ranks 30 s.
STOP_S = 45.0
#: What a scenario does beside its job ends this soon after it was told to.
BESIDE_S = 20.0
#: Jobs in flight, so that a command that is told to stop takes them with it.
LIVE: set[Job] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    rank: int
    realtime: float
    step: int
    file: str
    lines: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run left behind; times are Unix seconds.

    revisions: lines of incidents.jsonl; seen: when each incident id first stood there, by this process's clock;
    resolved_seen: when its last line first said that it had ended.
    fault_ended: when the last guilty rank went on; None: the fault outlasted the job. waits: when each rank that can
    say so began to wait for the guilty. stopped_by_runner: the job stood still, and its owner ended it.
    steps_captured, steps_done: of each rank, by whichrank's capture and by the rank's own record.
    stopped: when its owner did. exit_code: of ``whichrank run``; None: it had to be killed.
    """

    plan: Plan
    folder: Path
    began: float
    ended: float
    exit_code: int | None
    onsets: tuple[Onset, ...]
    signalled: float | None
    revisions: tuple[dict[str, Any], ...]
    seen: dict[str, float]
    pids: dict[int, int]
    steps_captured: dict[int, int]
    steps_done: dict[int, int]
    fault_ended: float | None = None
    waits: dict[int, float] = field(default_factory=dict)
    resolved_seen: dict[str, float] = field(default_factory=dict)
    stopped_by_runner: bool = False
    stopped: float | None = None
    harness_error: str = ""
    devices: dict[str, str] = field(default_factory=dict)  # rank -> its GPU, where the node has played ones
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["folder"] = str(self.folder)
        return document


class IncidentTail:
    """Follows incidents.jsonl; each complete line is a revision."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.revisions: list[dict[str, Any]] = []
        self.seen: dict[str, float] = {}
        self.resolved_seen: dict[str, float] = {}

    def poll(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            document = json.loads(line)
            self.revisions.append(document)
            now = time.time()
            self.seen.setdefault(document["id"], now)
            if document["state"] == "resolved":
                self.resolved_seen.setdefault(document["id"], now)
            else:
                self.resolved_seen.pop(document["id"], None)

    def verdict(self, severity: str = "") -> bool:
        """Whether there is one, and of this severity if it names one."""
        counted = [document for document in self.revisions if document["bucket"] not in ("planned", "telemetry")]
        return any(severity in ("", document["severity"]) for document in counted)

    def explained(self) -> bool:
        """Whether the current verdict names a condition of the node."""
        return any(document.get("cause") for document in self.revisions)

    def located(self) -> bool:
        """Whether the current verdict says where its suspects are."""
        return any((suspect.get("where") or {}).get("line") for d in self.revisions for suspect in d["suspects"])


def whichrank_command() -> list[str]:
    return [str(Path(sys.executable).parent / "whichrank")]


def torchrun_command(scenario: Scenario, plan: Plan, logs: Path) -> list[str]:
    programs = WORKLOADS.parents[2] / scenario.venv / "bin" if scenario.venv else Path(sys.executable).parent
    return [
        str(programs / "torchrun"),
        "--standalone",
        f"--nproc-per-node={plan.world_size}",
        f"--max-restarts={scenario.restarts}",
        f"--log-dir={logs}",
        "--tee=3",
        *scenario.arguments,
        str(WORKLOADS / f"{plan.workload}.py"),
    ]


class Job:
    """One command in flight, with its truth folder. Used by the scenario runner and the killed-parent check.

    A subclass may start it otherwise (``job_command``) or as several (``start``); what it leaves behind is the same.
    """

    def __init__(self, scenario: Scenario, plan: Plan, folder: Path) -> None:
        self.scenario = scenario
        self.plan = plan
        self.folder = folder
        self.out = folder / "out"
        self.truth = folder / "truth"
        self.logs = folder / "logs"
        self.truth.mkdir(parents=True)
        self.logs.mkdir()
        document = {**asdict(plan), "truth": str(self.truth)}
        (folder / "plan.json").write_text(json.dumps(document, indent=1))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WHICHRANK_")}
        environment |= {"SCENARIO_PLAN": str(folder / "plan.json"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment |= scenario.environment
        self.began = time.time()
        self.process = self.start(environment)
        self.tail = IncidentTail(self.out / "incidents.jsonl")
        LIVE.add(self)

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The process whose end is the end of the job, the leader of its own session."""
        with (self.folder / "console.txt").open("wb") as console:
            return subprocess.Popen(
                [*whichrank_command(), "run", "--out", str(self.out), "--", *self.job_command()],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def devices(self) -> dict[str, str]:
        """Rank -> its GPU, where the node has any."""
        return {}

    def job_command(self) -> list[str]:
        return torchrun_command(self.scenario, self.plan, self.logs)

    def stamp(self, step: int = -1) -> None:
        """The true onset of what comes from outside the ranks, for all guilty ones; right before it is done."""
        for rank in self.plan.guilty or (0,):
            self._write(f"onset-{rank}.json", {"step": step, "file": "", "lines": [0, 0]})

    def stamp_end(self) -> None:
        """What came from outside is over."""
        for rank in self.plan.guilty or (0,):
            self._write(f"ended-{rank}.json", {})

    def _write(self, name: str, document: dict[str, Any]) -> None:
        part = self.truth / f".{name}"
        part.write_text(json.dumps({"realtime": time.time(), **document}))
        part.rename(self.truth / name)

    def times(self, word: str) -> dict[int, float]:
        """Unix seconds that ranks stamped beside the onset: "ended", "waits"."""
        return {
            int(path.stem.rsplit("-", 1)[1]): float(json.loads(path.read_text())["realtime"])
            for path in self.truth.glob(f"{word}-*.json")
        }

    def running(self) -> bool:
        return self.process.poll() is None

    def onsets(self) -> tuple[Onset, ...]:
        found = []
        for path in sorted(self.truth.glob("onset-*.json")):
            document = json.loads(path.read_text())
            rank = int(path.stem.rsplit("-", 1)[1])
            found.append(
                Onset(
                    rank=rank,
                    realtime=document["realtime"],
                    step=document["step"],
                    file=document["file"],
                    lines=(document["lines"][0], document["lines"][1]),
                )
            )
        return tuple(found)

    def pids(self) -> dict[int, int]:
        return {
            int(path.stem.rsplit("-", 1)[1]): json.loads(path.read_text())["pid"]
            for path in self.truth.glob("rank-*.json")
        }

    def steps_done(self, rank: int = 0) -> int:
        try:
            return (self.truth / f"steps-{rank}.txt").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def launcher(self) -> psutil.Process:
        """The torchrun that ``whichrank run`` started."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if any(Path(word).name == "torchrun" for word in child.cmdline()[:3]):
                return child
        raise LookupError("no torchrun below whichrank run")

    def stop(self) -> int | None:
        """SIGTERM, as a person would; then SIGCONT for what is stopped; then, for what is left, SIGKILL."""
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            self._continue_stopped_ranks()
        deadline = time.monotonic() + STOP_S
        while self.running() and time.monotonic() < deadline:
            self.tail.poll()
            time.sleep(POLL_S)
        code = self.process.poll()
        self.kill_what_is_left()
        return code

    def _continue_stopped_ranks(self) -> None:
        for process in self._ranks():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_STOPPED:
                    process.send_signal(signal.SIGCONT)  # the SIGTERM that the launcher sends is pending there

    def _ranks(self) -> Iterator[psutil.Process]:
        for pid in self.pids().values():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.environ().get("SCENARIO_PLAN") == str(self.folder / "plan.json"):
                    yield process

    def kill_what_is_left(self) -> None:
        """Everything that carries this run's plan in its environment, and the command's own session."""
        LIVE.discard(self)
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        mine = str(self.folder / "plan.json")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("SCENARIO_PLAN") == mine:
                    process.kill()


class Beside:
    """The scenario's thread beside the job. A failure of it is the harness's."""

    def __init__(self, scenario: Scenario, job: Job) -> None:
        self._over = threading.Event()
        self._error = ""
        self._act = scenario.beside
        self._job = job
        self._thread = threading.Thread(target=self._run, name="beside", daemon=True)
        if self._act is not None:
            self._thread.start()

    def _run(self) -> None:
        assert self._act is not None
        try:
            self._act(self._job, self._over)
        except Exception as failure:  # told in the outcome, as every failure of the harness
            self._error = f"beside the job: {type(failure).__name__}: {failure}"

    def end(self) -> str:
        """Waits for it. Returns what went wrong in it."""
        self._over.set()
        if self._act is not None:
            self._thread.join(BESIDE_S)
            if self._thread.is_alive():
                return "beside the job: did not end"
        return self._error


def end_all_and_exit(number: int, frame: object) -> None:
    """Signal handler: a scenario command that is told to stop leaves no job behind."""
    for job in list(LIVE):
        job.kill_what_is_left()
    os._exit(128 + number)


def asked_s(scenario: Scenario, plan: Plan) -> float:
    """The longest a verdict may take after the onset and still be waited for."""
    longest = 16.0 * plan.step_s if scenario.ending is Ending.RUNS else 0.0
    return max(5.0, 3.0 * plan.step_s, scenario.truth.within_s, longest)


def run_plan(scenario: Scenario, plan: Plan, folder: Path) -> Outcome:
    """Blocks until the job is over. Never raises for anything that the job or whichrank does."""
    job = scenario.job(scenario, plan, folder) if scenario.job else Job(scenario, plan, folder)
    beside = Beside(scenario, job)
    notes: list[str] = []
    signalled: float | None = None
    stopped: float | None = None
    error = ""
    first_verdict: float | None = None
    final = scenario.truth.severities[-1] if scenario.truth.severities else ""
    expected_s = START_S + plan.steps * (plan.step_s * 2.5 + 0.5) + sum(plan.options.values()) + 60.0
    try:
        while job.running():
            time.sleep(POLL_S)
            job.tail.poll()
            now = time.time()
            onsets = job.onsets()
            if first_verdict is None and job.tail.verdict(final):
                first_verdict = now
            if scenario.signal_to and signalled is None and job.steps_done() > plan.onset_step:
                target = job.process.pid if scenario.signal_to == "run" else job.launcher().pid
                signalled = time.time()
                os.kill(target, signal.SIGTERM)
            if scenario.ending is Ending.RUNS:
                over = now > job.began + expected_s
            elif scenario.signal_to:
                over = now > (signalled or job.began + expected_s) + STOP_S
            elif onsets:
                onset = max(item.realtime for item in onsets)
                over = now > onset + asked_s(scenario, plan) + GIVE_UP_S
                if first_verdict is not None:
                    patience = SETTLE_S if job.tail.located() or not scenario.truth.leaves_stack else STACK_S
                    if scenario.truth.causes and not job.tail.explained():
                        patience = CAUSE_S
                    patience = max(patience, scenario.tail_s) if scenario.job else patience
                    over = now > first_verdict + patience
                    if scenario.ending is Ending.CRASHES:
                        over = now > first_verdict + STOP_S
            else:
                over = now > job.began + expected_s
            if over:
                notes.append(f"ended by the runner {now - job.began:.1f} s after its start")
                stopped = now
                break
        code = job.stop() if stopped is not None else job.process.wait()
        if stopped is not None and not job.onsets() and not scenario.signal_to:
            error = "the deadline came before the fault or the end"
    except Exception as failure:  # the harness's own fault: counts against it, and the job must still end
        error = f"{type(failure).__name__}: {failure}"
        code = job.stop()
    error = beside.end() or error
    job.tail.poll()
    ended = time.time()
    onsets = job.onsets()
    if (plan.fault or plan.guilty) and not onsets and not error:
        error = "the fault never bit"
    pids = job.pids()
    ended_at = job.times("ended")
    job.kill_what_is_left()
    return Outcome(
        plan=plan,
        folder=folder,
        began=job.began,
        ended=ended,
        exit_code=code,
        onsets=onsets,
        signalled=signalled,
        revisions=tuple(job.tail.revisions),
        seen=job.tail.seen,
        pids=pids,
        steps_captured=steps_captured(job.out),
        steps_done=steps_done(job.truth),
        fault_ended=max(ended_at.values()) if set(ended_at) >= {item.rank for item in onsets} and ended_at else None,
        waits=job.times("waits"),
        resolved_seen=job.tail.resolved_seen,
        stopped_by_runner=stopped is not None,
        stopped=stopped,
        harness_error=error,
        devices=job.devices(),
        notes=tuple(notes),
    )
