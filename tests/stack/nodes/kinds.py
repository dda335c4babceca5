"""What goes wrong, on one of three nodes, with one of them, or around the job; and what is true of it."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from tests.scenarios.catalogue.nodes import AGENT_SILENT, NODE_LOST
from tests.scenarios.catalogue.restarts import OWN_STORE
from tests.scenarios.catalogue.truths import INSIDE, NEVER_JOINED, NOT_ENTERED, RAISED
from tests.scenarios.plan import Ending, Scenario
from tests.scenarios.runner import Job
from tests.stack.nodes.jobs import COMPANY_PORT, MASTER_PORT, Launch, NodesJob
from tests.stack.nodes.lan import NAMES

#: Who waits for a rank that is not there is asked to, for so long: its page comes after 80 % of it.
JOIN_TIMEOUT_S = 50.0
#: A new machine is there so long after the old one is gone.
REPLACED_AFTER_S = (2.0, 6.0)
STEPS_BEFORE_PREEMPTION = 4
LONG_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """timed: its delay is compared with that of the embedded way. compared kinds are run as often as ``repeats``."""

    scenario: Scenario
    job: type[NodesJob] = NodesJob
    timed: bool = False
    repeats: int = 5

    @property
    def name(self) -> str:
        return self.scenario.name


class NeverStarts(NodesJob):
    """Two of three nodes start their ranks, as Slurm does: torchrun would start none before all nodes are there."""

    knows_node = False

    def name_job(self, drawn: random.Random) -> str:
        return str(drawn.randrange(10**4, 10**8))

    def begin(self) -> subprocess.Popen[bytes]:
        environment = {**self.environment, **_slurm(self.job_id, restarts=0)}
        self.launch = Launch(self.plan, self.folder, environment, port=MASTER_PORT)
        self.attempt_begins.append(time.time())
        for rank, name in enumerate(NAMES[:3]):
            if rank not in self.plan.guilty:
                self.launch.start_rank(self.nodes[name], rank)
        return self.launch.running[NAMES[0]]


class Requeued(NodesJob):
    """Two jobs on the same nodes. One is taken off by its scheduler, and put back on as its second attempt."""

    company: Launch | None = None

    def name_job(self, drawn: random.Random) -> str:
        number = drawn.randrange(10**4, 10**8)
        self._company_id = str(number + 1)
        return str(number)

    @property
    def others(self) -> tuple[str, ...]:
        return (self._company_id,)

    def begin(self) -> subprocess.Popen[bytes]:
        self.company = self._prepare(self._company_id, self.folder / "company", restarts=0, port=COMPANY_PORT)
        self._start(self.company)
        first = self._prepare(self.job_id, self.folder / "first", restarts=0, port=MASTER_PORT)
        self.start_launchers(first, NAMES[:3])
        self._wait_for_steps(first)
        self._wait_for_steps(self.company)
        first.end()
        environment = {**self.environment, **_slurm(self.job_id, restarts=1)}
        self.launch = Launch(self.plan, self.folder, environment, port=MASTER_PORT)
        return self.start_launchers(self.launch, NAMES[:3])

    def kill_what_is_left(self) -> None:
        if self.company is not None:
            if any(process.poll() is not None for process in self.company.running.values()):
                self.problems.append("harness: the other job did not last")
            self.company.end()
            self.company = None
        super().kill_what_is_left()

    def _prepare(self, job: str, folder: Path, *, restarts: int, port: int) -> Launch:
        """A job without a fault that goes on for longer than anybody needs."""
        (folder / "truth").mkdir(parents=True)
        plan = replace(
            self.plan, fault="", guilty=(), onset_step=-1, steps=int(LONG_S / self.plan.step_s), workload="ddp_mlp"
        )
        (folder / "plan.json").write_text(json.dumps({**asdict(plan), "truth": str(folder / "truth")}))
        return Launch(plan, folder, {**self.environment, **_slurm(job, restarts=restarts)}, port=port)

    def _start(self, launch: Launch) -> None:
        for name in NAMES[:3]:
            launch.start(self.nodes[name], launch.elastic(self._company_id), embedded=None)

    def _wait_for_steps(self, launch: Launch) -> None:
        until = time.monotonic() + LONG_S
        steps = launch.folder / "truth" / "steps-0.txt"
        while not steps.exists() or steps.read_text().count("\n") < STEPS_BEFORE_PREEMPTION:
            if time.monotonic() > until or any(process.poll() is not None for process in launch.running.values()):
                raise RuntimeError(f"{launch.folder.name}: it did not come so far")
            time.sleep(0.05)


def _slurm(job: str, *, restarts: int) -> dict[str, str]:
    """What Slurm puts into a job's environment; a requeued job keeps its number."""
    return {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(restarts)}


