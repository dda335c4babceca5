"""One node of a large job when it fails: eight real processes, the real agent, in real time.

After a few collectives one rank does not come to the next one; the others wait, stacks are taken. Then every rank
raises, with as long a text and stack as a ring can hold, and exits: no rank can have more to tell. Used by
``cost_sheet``; never part of the product.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event as StopEvent
from pathlib import Path

from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.job_agent import Agent
from whichrank.evaluation.bench.producer_batches import ProducedBatches, Size, Wire
from whichrank.instrumentation.ring_writer import RankRecorder, open_ring_writer
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.ring_layout import C_EXC_STACK_MAX, C_EXC_TEXT_MAX, DEFINITION_ATTEMPT
from whichrank.telemetry.topics import TOPIC_LOGS
from whichrank.telemetry.vocabulary import EventName, ExitState, HookState, Level, Op

from .reference_load import BFLOAT16
from .ring_load import GROUPS, Load, RingLoad
from .stepped_node import JOB, RANKS_PER_NODE, member_lists, node_name

_GUILTY = 5  # local rank
_HOOKED = HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED
_BEAT_S = 0.05
#: What an agent says first (definitions, starts) is no part of the failure.
_FIRST_WORDS_S = 2.0
#: Name of the file that says: hang now.
_HANG = "hang"
#: For stacks of the rank that did not come and of one that waits.
_STACKS_S, _ENDED_S = 60.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What the agent sent from the standstill on. events: how many of each kind, on the topic for people."""

    seconds: float
    sizes: Mapping[str, Size]
    published: list[ProducedBatches]
    events: Counter[EventName]
    dropped: int


def fail(world_size: int, node: int, settings: AgentSettings) -> Failure:
    """Start the node's ranks, let them fail, and tell what that made."""
    folder = Path(tempfile.mkdtemp(prefix="whichrank-failing-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    wire = Wire()
    ranks = RingLoad(folder, Load(ranks=RANKS_PER_NODE), write=partial(_run_rank, world_size, node))
    try:
        ranks.wait_for_rings(folder)
        agent = Agent(
            ring_directory=folder,
            publish=None,
            publish_ranked=wire.publish,
            identity=Identity(cluster="cluster-1", job=JOB, run=JOB, node=node_name(node)),
            job_name="llm-pretraining",
            settings=settings,
        )
        _poll_until(agent, time.monotonic() + _ENDED_S, lambda: agent.watched == RANKS_PER_NODE)
        _poll_until(agent, time.monotonic() + _FIRST_WORDS_S, lambda: False)
        (folder / _HANG).touch()
        begun_s = time.monotonic()
        _poll_until(agent, begun_s + _STACKS_S, lambda: _events(wire, begun_s)[EventName.RANK_STACK] >= 2)
        ender = threading.Thread(target=ranks.stop)
        ender.start()
        _poll_until(agent, time.monotonic() + _ENDED_S, lambda: not ender.is_alive() and not agent.watched)
        ender.join()
        agent.close()
        return Failure(
            seconds=time.monotonic() - begun_s,
            sizes=wire.sizes(begun_s),
            published=wire.between(begun_s),
            events=_events(wire, begun_s),
            dropped=agent.health.events_lost + sum(agent.health.drops.values()),
        )
    finally:
        ranks.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _poll_until(agent: Agent, deadline_s: float, done: Callable[[], bool]) -> None:
    while not done() and time.monotonic() < deadline_s:
        agent.wait(0.05)
        agent.poll()


def _events(wire: Wire, since_s: float) -> Counter[EventName]:
    return Counter(
        payload.name
        for each in wire.between(since_s)
        if each.topic == TOPIC_LOGS
        for payload in decode_logs(each.topic, each.value)
        if isinstance(payload, Event)
    )


# --- a rank's process -------------------------------------------------------------------------------------------------
def _run_rank(
    world_size: int, node: int, directory: str, local_rank: int, load: Load, stop: StopEvent, native: bool | None
) -> None:
    writer: RankRecorder = open_ring_writer(
        Path(directory),
        rank=node * RANKS_PER_NODE + local_rank,
        local_rank=local_rank,
        world_size=world_size,
        identity={"launcher_pid": os.getppid(), "launcher_start_ticks": 1, "restart_count": 0},
        native=native,
    )
    groups = []
    lists = member_lists(world_size, node, local_rank)
    for place, (name, ranks) in enumerate(zip(GROUPS, lists, strict=True)):
        group = {"name": str(place), "desc": name, "ranks": ranks, "size": world_size if place == 0 else 8}
        groups.append(
            writer.define_group({**group, "backend": "gloo", "ordinal": 0, "timeout_s": 600, "default": place == 0})
        )
    writer.define(DEFINITION_ATTEMPT, 0, {"token": "reference"})
    writer.track_completion(True)
    writer.set_level(Level.EVENTS, _HOOKED)
    threading.Thread(target=_beat, args=(writer,), daemon=True).start()
    while not (Path(directory) / _HANG).exists() and not stop.is_set():
        writer.complete(groups[0], writer.enqueue(groups[0], Op.ALL_REDUCE, 8, BFLOAT16, -1, 0), 0, 0)
        time.sleep(_BEAT_S)
    if local_rank != _GUILTY:
        writer.enqueue(groups[0], Op.ALL_REDUCE, 8, BFLOAT16, -1, 0)
    stop.wait()  # where stacks are taken
    writer.record_exception(_long_text(local_rank), _long_stack(local_rank), True)
    writer.record_exit(ExitState.EXCEPTION)
    os._exit(1)


def _beat(writer: RankRecorder) -> None:
    while True:
        writer.beat()
        time.sleep(_BEAT_S)


def _long_text(rank: int) -> str:
    """As the watchdog's, with the C++ frames that come behind it, more than a ring takes."""
    text = (
        f"torch.distributed.DistBackendError: [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={97 + rank}, OpType=ALLREDUCE, NumelIn=8388608, NumelOut=8388608, Timeout(ms)=600000) ran "
        f"for {600_000 + 13 * rank} milliseconds before timing out."
    )
    frames = (f"\nframe #{n}: c10d::ProcessGroupNCCL + 0x{7 * n * n + rank:x} (libtorch_cuda.so)" for n in range(200))
    return (text + "".join(frames))[: 2 * C_EXC_TEXT_MAX]


def _long_stack(rank: int) -> list[tuple[str, int, str]]:
    path = "/opt/train/llm/parallel/stage_{}/module_{}.py"
    return [(path.format(n, n * n % 97), 10 + n + rank, f"forward_{n}") for n in range(C_EXC_STACK_MAX // 40)]
