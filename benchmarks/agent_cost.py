"""What the agent costs: CPU of one core for 8 ranks at 200 collectives a second each, children included.

The writers are real (``ring_load``), the agent runs as ``whichrank run`` drives it, publishing into a real embedded
bus; counted is the CPU time of the agent's process and of every child it started. The figure holds only if the agent
really read and shipped everything, so that is checked in the same run.
Run: ``python -m benchmarks.agent_cost [--seconds 300] [--quick]``. Exit status 1 on SHORT. ``--memory-every S`` tells
the memory of each of its processes over time, on stderr.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.ring_load import Load, RingLoad

if TYPE_CHECKING:
    from whichrank.agents.job_agent import Agent

ASKED_PERCENT = 2.0
#: The same with every collector of the node on, on a node with eight played GPUs; and the memory of all its processes.
ASKED_NODE_PERCENT, ASKED_NODE_MIB = 3.0, 150.0
#: Steps a second, at the same 200 collectives a second: a large model, and a small one, whose steps the agent must ship
#: sooner because a straggler is to be named within ten of them. Then as an agent for Kafka does it; with collectors.
RUNS = ((2, "run"), (10, "run"), (10, "people"), (2, "node"))
WORDS = {
    "run": "",
    "people": ", and spans and metrics",
    "node": ", spans and metrics, every collector, 8 GPUs, a BMC, Kubernetes, site checks",
}
#: The agent's start (imports, first scan) is not its running cost.
_WARM_UP_S = 3.0
#: Folder of what ``played_chassis`` makes.
CHASSIS = "chassis"


def cold_factor() -> float:
    """How much dearer a fixed piece of work is on this machine right after 100 ms of sleep than without sleep.

    About 2 on a machine of one's own. On a virtual machine whose host evicts sleepers it can be 10 and more, and
    everything that sleeps most of the time, as an agent does, costs that much more there.
    """
    import numpy as np

    def work_s() -> float:
        begin_s = time.thread_time()
        rows = np.arange(2000)
        for _ in range(50):
            rows = np.sort(rows + 1)
        return time.thread_time() - begin_s

    work_s()
    hot_s = statistics.median(work_s() for _ in range(30))
    cold_s = []
    for _ in range(30):
        time.sleep(0.1)
        cold_s.append(work_s())
    return statistics.median(cold_s) / hot_s


def _cpu_s() -> float:
    """Of this process, of children that have ended, and of those that live."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended_s = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    living_s = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a check, or ipmitool, that has just ended: its parent's children have it
            # Of its own, and of the programs that it has started and that have ended.
            living_s += sum(child.cpu_times()[:4])
    return ended_s + living_s


def _memory_mib() -> list[float]:
    """Of each process, this one first. Proportional: what processes share counts once."""
    me = psutil.Process()
    found = []
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            found.append(process.memory_full_info().pss / (1 << 20))
    return found


def _tell_memory(after_s: float) -> None:
    each_mib = _memory_mib()
    parts = " + ".join(f"{mib:.1f}" for mib in each_mib)
    print(f"memory after {after_s:6.0f} s: {sum(each_mib):6.1f} MiB = {parts}", file=sys.stderr, flush=True)
    print(f"CPU after {after_s:6.0f} s: {_cpu_by_process()}", file=sys.stderr, flush=True)


def _cpu_by_process() -> str:
    """Seconds of this process, and of each child with those of its own that have ended."""
    me = psutil.Process()
    own = me.cpu_times()
    parts = [f"{own.user + own.system:.1f} here", f"{own.children_user + own.children_system:.1f} ended"]
    for child in me.children():
        with suppress(psutil.NoSuchProcess):
            parts.append(f"{sum(child.cpu_times()[:4]):.1f}")
    return " + ".join(parts)


