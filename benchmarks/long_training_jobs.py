"""Starts one long training, watches it from outside, and does what only somebody outside can do to it.

Destroys nodes and fills the disk when the plan says so, by what the ranks have written down; never through whichrank.
What is left in the folder is read by ``long_training_truth``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.long_training_faults import CHECKPOINTS, FILLER, THREE_NODES, UPLOADS, Fault, FaultKind, Plan
from benchmarks.long_training_nodes import NAMES, RENDEZVOUS_PORT, ThreeNodes
from benchmarks.long_training_truth import TruthFile

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("long_training_script.py")
PROGRAM = (sys.executable, "-m", "whichrank.commands.main")
SUPERVISED, TORCHRUN, UNBROKEN = "whichrank", "torchrun", "unbroken"
#: As whoever expects a fault a minute has to set them: most jobs never need more than the defaults.
RESTARTS, RESTARTS_PER_HOUR, BACKOFF_S, GRACE_S = 40, 100, 0.0, 15.0
#: torchrun waits so long for nodes between MIN and MAX.
LAST_CALL_S = 10
DISK_MEBIBYTES = 48
#: The disk has room again after so many saves have failed, or so long.
FAILED_SAVES, FULL_S = 2, 60.0
#: From the end of the first node's command to the end of the others', and of all by force.
END_S = 90.0
POLL_S = 0.1
#: Somebody has ended the benchmark: what runs is ended in order, with its nodes and its disk.
STOP = threading.Event()


def ranks_per_node(kind: str, layout: str) -> int:
    """How many ranks each node has."""
    if kind == "tp_dp":
        return 2 if layout == THREE_NODES else 4
    return 1 if layout == THREE_NODES else 2


def ranks_of(kind: str, layout: str) -> int:
    """How many ranks a training begins with."""
    return ranks_per_node(kind, layout) * (len(NAMES) if layout == THREE_NODES else 1)


def python_of(kind: str) -> str:
    """The interpreter whose torch is launched."""
    frameworks = ROOT / ".venv-frameworks" / "bin" / "python"
    return str(frameworks) if kind in ("hf", "lightning") else sys.executable


def missing(kind: str) -> str:
    """Why a kind cannot be run here; empty: it can."""
    return "" if Path(python_of(kind)).exists() else "make setup-frameworks was not run"


@dataclass(slots=True)
class Watch:
    """What has been seen of one training so far, and the acts from outside that are still to come."""

    plan: Plan
    folder: Path
    nodes: ThreeNodes | None = None
    truth: TruthFile = field(init=False)
    failed_saves: int = 0
    full_since: float | None = None
    done: int = 0

    def __post_init__(self) -> None:
        self.truth = TruthFile(self.folder / "truth-0.jsonl")

    def turn(self) -> None:
        """Reads what rank 0 has written since, and does what is due."""
        for line in self.truth.new_lines():
            self.done = int(line.get("done", self.done))
            self.failed_saves += "save_failed" in line
            if line.get("kind") == FaultKind.DISK.value:
                self.full_since, self.failed_saves = time.monotonic(), 0
                fill(self.folder / CHECKPOINTS)
        if self.full_since is not None:
            self._make_room()
        self._destroy()

    def _make_room(self) -> None:
        assert self.full_since is not None
        if self.failed_saves >= FAILED_SAVES or time.monotonic() - self.full_since > FULL_S:
            self.full_since = None
            (self.folder / CHECKPOINTS / FILLER).unlink(missing_ok=True)
        else:
            fill(self.folder / CHECKPOINTS)  # also what old checkpoints have left

    def _destroy(self) -> None:
        fault = next((one for one in self.plan.faults if not mark_of(self.folder, one).exists()), None)
        if self.nodes is None or fault is None or fault.kind is not FaultKind.NODE or self.done < fault.step:
            return
        say(self.folder, fault=fault.number, kind=fault.kind.value, step=self.done)
        mark_of(self.folder, fault).touch()
        self.nodes.destroy(fault.node)


def mark_of(folder: Path, fault: Fault) -> Path:
    """The file that says that a fault has been."""
    return folder / f"fault-{fault.number}"


def say(folder: Path, **what: float | str) -> None:
    """A line of the truth of what is done from outside."""
    with (folder / "truth-outside.jsonl").open("a") as file:
        file.write(json.dumps({"time": time.time(), **what}) + "\n")


def fill(place: Path) -> None:
    """Nothing more goes onto this file system."""
    with (place / FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65536)


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of its own at ``place``: nodes that are made later have it as well."""
    place.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEBIBYTES}m,mode=700", "tmpfs", str(place)], check=True, timeout=20
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=20)


