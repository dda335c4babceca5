"""Two nodes on this machine: each with processes, mounts, host name, network and /dev/shm of its own.

A node is a set of namespaces that an idle process holds; a cable (a veth pair) joins the two. In each runs its own
``whichrank run -- torchrun --nnodes=2``, with defaults only. Needs root; where namespaces cannot be made, ``missing``
says why.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

from .plan import Plan, Scenario
from .runner import WORKLOADS, Job, whichrank_command

HERE = Path(__file__).parent
ADDRESSES = ("10.77.0.1", "10.77.0.2")
NAMES = ("node-1", "node-2")
RENDEZVOUS_PORT = 29400
#: The first process of a node: sets its mounts up, then collects what others leave behind, as any init does.
INIT = """
mount -t tmpfs tmpfs /dev/shm && mount --bind "$1" /etc/hosts && hostname "$2" && ip link set lo up && : > "$3"
while :; do sleep 3600 & wait $!; done
"""
#: Ports on which judges listen.
JUDGES_PORTS = "21000-24999"
#: How far the monotonic clocks of the nodes are apart, as those of two machines are by their uptimes.
UPTIME_S = (0, 100_000)


@functools.cache
def missing() -> str:
    """Why two nodes cannot be made here; empty: they can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    try:
        command = ["unshare", "--fork", "--pid", "--mount", "--uts", "--net", "--time", "ip", "link"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no namespaces: {error}"
    return "" if done.returncode == 0 else f"no namespaces: {done.stderr.strip()[-200:]}"


class Node:
    """One set of namespaces. ``pid``: of its first process, as seen from outside; killing it kills all inside."""

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        *,
        uptime_s: int = 0,
        addresses: Mapping[str, str] = MappingProxyType(dict(zip(NAMES, ADDRESSES, strict=True))),
    ) -> None:
        """uptime_s: what its monotonic clock is ahead of this machine's. addresses: of all nodes, by their names."""
        self.name = name
        hosts, ready = folder / "hosts", folder / f"{name}.ready"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in addresses.items()))
        flags = ["--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--uts", "--net"]
        if uptime_s:
            flags += ["--time", "--monotonic", str(uptime_s), "--boottime", str(uptime_s)]
        self._holder = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", INIT, "init", str(hosts), name, str(ready)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
        deadline = time.monotonic() + 20.0
        while not ready.exists():
            if time.monotonic() > deadline or self._holder.poll() is not None:
                raise RuntimeError(f"{name}: its namespaces were not made")
            time.sleep(0.01)
        self.pid: int = psutil.Process(self._holder.pid).children()[0].pid

    def run(self, *command: str) -> None:
        """A short command in this node's network."""
        inside = ["nsenter", "--target", str(self.pid), "--net", "--", *command]
        subprocess.run(inside, check=True, capture_output=True, timeout=20)

    def start(self, command: list[str], environment: Mapping[str, str], console: Path) -> subprocess.Popen[bytes]:
        with console.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, str(HERE / "enter_node.py"), str(self.pid), *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    def gone(self) -> None:
        """The cable is out and the power is off, in this order: not even a goodbye of the kernel gets through."""
        self.run("ip", "link", "set", "eth0", "down")
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._holder.wait()