def run_agent(
    directory: Path, out: Path, seconds: float, profile: bool, kind: str, memory_every_s: float
) -> dict[str, float]:
    """The agent's process: poll for ``seconds``, return what it used and what it read."""
    from whichrank.agents.job_agent import Agent
    from whichrank.commands.embedded.embedded_agent import agent_settings
    from whichrank.commands.embedded.embedded_watch import TURN_S
    from whichrank.telemetry.records import Identity
    from whichrank.transport.embedded import EmbeddedBus

    bus = EmbeddedBus(out)

    def publish(topic: str, key: str, value: bytes) -> None:
        bus.append(topic, key, value)

    agent = Agent(
        ring_directory=directory,
        publish=publish,
        identity=Identity(job="load", run="load"),
        settings=replace(agent_settings(publishes=False), tell_people=kind != "run"),
    )

    node = _NodeParts(agent, out.parent, publish) if kind == "node" else None

    began_s = time.monotonic()

    def drive(for_s: float) -> None:
        end_s = time.monotonic() + for_s
        next_memory_s = began_s + memory_every_s if memory_every_s else float("inf")
        while (now_s := time.monotonic()) < end_s:
            if now_s >= next_memory_s:
                next_memory_s += memory_every_s
                _tell_memory(now_s - began_s)
            agent.wait(TURN_S)
            agent.poll()
            if node is not None:
                node.turn()

    drive(_WARM_UP_S)
    begin_s, begin_cpu_s, begin_events = time.monotonic(), _cpu_s(), agent.health.events_read
    profiler = cProfile.Profile() if profile else None
    if profiler is not None:
        profiler.runcall(drive, seconds)
        found = pstats.Stats(profiler, stream=sys.stderr)
        for order in ("tottime", "cumtime"):
            found.sort_stats(order).print_stats(60)
    else:
        drive(seconds)
    used = {
        "seconds": time.monotonic() - begin_s,
        "cpu_s": _cpu_s() - begin_cpu_s,
        "events": agent.health.events_read - begin_events,
        "lost": agent.health.events_lost + agent.health.events_torn + sum(agent.health.drops.values()),
        "records": agent.health.records_sent,
        "bytes": agent.health.bytes_sent,
        "polls": agent.health.polls,
        "poll_max_ms": agent.health.poll_max_ns / 1e6,
        "rank_problems": len(agent.health.problems),
        "memory_mib": sum(_memory_mib()),
        "points": node.points if node is not None else 0,
        "ranks_placed": len(node.placed) if node is not None else 0,
        "bmc_silent": sum("BMC" in line for line in node.problems) if node is not None else 0,
    }
    if node is not None:
        node.close()
    agent.close()
    bus.close()
    return used