def run_training(plan: Plan, folder: Path, how: str, limit_s: float) -> tuple[list[int | None], float, float]:
    """Runs it to its end. how: SUPERVISED, TORCHRUN (its own restarts) or UNBROKEN (by itself, no fault).

    Gives exit codes by node (None: destroyed), and when it began and ended (Unix seconds). One that takes longer than
    ``limit_s`` is ended: its exit code is -1.
    """
    plan.write(folder)
    (folder / UPLOADS).mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(small_disk(folder / CHECKPOINTS))
        watch = Watch(plan=plan, folder=folder)
        environ = _environ(plan)
        if plan.layout == THREE_NODES:
            watch.nodes = stack.enter_context(ThreeNodes(folder, environ))
        began = time.time()
        jobs = _start(plan, folder, how, environ, watch.nodes)
        codes = _wait(watch, jobs, limit_s)
        return codes, began, time.time()


def _environ(plan: Plan) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "OTEL_"))}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "WHICHRANK_RESTARTS_PER_HOUR": str(RESTARTS_PER_HOUR),
        "WHICHRANK_RESTART_BACKOFF_S": str(BACKOFF_S),
        "TRANSFORMERS_VERBOSITY": "error",
    }


def _start(
    plan: Plan, folder: Path, how: str, environ: dict[str, str], nodes: ThreeNodes | None
) -> list[subprocess.Popen[bytes]]:
    if nodes is not None:
        meet = [
            f"--nnodes=2:{len(NAMES)}", "--rdzv-backend=c10d", f"--rdzv-endpoint={NAMES[0]}:{RENDEZVOUS_PORT}",
            f"--rdzv-conf=last_call_timeout={LAST_CALL_S}",
        ]  # fmt: skip
        return [
            node.start(_command(plan, folder, how, number, meet), environ, folder / f"log-{number}")
            for number, node in enumerate(nodes.nodes)
        ]
    with (folder / "log-0").open("wb") as log:
        command = _command(plan, folder, how, 0, ["--standalone"])
        return [subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)]


def _command(plan: Plan, folder: Path, how: str, number: int, meet: Sequence[str]) -> list[str]:
    python = python_of(plan.kind)
    torchrun = [
        python,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={ranks_per_node(plan.kind, plan.layout)}",
        *meet,
    ]
    if how == TORCHRUN:
        torchrun.append(f"--max-restarts={RESTARTS}")
    command = [*torchrun, str(SCRIPT), str(folder)]
    if how != SUPERVISED:
        return command
    whichrank = [python, *PROGRAM[1:], "run", "--out", str(folder / f"out-{number}")]
    limits = ["--restarts", str(RESTARTS), "--restart-grace", str(GRACE_S)]
    return [*whichrank, "--view", "lines", *limits, "--", *command]


def _wait(watch: Watch, jobs: Sequence[subprocess.Popen[bytes]], limit_s: float) -> list[int | None]:
    """Until the first node's command has ended, and then for the others; nodes that were destroyed have no code."""
    until = time.monotonic() + limit_s
    first, is_late = jobs[0], False
    while first.poll() is None:
        watch.turn()
        if time.monotonic() > until or STOP.is_set():
            is_late = True
            break
        time.sleep(POLL_S)
    watch.turn()
    until = time.monotonic() + END_S
    for job in jobs:
        if is_late:
            job.terminate()
    for job in jobs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(max(0.1, until - time.monotonic()))
    codes = [-1 if is_late or job.poll() is None else job.poll() for job in jobs]
    for job in jobs:
        if job.poll() is None:
            job.kill()
            job.wait()
    destroyed = {
        one.node for one in watch.plan.faults if one.kind is FaultKind.NODE and mark_of(watch.folder, one).exists()
    }
    return [None if number in destroyed and watch.nodes is not None else code for number, code in enumerate(codes)]