# --- beside the job ---------------------------------------------------------------------------------------------------
def _bitten(job: Job, over: threading.Event) -> bool:
    while not job.onsets():
        if over.wait(0.005):
            return False
    return True


def node_goes(job: Job, over: threading.Event) -> None:
    assert isinstance(job, NodesJob)
    if _bitten(job, over):
        job.node_of_rank = job.nodes_by_truth()
        job.nodes[job.guilty_node(job.plan.guilty[0])].gone()
    over.wait()


def node_is_replaced(job: Job, over: threading.Event) -> None:
    """The machine is gone; another one comes, with an agent, and takes its place in the job."""
    assert isinstance(job, NodesJob)
    if _bitten(job, over):
        job.node_of_rank = job.nodes_by_truth()
        job.nodes[job.guilty_node(job.plan.guilty[0])].gone()
        drawn = random.Random(f"{job.plan.seed}/{job.plan.repeat}/replaced")
        if not over.wait(drawn.uniform(*REPLACED_AFTER_S)):
            job.boot(NAMES[3])
            assert job.launch is not None
            job.launch.start(job.nodes[NAMES[3]], job.place_of(job.launch, NAMES[3]))
    over.wait()


def agent_goes(job: Job, over: threading.Event) -> None:
    """``kill -9`` of one node's agent while its ranks train on."""
    assert isinstance(job, NodesJob)
    while job.steps_done() <= job.plan.onset_step:
        if over.wait(0.01):
            return
    rank = random.Random(f"{job.plan.seed}/{job.plan.repeat}/agent").randrange(job.plan.world_size)
    job.stamp(job.plan.onset_step)
    for child in psutil.Process(job.agents[job.guilty_node(rank)].pid).children():
        child.send_signal(signal.SIGKILL)
    over.wait()


def others_wait(job: Job, over: threading.Event) -> None:
    """It is true from when all that are there have said that they begin to wait."""
    while len(job.times("waits")) < job.plan.world_size - len(job.plan.guilty):
        if over.wait(0.01):
            return
    with contextlib.suppress(FileNotFoundError):
        job.stamp()
    over.wait()


_BASE = Scenario(
    name="",
    truth=NOT_ENTERED,
    ending=Ending.HANGS,
    workloads=("ddp_mlp",),
    worlds=(3, 6),
    step_s=(0.2, 1.5),
    points=INSIDE,
)
_ONE_EACH = replace(_BASE, worlds=(3,), guilty_among=(1, 2), fault="from_outside")
Beside = Callable[[Job, threading.Event], None]

KINDS = (
    Kind(scenario=replace(_BASE, name="hang", fault="sleep"), timed=True, repeats=20),
    Kind(
        scenario=replace(_BASE, name="exception", truth=RAISED, ending=Ending.CRASHES, fault="throw"),
        timed=True,
        repeats=20,
    ),
    Kind(
        scenario=replace(_ONE_EACH, name="node destroyed whole", truth=NODE_LOST, beside=node_goes),
        timed=True,
        repeats=20,
    ),
    Kind(
        scenario=replace(
            _ONE_EACH,
            name="elastic restart on a replaced node",
            truth=replace(NODE_LOST, resolves=True),
            ending=Ending.RUNS,
            workloads=("resuming",),
            options={"save_each": (3, 5)},
            restarts=3,
            environment=OWN_STORE,
            tail_s=15.0,
            beside=node_is_replaced,
        ),
    ),
    Kind(
        scenario=replace(
            _ONE_EACH,
            name="node that never starts",
            truth=NEVER_JOINED,
            workloads=("late_comer",),
            options={"timeout_s": JOIN_TIMEOUT_S},
            beside=others_wait,
        ),
        job=NeverStarts,
    ),
    Kind(
        scenario=replace(
            _ONE_EACH,
            name="only the agent killed",
            truth=AGENT_SILENT,
            ending=Ending.RUNS,
            guilty_among=(),
            fault="",
            after_s=20.0,
            beside=agent_goes,
        ),
    ),
    Kind(
        scenario=replace(_BASE, name="two jobs at once, one requeued", fault="sleep", worlds=(3,)),
        job=Requeued,
    ),
)
