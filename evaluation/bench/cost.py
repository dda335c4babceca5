"""What the operators cost at the reference load, by ranks: CPU seconds per second of life, and memory.

One process simulates the agents, another judges what they send, with state on disk as a service has it. Only the second
one is counted, and only from the moment that jobs make steps.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from ...commands.support.gc_tuning import search_seldom
from ...simulator.cluster_topology import ClusterShape, Topology
from ...simulator.jobs import JobSpec
from ...simulator.mesh import mesh_for
from ...simulator.scoring.summary import ScoreLine, not_run
from ...simulator.sent import SentMessage
from ...simulator.world import World
from ..simulate.judge import Judge, encoded
from .kept_runs import KeptRuns
from .wire import NODES, NodesWire, wire_lines

#: The curve of cost by ranks.
RANKS = (1024, 4096, 16_384, 65_536, 131_072)
LIVE_RANKS, REPLAYED_RANKS = 16_384, 131_072
#: By then jobs make steps, and of each node's collectors a first look is known; so long it is measured.
WARM_S, MEASURED_S = 24.0, 20.0
#: An agent refuses member lists of more than 64 KiB: larger clusters hold several jobs.
LARGEST_JOB = 65_536
#: With more ranks than this the nodes' collectors are left out: to simulate their looks takes hours.
MOST_SENSED = 16_384
#: What is asked: CPU us per rank and second, and memory, live and replayed; of a job's first seconds so much CPU.
LIVE_US, REPLAYED_US = 12.0, 10.0
LIVE_GIB, REPLAYED_GIB = 1.0, 4.0
#: Jobs' ranks start after BEGIN_S.
BEGIN_S, FIRST_S, FIRST_CPU_S = 2.0, 10.0, 5.0
_RANKS_PER_NODE = 8
#: Cost per rank must not grow: the highest exponent of the number of ranks.
FLAT = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """load_s: seconds of life that were judged. cpu_s: of the judging process for them. pages: none is expected.
    first_cpu_s: of it for the first FIRST_S of the jobs.

    wire_bytes, wire_messages: per rank and second, by name (``NodesWire``).
    """

    ranks: int
    load_s: float
    cpu_s: float
    memory_bytes: int
    messages: int
    pages: int
    first_cpu_s: float = 0.0
    wire_bytes: dict[str, float] = field(default_factory=dict)
    wire_messages: dict[str, float] = field(default_factory=dict)

    @property
    def cores(self) -> float:
        """How many cores are busy where time goes as in life."""
        return self.cpu_s / self.load_s

    @property
    def rank_us(self) -> float:
        """CPU us per rank and second."""
        return 1e6 * self.cores / self.ranks


def cost_name(ranks: int) -> str:
    """The name under which ``KeptRuns`` has the cost at so many ranks."""
    return f"cost-{ranks}"


def measure_cost(ranks: int, kept: KeptRuns) -> Cost:
    """The cost at so many ranks, as kept, or measured now and kept.

    Raises RuntimeError where the judging process ends, OSError where nothing can be kept.
    """
    before = kept_cost(ranks, kept)
    if before is not None:
        return before
    cost = _measure(ranks)
    kept.write(cost_name(ranks), json.dumps(asdict(cost)))
    words = f"{cost.cores:.2f} cores, {cost.memory_bytes / 2**30:.2f} GiB"
    print(f"  cost of {ranks:,} ranks: {words}", file=sys.stderr, flush=True)
    return cost


def kept_cost(ranks: int, kept: KeptRuns) -> Cost | None:
    """The kept cost at so many ranks; None: it was not measured by this code, or cannot be read."""
    found = kept.read(cost_name(ranks))
    try:
        return None if found is None else Cost(**json.loads(found))
    except (TypeError, ValueError):
        return None


def cost_lines(costs: Mapping[int, Cost]) -> list[ScoreLine]:
    """Lines on whether the cost is low enough, and flat. costs: what was measured, by ranks."""
    lines = [*_live(costs.get(LIVE_RANKS)), *_replayed(costs.get(REPLAYED_RANKS))]
    for ranks, cost in sorted(costs.items()):
        if cost.wire_bytes and ranks <= MOST_SENSED:  # beyond, no collector looks
            lines += wire_lines(ranks, cost.wire_bytes, cost.wire_messages, ranks // _RANKS_PER_NODE)
    asked = f"exponent <= {FLAT:g} from {RANKS[0]:,} to {RANKS[-1]:,}"
    if len(costs) < 2:
        return [*lines, not_run("cost per rank is flat", asked, f"{len(costs)} of {len(RANKS)} sizes")]
    known = sorted(costs)
    slope = exponent({ranks: costs[ranks].rank_us for ranks in known})
    curve = ", ".join(f"{ranks:,}: {costs[ranks].rank_us:.0f}" for ranks in known)
    whole = known[0] <= RANKS[0] and known[-1] >= RANKS[-1]
    lines.append(
        ScoreLine(
            name="cost per rank is flat",
            asked=asked,
            measured=f"{slope:+.3f}; CPU us per rank and second: {curve}",
            share=f"{len(set(known) & set(RANKS))} of {len(RANKS)} sizes",
            ok=whole and round(slope, 3) <= FLAT,
        )
    )
    return lines


def exponent(cost_per_rank: Mapping[int, float]) -> float:
    """The exponent with which the cost per rank grows with ranks, by least squares over logarithms. 0: flat."""
    ranks = np.log([float(each) for each in cost_per_rank])
    return float(np.polyfit(ranks, np.log(list(cost_per_rank.values())), 1)[0])


def _live(cost: Cost | None) -> Iterator[ScoreLine]:
    name = f"{LIVE_RANKS:,} ranks live"
    yield from _cost_and_memory(name, cost, LIVE_US, LIVE_GIB)
    name, asked = f"{name}: CPU seconds for the first {FIRST_S:g} s of the job", f"<= {FIRST_CPU_S:g}"
    if cost is None:
        yield not_run(name, asked)
    else:
        measured, is_low = f"{cost.first_cpu_s:.1f}", cost.first_cpu_s <= FIRST_CPU_S
        yield ScoreLine(name=name, asked=asked, measured=measured, share="1 start", ok=is_low)


def _replayed(cost: Cost | None) -> Iterator[ScoreLine]:
    """All jobs in one process."""
    name = f"{REPLAYED_RANKS:,} ranks ({REPLAYED_RANKS // LARGEST_JOB} jobs) replayed without collectors"
    yield from _cost_and_memory(name, cost, REPLAYED_US, REPLAYED_GIB)


def _cost_and_memory(name: str, cost: Cost | None, asked_us: float, asked_gib: float) -> Iterator[ScoreLine]:
    cpu, memory = f"{name}: CPU us per rank and second", f"{name}: memory"
    if cost is None:
        yield not_run(cpu, f"<= {asked_us:g}")
        yield not_run(memory, f"<= {asked_gib:g} GiB")
        return
    seen = f"{cost.load_s:g} s of load"
    measured = f"{cost.rank_us:.1f}: {cost.cores:.2f} cores live"
    yield ScoreLine(name=cpu, asked=f"<= {asked_us:g}", measured=measured, share=seen, ok=cost.rank_us <= asked_us)
    gib = cost.memory_bytes / 2**30
    yield ScoreLine(
        name=memory, asked=f"<= {asked_gib:g} GiB", measured=f"{gib:.2f} GiB", share=seen, ok=gib <= asked_gib
    )


def _measure(ranks: int) -> Cost:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_judge, args=(theirs, ranks), daemon=True)
    process.start()
    theirs.close()
    try:
        world = _cluster(ranks)
        wire = NodesWire(_sample(world), _RANKS_PER_NODE)
        for until_s, sent in world.run(WARM_S + MEASURED_S):
            ours.send((until_s, sent))
            if until_s > WARM_S:
                wire.see(sent)
        ours.send(None)
        found = ours.recv()
    except (EOFError, BrokenPipeError) as error:
        process.join(5.0)
        raise RuntimeError(f"{ranks} ranks: the judging process ended with {process.exitcode}") from error
    finally:
        process.kill()
        ours.close()
    assert isinstance(found, Cost)
    return replace(found, wire_bytes=wire.per_rank_s(MEASURED_S), wire_messages=wire.messages_s(MEASURED_S))


def _sample(world: World) -> list[str]:
    """Nodes from all over."""
    names = [world.topology.node_name(node) for node in range(world.topology.nodes)]
    return names[:: max(1, len(names) // NODES)][:NODES]


def _cluster(ranks: int) -> World:
    jobs = math.ceil(ranks / LARGEST_JOB)
    nodes = ranks // _RANKS_PER_NODE // jobs
    specs = []
    for number in range(jobs):
        places = tuple(range(number * nodes, (number + 1) * nodes))
        specs.append(JobSpec(name=f"job-{number}", mesh=mesh_for(_RANKS_PER_NODE * nodes), nodes=places))
    topology = Topology(shape=ClusterShape(nodes=nodes * jobs))
    return World(topology, specs, seed=1, senses=ranks <= MOST_SENSED)


def _judge(told: Connection, ranks: int) -> None:
    """In a process of its own: windows come, and at the end the cost goes back."""
    search_seldom()  # as a service does
    cpu_s, first_cpu_s, messages = 0.0, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="whichrank-cost-") as folder:
        judge = Judge(state=Path(folder) / "state.sqlite")
        while (window := told.recv()) is not None:
            until_s, sent = window
            values = as_bytes(sent)  # what agents do, not what is measured
            began_s = time.process_time()
            judge.take(until_s, values)
            took_s = time.process_time() - began_s
            if BEGIN_S < until_s <= BEGIN_S + FIRST_S:
                first_cpu_s += took_s
            if until_s > WARM_S:
                cpu_s += took_s
                messages += len(values)
        last = judge.incidents
        judge.close()
    told.send(
        Cost(
            ranks=ranks,
            load_s=MEASURED_S,
            cpu_s=cpu_s,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            messages=messages,
            pages=sum(incident.document["severity"] == "page" for incident in last.values()),
            first_cpu_s=first_cpu_s,
        )
    )
    told.close()


def as_bytes(sent: Sequence[SentMessage]) -> list[SentMessage]:
    """The messages as agents encode them: what agents do is not measured."""
    return [
        SentMessage(at_s=message.at_s, topic=message.topic, key=message.key, node=message.node, value=value)
        for message in sent
        for value in encoded(message)
    ]