def make_nodes(folder: Path, environment: Mapping[str, str]) -> tuple[Node, Node]:
    """Two nodes and the cable between them."""
    first, second = nodes = (
        Node(NAMES[0], folder, environment, uptime_s=UPTIME_S[0]),
        Node(NAMES[1], folder, environment, uptime_s=UPTIME_S[1]),
    )
    ends = ["name", "eth0", "netns", str(first.pid)], ["name", "eth0", "netns", str(second.pid)]
    subprocess.run(["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]], check=True, timeout=20)
    for node, address in zip(nodes, ADDRESSES, strict=True):
        node.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")
    return nodes


class TwoNodes(Job):
    """Half of the ranks on each node; the first node has the rendezvous and so the judge."""

    def __init__(self, scenario: Scenario, plan: Plan, folder: Path) -> None:
        self.nodes: tuple[Node, ...] = ()
        self.second: subprocess.Popen[bytes] | None = None
        super().__init__(scenario, plan, folder)

    @property
    def second_out(self) -> Path:
        """Where the second node's whichrank keeps its own."""
        return self.folder / "out-2" / f"node-{NAMES[1]}"

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        made = make_nodes(self.folder, environment)
        self.nodes = made
        self.prepare(made)
        first, second = (
            node.start(
                self._command(node.name, out),
                {**environment, **self.surroundings(node.name)},
                self.folder / f"console{suffix}.txt",
            )
            for node, out, suffix in zip(made, (self.out, self.folder / "out-2"), ("", "-2"), strict=True)
        )
        self.second = second
        return first

    def prepare(self, nodes: tuple[Node, Node]) -> None:
        """What the network does to the nodes; nothing by default."""

    def surroundings(self, node: str) -> Mapping[str, str]:
        """What the environment of one node has beyond the others'; nothing by default."""
        return {}

    def stop(self) -> int | None:
        """A person who ends a job of two nodes ends it on both."""
        if self.second is not None and self.second.poll() is None:
            self.second.terminate()
        return super().stop()

    def kill_what_is_left(self) -> None:
        if self.second is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.second.wait(10.0)
        super().kill_what_is_left()
        for node in self.nodes:
            node.end()
        if self.second is not None:
            self.second.wait()
        self._number_logs()

    def _number_logs(self) -> None:
        """torchrun's log folders bear local ranks; those of the second node get the numbers that their ranks have."""
        half = self.plan.world_size // 2
        for attempt in (self.logs / NAMES[1]).glob("*/attempt_*"):
            for local in reversed(range(half)):
                if (attempt / str(local)).is_dir() and not (attempt / str(local + half)).exists():
                    (attempt / str(local)).rename(attempt / str(local + half))

    def watcher_of_second(self) -> psutil.Process:
        """The ``whichrank run`` of the second node."""
        assert self.second is not None
        return psutil.Process(self.second.pid).children()[0]

    def _command(self, name: str, out: Path) -> list[str]:
        return [
            *whichrank_command(),
            "run",
            "--out",
            str(out),
            "--",
            str(Path(sys.executable).parent / "torchrun"),
            "--nnodes=2",
            f"--nproc-per-node={self.plan.world_size // 2}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={NAMES[0]}:{RENDEZVOUS_PORT}",
            f"--log-dir={self.logs / name}",
            "--tee=3",
            str(WORKLOADS / f"{self.plan.workload}.py"),
        ]


class BlockedJudge(TwoNodes):
    """A firewall between the nodes lets everything through but whichrank."""

    def prepare(self, nodes: tuple[Node, Node]) -> None:
        nodes[0].run("ip", "rule", "add", "ipproto", "tcp", "sport", JUDGES_PORTS, "blackhole")


def two_nodes(scenario: Scenario, plan: Plan, folder: Path) -> Job:
    return TwoNodes(scenario, plan, folder)


def blocked_judge(scenario: Scenario, plan: Plan, folder: Path) -> Job:
    return BlockedJudge(scenario, plan, folder)


# --- beside the job ---------------------------------------------------------------------------------------------------
def follower_says_nothing(job: Job, over: threading.Event) -> None:
    """What the second node's instance wrote down itself names nobody. Raises AssertionError."""
    over.wait()
    _check_follower(job, allowed=())


def second_node_goes(job: Job, over: threading.Event) -> None:
    assert isinstance(job, TwoNodes)
    if _bitten(job, over):
        job.nodes[1].gone()
    over.wait()


def second_agent_goes(job: Job, over: threading.Event) -> None:
    """``kill -9`` of the second node's whichrank while its ranks train on."""
    assert isinstance(job, TwoNodes)
    while job.steps_done() <= job.plan.onset_step:
        if over.wait(0.01):
            return
    job.stamp(job.plan.onset_step)
    job.watcher_of_second().kill()
    over.wait()
    _check_follower(job, allowed=())


def _bitten(job: Job, over: threading.Event) -> bool:
    while not job.onsets():
        if over.wait(0.005):
            return False
    return True


def _check_follower(job: Job, allowed: tuple[int, ...]) -> None:
    assert isinstance(job, TwoNodes)
    path = job.second_out / "incidents.jsonl"
    assert path.exists(), "the second node's whichrank kept nothing"
    named = {
        suspect["rank"]
        for line in path.read_text().splitlines()
        for suspect in json.loads(line)["suspects"]
        if suspect.get("rank") is not None
    }
    assert named <= set(allowed), f"the second node blames {sorted(named)}"