class _NodeParts:
    """Every collector, as ``whichrank run`` has them, on a node that plays eight GPUs with the load's ranks on them."""

    def __init__(self, agent: Agent, folder: Path, publish: Callable[[str, str, bytes], None]) -> None:
        from benchmarks.played_chassis import kubernetes_node, site_checks
        from tests.played_gpu.played import PlayedGpus, Profile
        from whichrank.agents.collectors.collector_plans import node_plans
        from whichrank.agents.collectors.options import NodeOptions
        from whichrank.agents.collectors.schedule import NodeTelemetry
        from whichrank.agents.node_reports import NodeReports
        from whichrank.telemetry.records import Identity

        self._agent = agent
        chassis = folder / CHASSIS
        self._gpus = PlayedGpus(Profile.H100, folder / "gpus")
        os.environ.update(self._gpus.environment())
        self.points = 0
        self.placed: set[int] = set()
        options = NodeOptions(
            site_checks=str(site_checks(chassis)),
            kubernetes_node_file=str(kubernetes_node(chassis)),
            versions_file=str(folder / "versions.json"),
        )
        plans = [
            replace(plan, options={"root": str(chassis)}) if plan.name == "bmc" else plan
            for plan in node_plans(options, lambda: agent.rank_processes)
        ]
        #: What each collector says that it cannot see.
        self.problems: list[str] = []
        self._reports = NodeReports(
            NodeTelemetry(plans, report=self._report),
            Identity(node="load"),
            lambda topic, key, value, priority: self._publish(publish, topic, key, value),
            rank_processes=lambda: agent.rank_processes,
            request_bytes=agent.settings.request_bytes,
        )
        self._reports.start()

    def _report(self, line: str) -> None:
        self.problems.append(line)
        print(line, file=sys.stderr)

    def turn(self) -> None:
        for pid, who in self._agent.rank_processes.items():
            if pid not in self.placed:
                self.placed.add(pid)
                self._gpus.attach(pid, who.rank % 8)
        self._reports.turn()

    def close(self) -> None:
        self._reports.close()

    def _publish(self, publish: Callable[[str, str, bytes], None], topic: str, key: str, value: bytes) -> None:
        self.points += topic == "otlp_metrics"
        publish(topic, key, value)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--quick", action="store_true", help="30 seconds")
    parser.add_argument("--profile", action="store_true", help="where the time goes, on stderr (the figure is void)")
    parser.add_argument("--memory-every", type=float, default=0.0, metavar="SECONDS", help="print the memory so often")
    parser.add_argument("--kind", choices=list(WORDS), default="", help="only this run")
    parser.add_argument("--agent", nargs=2, metavar=("RINGS", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    seconds = 30.0 if options.quick else options.seconds
    if options.agent:
        rings, out = map(Path, options.agent)
        used = run_agent(rings, out, seconds, options.profile, options.kind, options.memory_every)
        print(json.dumps(used))
        return 0
    from benchmarks.report import Report

    report = Report(f"agent cost over {seconds:.0f} s: 8 ranks at 200 collectives/s each")
    report.shown("control: work after 100 ms of sleep / without", f"{cold_factor():.1f} x")
    for pace, kind in RUNS:
        if options.kind not in ("", kind):
            continue
        load = Load(steps_per_s=pace)
        words = f"{pace} steps/s{WORDS[kind]}"
        used = measure(load, seconds, kind, profile=options.profile, memory_every_s=options.memory_every)
        print(f"at {words}: {json.dumps({key: round(value, 3) for key, value in used.items()})}", flush=True)
        percent = 100 * used["cpu_s"] / used["seconds"]
        asked = ASKED_NODE_PERCENT if kind == "node" else ASKED_PERCENT
        report.at_most(f"{words}: CPU of one core, children included, %", asked, percent)
        if kind == "node":
            report.at_most(f"{words}: memory of all its processes, MiB", ASKED_NODE_MIB, used["memory_mib"])
            report.at_least(f"{words}: ranks whose GPU is known", load.ranks, used["ranks_placed"])
            report.at_least(f"{words}: BMCs that answer (OpenIPMI's simulator)", 1, used["bmcs"] - used["bmc_silent"])
        events_per_s = load.ranks * load.collectives_per_s * 2
        report.at_least(f"{words}: events read a second", 0.98 * events_per_s, used["events"] / used["seconds"])
        report.at_most(f"{words}: events lost, torn or dropped", 0, used["lost"])
    return report.finish()


def measure(
    load: Load, seconds: float, kind: str, *, profile: bool = False, memory_every_s: float = 0.0
) -> dict[str, float]:
    """What an agent in a process of its own used for ``seconds`` beside this load."""
    work = Path(tempfile.mkdtemp(prefix="whichrank-agent-cost-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    rings = work / "rings"
    rings.mkdir(mode=0o700)
    writers = RingLoad(rings, load)
    try:
        writers.wait_for_rings(rings)
        command = [sys.executable, __file__, "--seconds", str(seconds), "--agent", str(rings), str(work / "bus")]
        if profile:
            command.append("--profile")
        command += ["--kind", kind, "--memory-every", str(memory_every_s)]
        with _surroundings(work, kind) as variables:
            environment = {**os.environ, **variables}
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=seconds + 120, env=environment)
            has_bmc = (work / CHASSIS / "dev/ipmi0").exists()
    finally:
        writers.stop()
        shutil.rmtree(work, ignore_errors=True)
    used: dict[str, float] = json.loads(done.stdout)
    return {**used, "bmcs": float(has_bmc)}


def _surroundings(work: Path, kind: str) -> AbstractContextManager[dict[str, str]]:
    """Variables for the agent's process; the node around it lasts as long as the context."""
    if kind != "node":
        return nullcontext({})
    from benchmarks.played_chassis import played_chassis

    return played_chassis(work / CHASSIS)


if __name__ == "__main__":
    sys.exit(main())
