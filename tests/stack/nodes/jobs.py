"""A job on three nodes as a user of the agent starts it: an agent per node, plain torchrun, WHICHRANK_AUTO=1.

Its twin has no agents and no Kafka: the same torchruns under ``whichrank run``, the first node judges.
"""

from __future__ import annotations

import contextlib
import json
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.scenarios.judge import APART, describe
from tests.scenarios.plan import Plan, Scenario
from tests.scenarios.runner import WORKLOADS, Job, Outcome, whichrank_command
from tests.stack.nodes.lan import NAMES, LanNode
from tests.stack.nodes.tails import KafkaTail, Launches
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from whichrank.transport.kafka import make_client

NODES = 3
BOOTSTRAP = WORKLOADS.parents[2] / "instrumentation" / "bootstrap"
PROGRAMS = Path(sys.executable).parent
MASTER_PORT, COMPANY_PORT = 29400, 29500
#: Wall clocks are this far apart at most, either way.
CLOCKS_APART_S = 5.0
READY_S = 120.0
#: A job is told to end, and has not.
END_S = 45.0
#: Its end is told from the records alone, after all nodes' last words.
OVER_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What all runs share. embedded: no agent and no Kafka, ``whichrank run`` instead."""

    kafka: Kafka
    embedded: bool = False


class Launch:
    """The torchruns of one start of one job. identity: what a scheduler would have put into the environment."""

    def __init__(
        self, plan: Plan, folder: Path, environment: Mapping[str, str], *, port: int, arguments: Sequence[str] = ()
    ) -> None:
        """folder: with the plan file. arguments: more for torchrun."""
        self._plan, self.folder, self._port, self._arguments = plan, folder, port, arguments
        self._environment = {
            **environment,
            "SCENARIO_PLAN": str(folder / "plan.json"),
            "WHICHRANK_AUTO": "1",
            "PYTHONPATH": str(BOOTSTRAP),
        }
        self.started_s = time.time()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: LanNode, place: Sequence[str], *, embedded: Path | None = None) -> subprocess.Popen[bytes]:
        """place: what this torchrun is told of where the ranks meet. embedded: folder of ``whichrank run``."""
        environment, command = dict(self._environment), self._command(node.name, place)
        if embedded is not None:
            del environment["WHICHRANK_AUTO"], environment["PYTHONPATH"]
            command = [*whichrank_command(), "run", "--out", str(embedded), "--", *command]
        return self._start(node, command, environment)

    def start_rank(self, node: LanNode, rank: int) -> subprocess.Popen[bytes]:
        """The only rank of this node, under a parent that knows no rank, as Slurm's step daemon starts tasks."""
        place = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(self._plan.world_size),
            "MASTER_ADDR": NAMES[0],
            "MASTER_PORT": str(self._port),
        }
        variables = " ".join(f"{name}={value}" for name, value in place.items())
        task = shlex.join([sys.executable, str(WORKLOADS / f"{self._plan.workload}.py")])
        daemon = f"{variables} {task} & trap 'kill -TERM $!' TERM; wait $!; wait $!"
        return self._start(node, ["sh", "-c", daemon], self._environment)

    def _start(self, node: LanNode, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = node.start(command, environment, self.folder / f"console-{node.name}.txt")
        self.running[node.name] = process
        return process

    def elastic(self, job: str) -> list[str]:
        return ["--rdzv-backend=c10d", f"--rdzv-endpoint={NAMES[0]}:{self._port}", f"--rdzv-id={job}"]

    def end(self) -> None:
        """As a scheduler ends a job: SIGTERM, and SIGKILL to what is left."""
        for process in self.running.values():
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + END_S
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()

    def _command(self, node: str, place: Sequence[str]) -> list[str]:
        return [
            str(PROGRAMS / "torchrun"),
            f"--nnodes={NODES}",
            f"--nproc-per-node={self._plan.world_size // NODES}",
            *place,
            *self._arguments,
            f"--log-dir={self.folder / 'logs' / node}",
            "--tee=3",
            str(WORKLOADS / f"{self._plan.workload}.py"),
        ]


class NodesJob(Job):
    """See above. ``attempt_begins``: Unix times at which the job was started, by whoever starts jobs."""

    #: Whether the guilty rank has ever been seen, and so its node can be told.
    knows_node = True

    def __init__(self, scenario: Scenario, plan: Plan, folder: Path, *, room: Room) -> None:
        self.room = room
        drawn = random.Random(f"{plan.seed}/{plan.scenario}/{plan.repeat}/nodes")
        self.job_id = self.name_job(drawn)
        self.clocks_s = {name: round(drawn.uniform(-CLOCKS_APART_S, CLOCKS_APART_S), 3) for name in NAMES}
        self.clocks_s[drawn.choice(NAMES[:NODES])] = 0.0  # one of them is right
        self.starts_after_s = {name: round(drawn.uniform(0.0, 1.5), 3) for name in NAMES}
        self.nodes: dict[str, LanNode] = {}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.launch: Launch | None = None
        self.node_of_rank: dict[int, str] = {}
        self.attempt_begins: list[float] = []
        self.launches: Launches | None = None
        self._kafka_tail: KafkaTail | None = None
        self._over = False
        self.problems: list[str] = []
        try:
            super().__init__(scenario, plan, folder)
        except BaseException:
            self._end_nodes()
            self.close()
            raise
        if self._kafka_tail is not None:
            self.tail = self._kafka_tail

    # --- start ------------------------------------------------------------------------------------------------------
    def name_job(self, drawn: random.Random) -> str:
        return f"train-{drawn.randrange(16**8):08x}"

    @property
    def others(self) -> tuple[str, ...]:
        """Other jobs at the same time, none of which has a fault."""
        return ()

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self.environment = dict(environment)
        for name in NAMES[:NODES]:
            self.boot(name)
        if not self.room.embedded:
            client = make_client(self.room.kafka.settings())
            self._kafka_tail = KafkaTail(client, self.job_id, self.others, self.folder / "incidents.jsonl")
            self.launches = Launches(client, self.job_id)
        return self.begin()

    def begin(self) -> subprocess.Popen[bytes]:
        """Starts the job; the process of the first node is the job's."""
        self.launch = Launch(self.plan, self.folder, self.environment, port=MASTER_PORT, arguments=self.more_arguments)
        return self.start_launchers(self.launch, NAMES[:NODES])

    @property
    def more_arguments(self) -> list[str]:
        return [f"--max-restarts={self.scenario.restarts}"] if self.scenario.restarts else []

    def start_launchers(self, launch: Launch, names: Iterable[str]) -> subprocess.Popen[bytes]:
        began = time.monotonic()
        self.attempt_begins.append(time.time())
        for name in sorted(names, key=lambda each: self.starts_after_s[each]):
            time.sleep(max(0.0, began + self.starts_after_s[name] - time.monotonic()))
            launch.start(self.nodes[name], self.place_of(launch, name), embedded=self.embedded_folder(name))
        return launch.running[NAMES[0]]

    def place_of(self, launch: Launch, name: str) -> list[str]:
        return launch.elastic(self.job_id)

    def embedded_folder(self, name: str) -> Path | None:
        if not self.room.embedded:
            return None
        return self.out if name == NAMES[0] else self.folder / f"out-{name}"

    def boot(self, name: str) -> None:
        """A node, and its agent, which is there before any job."""
        # By its plan a job's processes are known, and killed in the end: a node and its agent are none of them.
        own = {name: value for name, value in self.environment.items() if name != "SCENARIO_PLAN"}
        node = LanNode(name, self.folder, own, clock_ahead_s=self.clocks_s[name])
        self.nodes[name] = node
        if self.room.embedded:
            return
        console = self.folder / f"agent-{name}.txt"
        command = [*whichrank_command(), "agent", "--kafka", self.room.kafka.address]
        self.agents[name] = node.start([*command, "--data", str(self.folder / name)], own, console)
        eventually(
            lambda: f"agent of node {name}" in console.read_text(errors="replace"),
            what=f"the agent of {name} is there",
            timeout_s=READY_S,
        )

    # --- what is true -----------------------------------------------------------------------------------------------
    def nodes_by_truth(self) -> dict[int, str]:
        """Where the ranks are, as each wrote it down."""
        found = {}
        for path in self.truth.glob("rank-*.json"):
            with contextlib.suppress(json.JSONDecodeError):
                found[int(path.stem.rsplit("-", 1)[1])] = str(json.loads(path.read_text())["node"])
        return found

    def stamp(self, step: int = -1) -> None:
        self.node_of_rank = self.nodes_by_truth()
        super().stamp(step)

    def guilty_node(self, rank: int) -> str:
        nodes = self.node_of_rank or self.nodes_by_truth()
        return nodes.get(rank) or NAMES[rank // (self.plan.world_size // NODES)]

    # --- end --------------------------------------------------------------------------------------------------------
    def stop(self) -> int | None:
        if self.launch is not None:
            for process in self.launch.running.values():
                if process.poll() is None:
                    process.terminate()
        return super().stop()

    def kill_what_is_left(self) -> None:
        if self._over:
            return
        self._over = True
        if self.launch is not None:
            self.launch.end()
        super().kill_what_is_left()
        if self._kafka_tail is not None:
            until = time.monotonic() + OVER_S
            while time.monotonic() < until and not self._kafka_tail.all_resolved():
                self.tail.poll()
                time.sleep(0.05)
        if self.launches is not None:
            self.launches.read()
        self.tail.poll()
        self._end_nodes()
        self._number_logs()

    def _end_nodes(self) -> None:
        for node in self.nodes.values():
            node.end()
        for process in self.agents.values():
            process.wait()

    def _number_logs(self) -> None:
        """torchrun's log folders bear local ranks; they get the numbers that the ranks have in the first attempt."""
        each = self.plan.world_size // NODES
        for number, name in enumerate(NAMES[:NODES]):
            for attempt in (self.logs / name).glob("*/attempt_*"):
                for local in reversed(range(each if number else 0)):
                    if (attempt / str(local)).is_dir():
                        (attempt / str(local)).rename(attempt / str(local + number * each))

    def close(self) -> None:
        """Nothing is asked any more."""
        for reader in (self._kafka_tail, self.launches):
            if reader is not None:
                reader.close()

    # --- judged beside what any scenario is judged by -----------------------------------------------------------------
    def find_problems(self, outcome: Outcome) -> list[str]:
        """The right node and attempt, once; nothing about anybody else's job."""
        if self._kafka_tail is None:
            return self.problems
        problems = list(self.problems)
        tail = self._kafka_tail
        problems += [f"revision {n} of {i} was appended {k} times" for (i, n), k in tail.copies.items() if k > 1]
        problems += [f"false alarm in another job: {describe(d)}" for d in tail.of_others if d["bucket"] not in APART]
        for document in outcome.revisions:
            if document["bucket"] not in APART:
                problems += self._place_problems(document, outcome)
        return sorted(set(problems))

    def _place_problems(self, document: Mapping[str, Any], outcome: Outcome) -> list[str]:
        found = []
        for suspect in document["suspects"]:
            nodes = {self.guilty_node(rank) for rank in outcome.plan.guilty}
            if suspect["node"] and suspect["node"] not in nodes:
                found.append(f"on node {suspect['node']} instead of {', '.join(sorted(nodes))}")
            if not suspect["node"] and self.knows_node:
                found.append("names no node")
        onset = min((each.realtime for each in outcome.onsets), default=0.0)
        begins = max((each for each in self.attempt_begins if each < onset), default=0.0)
        attempt, first_s = str(document["job"]["attempt"]), self.launches.first_s if self.launches else {}
        if attempt not in first_s:
            found.append(f"of attempt {attempt}, which nobody started")
        elif not begins <= first_s[attempt]:
            found.append(f"of attempt {attempt}, which is not the one that failed")
        elif first_s[attempt] > max(onset, begins + 1.0) + READY_S:
            found.append(f"of attempt {attempt}, which began later")
        return found
