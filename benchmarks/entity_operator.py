"""What conditions of a whole fleet cost: ``python -m benchmarks.entity_operator`` (``--profile`` waits for a profiler).

Messages of nodes (one sample of every collector each 10 s) and pages of switches of 64 ports as the Collector brings
them (each 15 s, metrics in another order each time) through decoder, crosswalk, runner with a state file, and the
entity operator. Of nodes GPUs, ports, mounts and processes are those of the simulator, what a host says is read here.
Prints CPU seconds per second of life; exit status 1 where that is more than asked.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import groupby
from pathlib import Path

from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.host.host_collector import HostCollector
from whichrank.commands.embedded.embedded_operators import wanted_metrics
from whichrank.commands.support.gc_tuning import search_seldom
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.evaluation.simulate.judge import MemoryBus
from whichrank.processors.commit_pace import CommitPace
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.simulator.clock import START_UNIX_NS, ns
from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.program import Recipe
from whichrank.simulator.scenarios.layouts import one_job
from whichrank.simulator.scoring.summary import ScoreLine
from whichrank.simulator.scraped_page import Line, Page
from whichrank.simulator.world import World
from whichrank.telemetry.otlp_metrics import encode_points
from whichrank.telemetry.records import Identity
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_METRICS

NODES, SWITCHES, PORTS = 2048, 200, 64
NODE_EVERY_S, SWITCH_EVERY_S = 10.0, 15.0
ASKED = 0.05
#: What is usual of a series is known after eight looks.
WARM_UP_S, MEASURED_S = 150.0, 60.0
#: Of IF-MIB and its neighbours, that are counters; what is more are gauges. Half of them is nobody's condition.
COUNTERS = (
    *("ifHCInOctets", "ifHCOutOctets", "ifInErrors", "ifOutErrors", "ifInDiscards", "ifOutDiscards"),
    *("dot3StatsFCSErrors", "dot3StatsSymbolErrors", "dot3StatsAlignmentErrors"),
    *("dot3HCInPauseFrames", "dot3HCOutPauseFrames", "cpfcIfRequests", "cpfcIfIndications"),
    *("ifInOctets", "ifOutOctets", "ifInUcastPkts", "ifOutUcastPkts", "ifHCInUcastPkts", "ifHCOutUcastPkts"),
    *("ifHCInMulticastPkts", "ifHCOutMulticastPkts", "ifHCInBroadcastPkts", "ifHCOutBroadcastPkts"),
    *("ifInUnknownProtos", "ifCounterDiscontinuityTime", "ifInNUcastPkts", "ifOutNUcastPkts"),
)
GAUGES = ("ifAdminStatus", "ifOperStatus", "ifHighSpeed", "ifMtu", "ifSpeed", "ifIndex", "ifLastChange", "ifType_info")
_OF_GAUGE = {"ifAdminStatus": 1.0, "ifOperStatus": 1.0, "ifHighSpeed": 400_000.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message, in seconds of the fleet's life."""

    at_s: float
    topic: str
    key: str
    value: bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and prints the lines. The exit status is 1 where more is needed than asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.entity_operator", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--switches", type=int, default=SWITCHES)
    parser.add_argument("--seconds", type=float, default=MEASURED_S, help="that are measured, of the fleet's life")
    options = parser.parse_args(arguments)
    search_seldom()
    cpu = {
        "nodes and switches": measure(options.nodes, options.switches, options.seconds),
        "nodes alone": measure(options.nodes, 0, options.seconds),
        "switches alone": measure(0, options.switches, options.seconds),
    }
    lines = []
    for name, cost in cpu.items():
        asked = f"<= {ASKED:.0%}" if name == "nodes and switches" else ""
        ok = cost.judging <= ASKED or not asked
        lines.append(ScoreLine(name=f"{name}: of a core", asked=asked, measured=f"{cost.judging:.2%}", share="", ok=ok))
        lines.append(
            ScoreLine(name="  and to keep the state", asked="", measured=f"{cost.commits:.2%}", share="", ok=True)
        )
    print(f"{options.nodes} nodes, {options.switches} switches of {PORTS} ports, {options.seconds:.0f} s of their life")
    print_lines(lines, "conditions of a fleet")
    print(in_short(lines))
    return exit_code(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds per second of the fleet's life: of decoder, runner and operator, and of keeping the state."""

    judging: float
    commits: float


class _Pace(CommitPace):
    """By the time of the bus. spent_s: CPU seconds of commits so far."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(clock_s=lambda: bus.now_ns() / 1e9, cost_s=time.process_time)
        self.spent_s = 0.0

    def commit(self, commit: Callable[[], object]) -> None:
        began_s = time.process_time()
        super().commit(commit)
        self.spent_s += time.process_time() - began_s


def measure(nodes: int, switches: int, seconds: float) -> Cost:
    """What judging so many costs, over so many seconds of their life."""
    with tempfile.TemporaryDirectory(prefix="whichrank-entities-") as folder:
        bus = MemoryBus(ns=START_UNIX_NS)
        pace = _Pace(bus)
        runner = EmbeddedRunner(
            bus,
            Path(folder) / "state.sqlite",
            [EntityOperator()],
            lambda _: None,
            live=True,
            input_topics={TOPIC_BLOCKS, TOPIC_METRICS},
            metrics=wanted_metrics(),
            pace=pace,
        )
        spent_s, commits_s = 0.0, 0.0
        for second, batch in groupby(_in_order(nodes, switches, WARM_UP_S + seconds), lambda told: int(told.at_s)):
            for told in batch:
                bus.advance(START_UNIX_NS + ns(told.at_s))
                bus.append(told.topic, told.key, told.value)
            # Seldom: where a virtual machine has no such clock, asking for it takes longer than to judge a message.
            began_s, before_s = time.process_time(), pace.spent_s
            runner.drain()
            if second >= WARM_UP_S:
                in_commits_s = pace.spent_s - before_s
                spent_s += time.process_time() - began_s - in_commits_s
                commits_s += in_commits_s
        runner.close()
    if runner.broken or runner.nameless:
        raise RuntimeError(f"{runner.broken} messages could not be read, {runner.nameless} points name nobody")
    return Cost(judging=spent_s / seconds, commits=commits_s / seconds)


def _in_order(nodes: int, switches: int, until_s: float) -> Iterator[Told]:
    """Nodes and switches one after the other, spread evenly over their periods."""
    told = merge(_of_nodes(nodes, until_s), _of_switches(switches, until_s), key=lambda each: each.at_s)
    return (each for each in told if each.at_s < until_s)


def _of_nodes(nodes: int, until_s: float) -> Iterator[Told]:
    for number, look in enumerate(_looks_of_a_node(until_s) if nodes else ()):
        for node in range(nodes):
            at_s = NODE_EVERY_S * (number + node / nodes)
            for topic, key, value in _as_node(look, node):
                yield Told(at_s=at_s, topic=topic, key=key, value=value)


def _of_switches(switches: int, until_s: float) -> Iterator[Told]:
    pages = _Pages()
    for number in range(int(until_s / SWITCH_EVERY_S) + 1 if switches else 0):
        for switch in range(switches):
            at_s = SWITCH_EVERY_S * (number + switch / switches)
            yield Told(at_s=at_s, topic=TOPIC_METRICS, key="", value=pages.page(switch, int(SWITCH_EVERY_S) * number))


_Sent = list[tuple[str, str, bytes]]
_NODE, _SWITCH, _NUMBER = "node-00000", "leaf-0000:161", 7


def _looks_of_a_node(until_s: float) -> Iterator[_Sent]:
    """What one node of the simulator sends in each 10 s, and what this machine's host says."""
    layout = one_job(8, Recipe())
    world = World(layout.topology, layout.jobs, seed=_NUMBER, window_s=NODE_EVERY_S, senses=[0])
    host = HostCollector()
    for end_s, sent in world.run(until_s + NODE_EVERY_S):
        told = [
            (message.topic, message.key, message.value)
            for message in sent
            if message.node == _NODE and message.value and message.topic == TOPIC_METRICS
        ]
        at_ns = START_UNIX_NS + ns(end_s)
        points = host.collect(Timestamps(wall_ns=at_ns, mono_ns=ns(end_s))).points
        who = Identity(cluster=layout.topology.cluster, node=_NODE)
        told += [(TOPIC_METRICS, _NODE, value) for value in encode_points(who, points, limit_bytes=600_000)]
        yield told


def _as_node(look: _Sent, node: int) -> Iterator[tuple[str, str, bytes]]:
    """The same of another node, with its own name and GPUs."""
    topology = Topology(shape=ClusterShape(nodes=NODES))
    name = topology.node_name(node)
    words = {_NODE: name, **{topology.gpu_uuid(gpu): topology.gpu_uuid(8 * node + gpu) for gpu in range(8)}}
    for topic, key, value in look:
        for old, new in words.items():
            value = value.replace(old.encode(), new.encode())
        yield topic, key.replace(_NODE, name), value


class _Pages:
    """Pages of switches as snmp_exporter tells them."""

    def __init__(self) -> None:
        self._chance = random.Random(7)
        self._made: tuple[int, bytes] = -1, b""
        self._ports = [
            {"ifAlias": f"to node-{port:05d}", "ifDescr": f"Ethernet1/{port}", "ifIndex": str(port),
             "ifName": f"Eth1/{port}"}
            for port in range(1, PORTS + 1)
        ]  # fmt: skip

    def page(self, switch: int, second: int) -> bytes:
        """Of a switch in one round of scrapes; its families in another order in each, as they come out of the
        Collector's map.
        """
        if self._made[0] != second:
            families = [partial(self._family, name, float(second)) for name in (*COUNTERS, *GAUGES)]
            self._chance.shuffle(families)
            lines = tuple(line for family in families for line in family())
            self._made = second, Page(instance=_SWITCH, lines=lines).otlp(START_UNIX_NS + ns(second))
        return self._made[1].replace(_SWITCH.encode(), f"leaf-{switch:04d}:161".encode())

    def _family(self, name: str, at_s: float) -> Iterator[Line]:
        for number, labels in enumerate(self._ports):
            rate = 0.0 if "Error" in name or "Discards" in name else 1000.0 + number
            value = _OF_GAUGE.get(name, float(number)) if name in GAUGES else float(int(rate * at_s))
            yield Line(name=name, labels=labels, value=value)


if __name__ == "__main__":
    sys.exit(main())
