"""A node of a large job at the design's reference load, real ring writers and the real agent, by a clock that is set.

All is in one process and in nobody's real time: what is written and sent depends on the load alone, not on how busy
the machine is, and a minute takes a second. Ranks of a node meet in each collective, as real ones do; nodes have the
same jitter, so that they fit together as one job. What one process cannot have: pid and CPU time are the same in the
rows of all ranks of a node, and nobody's stack can be taken. Used by ``cost_sheet``; never part of the product.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.job_agent import Agent
from whichrank.evaluation.bench.producer_batches import Wire
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.records import Identity
from whichrank.telemetry.ring_layout import DEFINITION_ATTEMPT, format_ranks
from whichrank.telemetry.vocabulary import HookState, Level, Op
from whichrank.telemetry.whole_steps import whole_steps_every

from .reference_load import BFLOAT16, PHASES, STEP_S
from .ring_load import GROUPS

RANKS_PER_NODE = 8
JOB = "llm-pretraining-0042"
_HOOKED = HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED | HookState.PHASES_HOOKED
_TICK_NS = 50_000_000
#: So much of a step its calls take where each waits for the slowest of eight; the rest is a pause, up to the next one.
_BUSY = 0.9
_SECOND_NS = 1_000_000_000
#: An ordinary moment: numbers of usual length.
_UNIX_NS = 1_790_000_000 * _SECOND_NS
_MONOTONIC_NS = 86_400 * _SECOND_NS
_MODULES = "whichrank.instrumentation."


class Clock:
    """Monotonic time that somebody sets."""

    def __init__(self) -> None:
        self.ns = _MONOTONIC_NS

    def __call__(self) -> int:
        return self.ns

    def wall_ns(self) -> int:
        return self.ns - _MONOTONIC_NS + _UNIX_NS

    def wall_s(self) -> float:
        return self.wall_ns() / _SECOND_NS

    @contextlib.contextmanager
    def rules(self) -> Iterator[None]:
        """Ring writers in this process go by it."""
        times = SimpleNamespace(monotonic_ns=self, time_ns=self.wall_ns)
        with contextlib.ExitStack() as stack:
            for module in ("ring_writer", "ring_collectives"):
                stack.enter_context(mock.patch(f"{_MODULES}{module}.monotonic_ns", self))
            for module in ("ring_creation", "ring_records"):
                stack.enter_context(mock.patch(f"{_MODULES}{module}.time", times))
            yield


def member_lists(world_size: int, node: int, local_rank: int) -> tuple[str, str, str]:
    """Of the groups ``GROUPS`` of a rank: all; its like on every node (data parallel); its node (tensor parallel)."""
    first = node * RANKS_PER_NODE
    like = format_ranks(list(range(local_rank, world_size, RANKS_PER_NODE)))
    return f"0-{world_size - 1}", like, f"{first}-{first + RANKS_PER_NODE - 1}"


class SteppedNode:
    """``run`` in steps of the load; what the agent sends is in ``wire``.

    hang_at: in this step the ranks in ``guilty`` (local) do not come to the collective of all; the others wait there.
    """

    def __init__(
        self,
        *,
        world_size: int,
        node: int,
        first_step: int = 0,
        hang_at: int | None = None,
        guilty: tuple[int, ...] = (),
    ) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock.wall_s)
        self._chance = random.Random(7)
        self._hang_at, self._guilty = hang_at, guilty
        self._hangs = False
        self._folder = tempfile.TemporaryDirectory(prefix="whichrank-stepped-", dir=_shared_memory())
        with self.clock.rules():
            self._ranks = [_Rank(Path(self._folder.name), world_size, node, local) for local in range(RANKS_PER_NODE)]
            self.step = 0
            while self.step < first_step:  # long ago: nothing is told of them but that they were
                self.clock.ns += _TICK_NS
                for rank in self._ranks:
                    rank.writer.end_step(2.0, 0.5, 0)
                self.step += 1
        self._next_step_ns = self._polled_ns = self.clock.ns
        self.agent = Agent(
            ring_directory=Path(self._folder.name),
            publish=None,
            publish_ranked=self.wire.publish,
            identity=Identity(cluster="cluster-1", job=JOB, run=JOB, node=node_name(node)),
            job_name="llm-pretraining",
            settings=AgentSettings(tell_people=True, take_stacks=False),
            monotonic_ns=self.clock,
            wall_ns=self.clock.wall_ns,
        )

    def run(self, steps: int) -> None:
        """So many steps, each all of it, with everything that agents do meanwhile."""
        with self.clock.rules():
            for _ in range(steps):
                for at_ns, act in sorted(self._acts(), key=lambda item: item[0]):
                    self._pass_until(at_ns)
                    act()
                self._pass_until(self._next_step_ns)
                self.step += 1

    def stand(self, seconds: float) -> None:
        """Time passes, and no rank goes on."""
        with self.clock.rules():
            self._pass_until(self.clock.ns + int(seconds * _SECOND_NS))

    def close(self) -> None:
        """Without last words: what is measured goes on."""
        self._folder.cleanup()
        with self.clock.rules():
            for rank in self._ranks:
                rank.writer.close()

    def _pass_until(self, at_ns: int) -> None:
        while self._polled_ns + _TICK_NS <= at_ns:
            self.clock.ns = self._polled_ns = self._polled_ns + _TICK_NS
            for rank in self._ranks:
                rank.writer.beat()
            self.agent.poll()
        self.clock.ns = max(self.clock.ns, at_ns)

    def _acts(self) -> Iterator[tuple[int, Callable[[], object]]]:
        """One step: what each rank does when."""
        begin_ns = self._next_step_ns
        self._next_step_ns += int(STEP_S * _SECOND_NS)
        ready = [begin_ns] * RANKS_PER_NODE
        for phase, share, calls in PHASES:
            for ns, rank in zip(ready, self._ranks, strict=True):
                yield ns, partial(rank.writer.set_phase, phase)
            part_s = _BUSY * share * STEP_S / max(1, len(calls))
            for group, op, nbytes in calls:
                hangs = self.step == self._hang_at and group == 0
                for place, rank in enumerate(self._ranks):
                    ready[place] += self._jittered(0.8 * part_s)
                    if not (hangs and place in self._guilty):
                        yield ready[place], partial(rank.enqueue, group, op, nbytes)
                if hangs:
                    return
                done_ns = max(ready) + self._jittered(0.2 * part_s)
                for place, rank in enumerate(self._ranks):
                    ready[place] = done_ns + self._chance.randrange(50_000)
                    yield ready[place], partial(rank.complete, group)
            if not calls:
                ready[:] = [ns + self._jittered(part_s) for ns in ready]
        for ns, rank in zip(ready, self._ranks, strict=True):
            loss, norm = 2.0 + self._chance.random(), 0.5 + self._chance.random()
            yield ns, partial(rank.writer.end_step, loss, norm, 0)

    def _jittered(self, seconds: float) -> int:
        return int(seconds * self._chance.lognormvariate(0.0, 0.05) * _SECOND_NS)


class _Rank:
    def __init__(self, folder: Path, world_size: int, node: int, local_rank: int) -> None:
        self.writer = RingWriter.create(
            folder,
            rank=node * RANKS_PER_NODE + local_rank,
            local_rank=local_rank,
            world_size=world_size,
            identity={"launcher_pid": 4711, "launcher_start_ticks": 1, "restart_count": 0, "host": node_name(node)},
        )
        lists = member_lists(world_size, node, local_rank)
        sizes = (world_size, -(-(world_size - local_rank) // RANKS_PER_NODE), RANKS_PER_NODE)
        for place, (name, ranks, size) in enumerate(zip(GROUPS, lists, sizes, strict=True)):
            group: dict[str, object] = {"name": str(place), "desc": name, "ranks": ranks, "size": size}
            group |= {"backend": "gloo", "ordinal": 0, "timeout_s": 600, "default": place == 0}
            self.writer.define_group(group)
        self.writer.define(DEFINITION_ATTEMPT, 0, {"token": "reference"})
        self.writer.track_completion(True)
        self.writer.set_level(Level.EVENTS, _HOOKED)
        self._open: dict[int, int] = {}

    def enqueue(self, group: int, op: Op, nbytes: int) -> None:
        self._open[group] = self.writer.enqueue(group, op, nbytes, BFLOAT16, -1, 0)

    def complete(self, group: int) -> None:
        self.writer.complete(group, self._open.pop(group), 0, 0)


def node_name(node: int) -> str:
    return f"gpu-node-{node:04d}"


def step_before_whole(world_size: int, steps: int) -> int:
    """A step after which so many come before the next one of which everything is told."""
    return whole_steps_every(world_size) - steps


def _shared_memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
